"""One run of an agent, from its prompt to its result."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pydantic_core
from gofer import ModelError, Run, RunnerError, SessionInfo, SubagentResult, Usage
from pydantic_ai import UsageLimits
from pydantic_ai.agent import AbstractAgent, AgentRunEvents
from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    IncompleteToolCall,
    ModelContextWindowExceededError,
    ModelHTTPError,
    RunCancelled,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.messages import ModelMessage
from pydantic_ai.run import AgentRunResult, AgentRunResultEvent
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
        self._stop_reason = "end_turn"
        self._error: str | None = None

    async def go(self) -> None:
        """Have the agent do it.

        :raises GoferError: its model failed, or it is not made as it must be.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            async with self._events() as events:
                tasks.start_soon(self._heed_cancel, events)
                try:
                    await self._follow(events)
                except Exception as error:
                    failure = error
                self._usage = _usage_of(events)
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

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AgentRunEvents[Any]]:
        context = self._agent.run_stream_events(
            self._run.prompt,
            deps=self._deps,
            message_history=self._history,
            usage_limits=self._limits,
        )
        events = await context.__aenter__()
        try:
            yield events
        finally:
            # It works in a task of pydantic-ai's, which must have ended when the run has.
            with anyio.CancelScope(shield=True):
                await events.aclose()

    async def _heed_cancel(self, events: AgentRunEvents[Any]) -> None:
        await self._run.cancel_requested.wait()
        events.cancel()

    async def _follow(self, events: AgentRunEvents[Any]) -> None:
        async for event in events:
            if isinstance(event, AgentRunResultEvent):
                await self._finish(event.result)
            else:
                for block in self._blocks.of(event):
                    await self._run.emit(block)

    async def _finish(self, result: AgentRunResult[Any]) -> None:
        output = result.output if isinstance(result.output, str) else _as_json(result.output)
        # It may have come by a tool, or been changed since the model said it.
        if output != self._blocks.text:
            for block in self._blocks.say(output, anew=True):
                await self._run.emit(block)
        self.messages = result.all_messages()
        self._stop_reason = _FINISH.get(result.response.finish_reason or "", "end_turn")

    def _judge(self, failure: Exception) -> None:
        """Say what the failure means for the result; raise it where that is all."""
        self._error = str(failure)
        match failure:
            case RunCancelled():
                self._stop_reason = "cancelled"
                self.messages = failure.all_messages()
            case UsageLimitExceeded():
                self._stop_reason = "max_turn_requests"
            case IncompleteToolCall() | ModelContextWindowExceededError():
                self._stop_reason = "max_tokens"
            case ContentFilterError():
                self._stop_reason = "refusal"
            case ModelHTTPError():
                body = None if failure.body is None else _as_json(failure.body)
                raise ModelError(str(failure), failure.status_code, body) from failure
            case AgentRunError() | UserError():
                raise RunnerError(f"{type(failure).__name__}: {failure}") from failure
            case _:
                raise failure


def _usage_of(events: AgentRunEvents[Any]) -> RunUsage | None:
    try:
        return events.usage
    except UserError:  # it never began
        return None


def _usage(usage: RunUsage) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        reasoning_tokens=usage.output_reasoning_tokens,
    )


def _as_json(value: object) -> str:
    return json.dumps(pydantic_core.to_jsonable_python(value, fallback=str), ensure_ascii=False)
