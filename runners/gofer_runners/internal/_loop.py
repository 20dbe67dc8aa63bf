"""The agent loop: ask the model, execute its calls, ask again, until it calls nothing more."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from gofer import (
    ContextOverflowError,
    Message,
    Model,
    Request,
    Response,
    Run,
    SubagentResult,
    ToolCall,
    ToolResult,
)

from ._guards import Guards
from ._output import cut
from ._tool import HarnessTool, ToolFailure

__all__ = ["Loop"]

log = logging.getLogger("gofer.internal")

_TOGETHER = 8
"""How many calls that only read run at once."""

_OUTPUT = 128 * 1024
_ENDS = {
    "max_tokens": "the model's response was cut off at its limit: raise max_tokens, or ask for less"
}


class Loop:
    """One run of the harness.

    :param tools: what the harness executes itself; plugins may offer and execute more.
    :param request: the settings of each request; its messages are the beginning.
    :param max_turns: how many requests there may be.
    """

    def __init__(
        self, run: Run, model: Model, tools: Sequence[HarnessTool], request: Request, max_turns: int
    ) -> None:
        scope = set(run.spec.tool_scope)
        self._run = run
        self._model = model
        self._tools = {tool.name: tool for tool in tools if not scope or tool.name in scope}
        self._request = request
        self._max_turns = max_turns
        self._guards = Guards()

    async def go(self) -> SubagentResult:
        """Work until the model calls nothing more, or a guard ends it."""
        messages = list(self._request.messages)
        offered = [tool.offer() for tool in self._tools.values()]
        for _ in range(self._max_turns):
            request = self._request.model_copy(update={"messages": messages, "tools": offered})
            try:
                async with self._run.stream(request, self._model, errors="report") as stream:
                    async for _ in stream:
                        pass
            except ContextOverflowError as error:
                return self._run.result(stop_reason="max_tokens", error=str(error))
            response = stream.response
            calls = [block for block in response.blocks if isinstance(block, ToolCall)]
            executed = _executed(response)
            reason = response.stop_reason
            if not calls and not executed:
                return self._run.result(
                    stop_reason="end_turn" if reason == "tool_use" else reason,
                    error=_ENDS.get(reason),
                )
            if reason in ("max_tokens", "refusal", "error", "cancelled"):
                # A call that was cut off must not be executed, and asking again ends the same.
                return self._run.result(
                    stop_reason=reason,
                    error=f"the model's response ended with {reason} amid tool calls",
                )
            results = await self._execute(calls)
            messages = [
                *messages,
                *response.messages,
                *(Message("tool", [result]) for result in results),
            ]
            stop = None
            for call, result in [*executed, *zip(calls, results, strict=True)]:
                stop = stop or self._guards.saw(call, result.output, failed=result.is_error)
            if stop is not None:
                return self._run.result(stop_reason="error", error=stop)
        return self._run.result(
            stop_reason="max_turn_requests",
            error=f"the run used up its {self._max_turns} requests to the model: raise max_turns, "
            "or ask for less",
        )

    async def _execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Execute calls in their order; those that only read and stand together run together."""
        results: dict[int, ToolResult] = {}
        batch: list[int] = []
        for at, call in enumerate(calls):
            tool = self._tools.get(call.name)
            if tool is not None and tool.reads:
                batch.append(at)
                continue
            await self._together(calls, batch, results)
            batch = []
            results[at] = await self._one(call)
        await self._together(calls, batch, results)
        emitted: list[ToolResult] = []
        for at in range(len(calls)):
            shown = await self._run.emit(results[at])
            emitted.append(shown if isinstance(shown, ToolResult) else results[at])
        return emitted

    async def _together(
        self, calls: Sequence[ToolCall], batch: Sequence[int], results: dict[int, ToolResult]
    ) -> None:
        async def execute(at: int) -> None:
            results[at] = await self._one(calls[at])

        async def execute_in_place(at: int) -> None:
            try:
                await execute(at)
            finally:
                places.release()

        if len(batch) == 1:
            await execute(batch[0])
            return
        places = anyio.Semaphore(_TOGETHER)
        async with anyio.create_task_group() as tasks:
            for at in batch:
                await places.acquire()
                tasks.start_soon(execute_in_place, at)

    async def _one(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        try:
            if tool is None:
                known = ", ".join(self._tools) or "none"
                raise ToolFailure(f"there is no tool {call.name!r} here; the tools are: {known}")
            output, failed = await tool.execute(call.arguments), False
        except ToolFailure as error:
            output, failed = str(error), True
        except Exception as error:
            log.warning("tool %s failed: %s", call.name, error, exc_info=error)
            output, failed = f"{call.name} failed: {type(error).__name__}: {error}", True
        return ToolResult(tool_call_id=call.id, output=cut(output, _OUTPUT), is_error=failed)


def _executed(response: Response) -> list[tuple[ToolCall, ToolResult]]:
    """Return the calls that plugins executed while the response came, with their results."""
    calls = {
        block.id: block
        for message in response.messages
        for block in message.content
        if isinstance(block, ToolCall)
    }
    return [
        (calls[block.tool_call_id], block)
        for block in response.blocks
        if isinstance(block, ToolResult) and block.tool_call_id in calls
    ]
