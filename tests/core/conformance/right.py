"""A runner that can everything, for the conformance kit to find nothing wrong with it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from gofer import (
    Capabilities,
    PluginValidationError,
    Run,
    Runner,
    RunnerError,
    SessionInfo,
    SubagentResult,
    SubagentSpec,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from gofer.testing._subject import Subject

ALL = Capabilities(streams=True, cancels=True, resumes=True, cwd=True, tool_scope=True, tools=True)


class Right(Runner):
    """Does what its prompt says: ``say TEXT``, ``long``, ``cwd`` or ``tool``."""

    name = "right"
    capabilities = ALL
    cancel_grace = 1.0

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        unknown = ", ".join(spec.options)
        if unknown:
            raise PluginValidationError("right.options", f"{unknown}: there are none")
        if not run.prompt.strip():
            raise PluginValidationError("right.task", "is blank: say what to do")
        sessions = await run.host.resource("right", _sessions)
        session = self.session(spec, sessions)
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(self.watch, run, scope)
                await self.work(spec, run)
            tasks.cancel_scope.cancel()
        return self.result(run, session, cancelled=scope.cancelled_caught)

    def session(self, spec: SubagentSpec, sessions: Sessions) -> SessionInfo:
        if spec.resume is not None and spec.resume in sessions.known:
            return SessionInfo(id=spec.resume, resumed=True)
        number = f"right-{next(sessions.numbers)}"
        sessions.known.add(number)
        reason = None if spec.resume is None else "there is no such session"
        return SessionInfo(id=number, reason=reason)

    async def watch(self, run: Run, scope: anyio.CancelScope) -> None:
        await run.cancel_requested.wait()
        scope.cancel()

    async def work(self, spec: SubagentSpec, run: Run) -> None:
        word, _, rest = run.prompt.partition(" ")
        if word == "long":
            for number in range(100):
                await anyio.lowlevel.checkpoint()
                await run.emit(Text(text=f"{number:5}"))
        elif word == "tool":
            await self.tool(spec, run)
        elif word == "cwd":
            await self.tell(run)
        else:
            await self.say(run, rest)

    async def say(self, run: Run, text: str) -> None:
        await anyio.lowlevel.checkpoint()
        await run.emit(Text(text=text or "Done."))

    async def tell(self, run: Run) -> None:
        if not await anyio.Path(run.cwd).is_dir():
            raise RunnerError(f"the directory {run.cwd} is gone")
        await run.emit(Text(text=str(run.cwd)))

    async def tool(self, spec: SubagentSpec, run: Run) -> None:
        allowed = not spec.tool_scope or "look" in spec.tool_scope
        await run.emit(ToolCall(id="call-1", name="look"))
        answer = ToolResult(
            tool_call_id="call-1",
            output="seen" if allowed else "not allowed",
            is_error=not allowed,
        )
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            await run.emit(answer)
        await run.emit(Text(text="I looked."))

    def result(self, run: Run, session: SessionInfo, *, cancelled: bool) -> SubagentResult:
        return run.result(
            stop_reason="cancelled" if cancelled else "end_turn",
            error="it was cancelled" if cancelled else None,
            usage=Usage(input_tokens=1, output_tokens=1),
            session=session,
        )


class Sessions:
    """What one Host's runs know of sessions."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.known: set[str] = set()


@asynccontextmanager
async def _sessions() -> AsyncIterator[Any]:
    yield Sessions()


class RightSubject(Subject):
    """What the kit must be told of it."""

    leeway = 0.3
    max_examples = 3
    runner: type[Runner] = Right

    def make_runner(self) -> Runner:
        return self.runner()

    def task_that_says(self, text: str) -> str:
        return f"say {text}"

    def task_that_is_long(self) -> str:
        return "long"

    def task_that_tells_cwd(self) -> str:
        return "cwd"

    def task_that_calls_a_tool(self) -> tuple[str, str]:
        return "tool", "look"
