"""A process where there is no supervisor: in a group of its own, which is ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import psutil
from anyio.abc import Process

__all__ = ["PlainProcess", "plain_process"]

_TAIL = 64 * 1024


class PlainProcess:
    """What ``gofer.processes.Process`` is on Linux, as far as other systems have it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tail = b""
        self._drained = anyio.Event()

    async def send(self, data: bytes) -> None:
        """Write to its stdin."""
        assert self._process.stdin is not None
        await self._process.stdin.send(data)

    async def receive(self) -> bytes:
        """Return what it wrote to stdout next; empty at the end of it."""
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.receive()
        except anyio.EndOfStream:
            return b""

    async def wait(self) -> int:
        """Wait for its own exit."""
        return await self._process.wait()

    async def drained(self, seconds: float) -> None:
        """Wait until its stderr has been read to the end, so long at most."""
        with anyio.move_on_after(seconds):
            await self._drained.wait()

    @property
    def stderr_tail(self) -> str:
        """The last 64 KiB of its stderr."""
        return self._tail.decode(errors="replace")

    @property
    def exit_text(self) -> str:
        """How it ended, for an error message."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"it exited with code {code}"
        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        try:
            async for data in self._process.stderr:
                self._tail = (self._tail + data)[-_TAIL:]
        finally:
            self._drained.set()

    def _kill(self) -> None:
        with suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
        with suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)


@asynccontextmanager
async def plain_process(argv: Sequence[str]) -> AsyncIterator[PlainProcess]:
    """Start a process; leaving the block kills it, its group, and what is below it."""
    process = await anyio.open_process(argv, stderr=subprocess.PIPE, start_new_session=True)
    plain = PlainProcess(process)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(plain._drain)
        try:
            yield plain
        finally:
            plain._kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
            tasks.cancel_scope.cancel()
    with anyio.CancelScope(shield=True):
        await process.aclose()
