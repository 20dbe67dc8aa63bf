"""Programs that the harness runs: each with a limit of time and output, each ended as a tree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from gofer import Host, RunnerError

from ._output import Middle
from ._tool import ToolFailure

__all__ = ["Outcome", "own_environment", "run_command"]

_PIPE_SECONDS = 0.5
"""How long output is waited for that a program's children may still write after its end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program wrote, stdout and stderr together, and how it ended: None: out of time."""

    output: str
    returncode: int | None


async def run_command(
    host: Host,
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: dict[str, str],
    stdin: bytes = b"",
    seconds: float,
    limit: int,
) -> Outcome:
    """Run a program to its end, and end whatever it started.

    :param seconds: after so many it is ended. :param limit: bytes of output that are kept.
    :raises ToolFailure: it cannot be started.
    """
    kept = Middle(limit)
    try:
        async with _started(host, argv, cwd, environment) as process:
            with anyio.move_on_after(seconds) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_feed, process, stdin)
                    done = anyio.Event()
                    tasks.start_soon(_collect, process, kept, done)
                    await process.wait()
                    with anyio.move_on_after(_PIPE_SECONDS):
                        await done.wait()
                    if not done.is_set():
                        # A busy event loop may not have come to what it wrote itself.
                        kept.add(process.receive_nowait(process.unread))
                    tasks.cancel_scope.cancel()
            returncode = None if scope.cancelled_caught else process.returncode
    except RunnerError as error:
        raise ToolFailure(str(error)) from None
    return Outcome(kept.text, returncode)


def own_environment() -> dict[str, str]:
    """Return this process's environment, without the key of gofer's own model server."""
    return {name: value for name, value in os.environ.items() if name != "GOFER_API_KEY"}


async def _feed(process: Any, data: bytes) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.send(data)
    process.close_stdin()


async def _collect(process: Any, kept: Middle, done: anyio.Event) -> None:
    while data := await process.receive():
        kept.add(data)
    done.set()


@asynccontextmanager
async def _started(
    host: Host, argv: Sequence[str], cwd: Path, environment: dict[str, str]
) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if sys.platform == "linux":
            supervisor = await host.supervisor()
            yield await stack.enter_async_context(
                supervisor.process(
                    argv, cwd=cwd, environment=environment, grace=0.0, merge_stderr=True
                )
            )
        else:
            yield await stack.enter_async_context(_Plain(argv, cwd, environment))


class _Plain:
    """A program in a process group of its own, where there is no supervisor."""

    def __init__(self, argv: Sequence[str], cwd: Path, environment: dict[str, str]) -> None:
        self._argv, self._cwd, self._environment = list(argv), cwd, environment

    async def __aenter__(self) -> _Plain:
        try:
            self._process = await anyio.open_process(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=self._environment,
                start_new_session=os.name == "posix",
            )
        except OSError as error:
            raise RunnerError(f"{self._argv[0]!r} cannot be started: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        if os.name == "posix":
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        elif self._process.returncode is None:
            self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._process.aclose()

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(data)
        await self._process.stdin.aclose()

    def close_stdin(self) -> None:
        pass  # closed once all was sent

    unread = 0

    def receive_nowait(self, most: int) -> bytes:
        return b""

    async def receive(self) -> bytes:
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return b""
