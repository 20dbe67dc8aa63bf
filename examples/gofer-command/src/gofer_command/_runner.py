"""One child is one run of the command."""

from __future__ import annotations

import codecs
import math
import os
from typing import Any, ClassVar

import anyio
from gofer import (
    Capabilities,
    Host,
    PluginNotSupportedError,
    Run,
    Runner,
    RunnerError,
    SubagentResult,
    SubagentSpec,
    Text,
)
from gofer.processes import Process

from ._settings import Options, Settings, options_of

__all__ = ["CommandRunner"]

_PIPE_SECONDS = 0.5
"""How long what the command left running may hold its stdout open after its end."""

_STDERR_SHOWN = 2000


class CommandRunner(Runner):
    """Runs a command for each child: the task is its stdin, its stdout is the answer.

    It works in the child's directory. Exit code 0 is success; with another one, the end of its
    stderr is in the result's ``error``. A cancelled command gets TERM and ``grace`` seconds;
    whatever happens, nothing that it started is left running. A command cannot be held to a
    ``tool_scope``, so a child that has one is refused.

    The parameters are those of :class:`Settings`.
    """

    name: ClassVar[str] = "command"
    capabilities = Capabilities(streams=True, cancels=True, cwd=True)
    Config = Settings

    def __init__(self, command: list[str], **settings: Any) -> None:
        self._settings = Settings(command=command, **settings)
        # The command's own grace, and time to end what it left running.
        self.cancel_grace = self._settings.grace + 5.0

    def check(self, spec: SubagentSpec, host: Host) -> None:
        """Refuse what a command cannot do.

        :raises PluginError: an option is wrong, or a tool scope or a session was asked for.
        """
        options_of(spec)
        if spec.tool_scope:
            raise PluginNotSupportedError(
                f"a command cannot be held to the tools {', '.join(spec.tool_scope)}: leave out "
                "tool_scope, or use a runner that keeps to it, such as internal"
            )
        if spec.resume is not None:
            raise PluginNotSupportedError(
                f"a command has no sessions, so {spec.resume!r} cannot be resumed: leave out resume"
            )

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Run the command once.

        :raises RunnerError: it cannot be started, or what it wrote is no text.
        """
        work = _Work(run, self._settings, options_of(spec))
        supervisor = await run.host.supervisor()
        async with supervisor.process(
            work.argv, cwd=run.cwd, environment=work.environment, name=work.name, grace=0.0
        ) as process:
            return await work.watch(process)


class _Work:
    """One run: what goes in, what comes out, and what ends it."""

    def __init__(self, run: Run, settings: Settings, options: Options) -> None:
        self.argv = [*settings.command, *options.arguments]
        self.name = settings.command[0]
        own = {name: value for name, value in os.environ.items() if name != "GOFER_API_KEY"}
        self.environment = {**own, **settings.env, **options.env, **run.environment}
        self._run = run
        self._settings = settings
        self._limit = options.output_limit or settings.output_limit
        self._size = 0
        self._decoder = codecs.getincrementaldecoder(settings.encoding)(settings.errors)
        self._told_to_end = False
        self._reading = anyio.CancelScope()
        self._reading_ends = math.inf
        self._had_enough = False

    async def watch(self, process: Process) -> SubagentResult:
        """See the command through to its end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._feed, process)
            tasks.start_soon(self._heed_end, process)
            tasks.start_soon(self._heed_cancel, process, tasks.cancel_scope)
            await self._collect(process)
            if self._size <= self._limit:
                await process.wait()
            tasks.cancel_scope.cancel()
        return await self._result(process)

    async def _feed(self, process: Process) -> None:
        data = self._run.prompt.encode(self._settings.encoding, "replace")
        try:
            await process.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # a command need not read what it is told
        process.close_stdin()

    async def _heed_end(self, process: Process) -> None:
        await process.wait()
        self._reading_ends = anyio.current_time() + _PIPE_SECONDS
        self._reading.deadline = self._reading_ends

    async def _heed_cancel(self, process: Process, scope: anyio.CancelScope) -> None:
        await self._run.cancel_requested.wait()
        if process.returncode is None:
            self._told_to_end = True
            process.terminate()
            scope.deadline = anyio.current_time() + self._settings.grace

    async def _collect(self, process: Process) -> None:
        while data := await self._receive(process):
            await self._take(data)
            if self._size > self._limit:
                return
        await self._say(self._decoded(b"", final=True))

    async def _receive(self, process: Process) -> bytes:
        """Return what it wrote next; empty at the end, its own or that of our patience."""
        with anyio.CancelScope(deadline=self._reading_ends) as self._reading:
            return await process.receive()
        if self._had_enough:
            return b""
        # What lies in the pipe now may be its own, however busy we were; what comes later is not.
        self._had_enough = True
        data, size = b"", process.unread
        while len(data) < size and (piece := process.receive_nowait(size - len(data))):
            data += piece
        return data

    async def _take(self, data: bytes) -> None:
        room = self._limit - self._size
        self._size += len(data)
        await self._say(self._decoded(data[:room]))

    async def _say(self, text: str) -> None:
        if text:
            await self._run.emit(Text(text=text))

    def _decoded(self, data: bytes, *, final: bool = False) -> str:
        try:
            return self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise RunnerError(
                f"{self.name} wrote what is no {self._settings.encoding}: {error.reason} at byte "
                f"{error.start} of a piece; set encoding, or errors = 'replace'"
            ) from None

    async def _result(self, process: Process) -> SubagentResult:
        run = self._run
        if self._told_to_end:
            return run.result(stop_reason="cancelled", error=f"{self.name} was told to end")
        if self._size > self._limit:
            return run.result(
                stop_reason="error",
                error=f"{self.name} wrote more than {self._limit} bytes and was ended: "
                "raise output_limit, or have it write less",
            )
        if process.returncode == 0:
            return run.result()
        await process.drained(_PIPE_SECONDS)
        said = process.stderr_tail.strip()[-_STDERR_SHOWN:]
        ended = f"{self.name}: {process.exit_text}"
        return run.result(stop_reason="error", error=f"{ended}: {said}" if said else ended)
