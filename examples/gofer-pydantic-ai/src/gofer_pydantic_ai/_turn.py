"""One run of an agent, from its prompt to its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pydantic_core
from gofer import GoferError, ModelError, Run, RunnerError, SessionInfo, SubagentResult, Usage
from pydantic_ai import CallToolsNode, ModelRequestNode, UsageLimits
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import (
    ContentFilterError,
    IncompleteToolCall,
    ModelContextWindowExceededError,
    ModelHTTPError,
    RunCancelled,
    UsageLimitExceeded,
)
from pydantic_ai.messages import ModelMessage
from pydantic_ai.run import AgentRun, AgentRunResult
from pydantic_ai.usage import RunUsage

from ._blocks import Blocks

__all__ = ["Turn"]

_FINISH = {"length": "max_tokens", "content_filter": "refusal"}


class Turn:
    """What goes in and what comes out; ``messages`` is the conversation as it can be resumed."""

    def __init__(
        self,
        run: Run,
        agent: AbstractAgent[Any, Any],
        deps: Any,
        messages: Sequence[ModelMessage],
        request_limit: int,
    ) -> None:
        self.messages: list[ModelMessage] = []
        self._run = run
        self._agent = agent
        self._deps = deps
        self._history = list(messages)
        self._limits = UsageLimits(request_limit=request_limit)
        self._blocks = Blocks()
        self._usage: RunUsage | None = None
        self._stop_reason = "cancelled"
        self._error: str | None = "the agent was told to end"

    async def go(self) -> None:
        """Have the agent do it.

        :raises GoferError: its model or a tool failed, or it is not made as it must be.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._heed_cancel, tasks.cancel_scope)
            try:
                await self._follow()
            except Exception as error:
                failure = error
            tasks.cancel_scope.cancel()
        for block in self._blocks.unfinished():
            await self._run.emit(block)
        if failure is not None:
            self._judge(failure)

    def result(self, session: SessionInfo | None) -> SubagentResult:
        """Return the child's result."""
        return self._run.result(
            stop_reason=self._stop_reason,
            error=self._error,
            usage=None if self._usage is None else _usage(self._usage),
            session=session,
        )

    async def _heed_cancel(self, scope: anyio.CancelScope) -> None:
        await self._run.cancel_requested.wait()
        # By a scope and not by a method of pydantic-ai's: its own shields hold against this one,
        # so that no task of it is left behind.
        scope.cancel()

    async def _follow(self) -> None:
        agent_run: AgentRun[Any, Any] | None = None
        try:
            async with self._agent.iter(
                self._run.prompt,
                deps=self._deps,
                message_history=self._history,
                usage_limits=self._limits,
            ) as agent_run:
                async for node in agent_run:
                    if isinstance(node, ModelRequestNode | CallToolsNode):
                        async with node.stream(agent_run.ctx) as events:
                            async for event in events:
                                for block in self._blocks.of(event):
                                    await self._run.emit(block)
            if agent_run.result is not None:
                await self._finish(agent_run.result)
        finally:
            if agent_run is not None:
                self._usage = agent_run.usage
                self.messages = agent_run.all_messages()

    async def _finish(self, result: AgentRunResult[Any]) -> None:
        output = result.output if isinstance(result.output, str) else _as_json(result.output)
        # It may have come by a tool, or been changed since the model said it.
        if output != self._blocks.text:
            for block in self._blocks.say(output, anew=True):
                await self._run.emit(block)
        self._stop_reason = _FINISH.get(result.response.finish_reason or "", "end_turn")
        self._error = None

    def _judge(self, failure: Exception) -> None:
        """Say what the failure means for the result; raise it where that is all.

        What can be gone on with is only what was cancelled.
        """
        if isinstance(failure, RunCancelled):  # by a tool of its own
            return
        self.messages = []
        self._error = str(failure)
        match failure:
            case UsageLimitExceeded():
                self._stop_reason = "max_turn_requests"
            case IncompleteToolCall() | ModelContextWindowExceededError():
                self._stop_reason = "max_tokens"
            case ContentFilterError():
                self._stop_reason = "refusal"
            case ModelHTTPError():
                body = None if failure.body is None else _as_json(failure.body)
                raise ModelError(str(failure), failure.status_code, body) from failure
            case GoferError():
                raise failure
            case _:
                what = f"{type(failure).__name__}: {failure}"
                raise RunnerError(f"the agent failed: {what}") from failure


def _usage(usage: RunUsage) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        reasoning_tokens=usage.output_reasoning_tokens,
    )


def _as_json(value: object) -> str:
    return json.dumps(pydantic_core.to_jsonable_python(value, fallback=str), ensure_ascii=False)
