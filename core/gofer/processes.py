"""Child processes that cannot outlive their Host, with all that they start.

On Linux each is started through the Host's supervisor (see ``_supervisor``), which knows every
process below it. Elsewhere there are none yet.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ._launch import Launched
from ._not_started import reason
from ._patience import exit_of, patiently, receive
from ._proc import descendants, send_signal, started_at
from ._process import STDERR_TAIL, TREE, Process
from .errors import GoferError, PluginNotSupportedError, RunnerError

__all__ = ["STDERR_TAIL", "Process", "Supervisor"]

log = logging.getLogger("gofer")

_START_SECONDS = 30.0


class _NotTakenError(Exception):
    """The supervisor has ended before it saw the order, or could not take it."""


class Supervisor:
    """Starts processes, each with a lifeline to this one; an async context manager.

    A Host has one: ``await host.supervisor()``. The program that does it is started at once, and
    again if it was killed; what it had started goes on, and ends, in any case.

    :param launched: the program, where it has been started already; by default it is now.
    :raises PluginNotSupportedError: the platform has no processes that can be supervised.
    """

    def __init__(self, launched: Launched | None = None) -> None:
        self._launched = launched
        self._open = False

    @property
    def pid(self) -> int:
        """The process that supervises; all that is started is below it."""
        return self._launched.program.pid if self._launched is not None else 0

    async def __aenter__(self) -> Supervisor:
        if sys.platform != "linux":
            raise PluginNotSupportedError(
                f"agent processes need Linux for now, not {sys.platform}: "
                "use the llama-server or the internal runner"
            )
        self._launched = self._launched or Launched()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        # Every process was ended by the task that owns it, so this is a matter of milliseconds.
        with anyio.CancelScope(shield=True):
            await self._stop()

    async def _stop(self) -> None:
        assert self._launched is not None
        self._open = False
        self._launched.hang_up()
        pid = self.pid
        if not await patiently(partial(exit_of, pid), pid, "closing"):
            found = dict(descendants(pid))
            log.error("the supervisor does not end: it is killed, with processes %s", [*found])
            for below, started in found.items():
                send_signal(below, started, signal.SIGKILL)
        self._launched.kill()

    @asynccontextmanager
    async def process(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        name: str | None = None,
        grace: float = 2.0,
        merge_stderr: bool = False,
    ) -> AsyncIterator[Process]:
        """Start a process; leaving the block ends it and all that it started.

        Its stderr is read all the time. It leads a session and a process group of its own.

        :param argv: the program and its arguments; the program is looked up on the PATH of
            *environment*.
        :param name: what messages call it; by default the program.
        :param grace: see :meth:`Process.end`.
        :param merge_stderr: let its stderr go where its stdout goes.
        :raises RunnerError: it cannot be started; says why.
        """
        process = await self._start(argv, cwd, environment, name or argv[0], merge_stderr)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process._attend)
                try:
                    yield process
                finally:
                    with anyio.CancelScope(shield=True):
                        await process.end(grace)
                    process._attending.cancel()
        finally:
            process._close()

    async def _start(
        self,
        argv: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        name: str,
        merge: bool,
    ) -> Process:
        if not self._open:
            raise GoferError("the supervisor is not open")
        what = f"{' '.join(argv)!r} cannot be started in {str(cwd)!r}"
        for _ in range(2):
            try:
                mark = os.urandom(8).hex()
                order = _order(argv, cwd, {**environment, TREE: mark})
                process, theirs = _open_pipes(name, order, merge)
                process._mark = mark
            except (OSError, ValueError) as error:
                raise RunnerError(f"{what}: {error}") from None
            try:
                try:
                    process._session = await self._order(theirs)
                finally:
                    for fd in set(theirs):
                        os.close(fd)
                because = partial(reason, argv, cwd, environment)
                starting = partial(_await_start, process, what, because)
                if await patiently(starting, process._session, name, _START_SECONDS):
                    return process
            except _NotTakenError:
                # Killed when the order was on its way: another may be told.
                process._close()
            except BaseException:
                await _call_off(process)
                raise
            else:
                process._close()
                raise RunnerError(f"{what}: the supervisor does not answer")
        raise RunnerError(f"{what}: the supervisor has ended, or has no descriptors left")

    async def _order(self, fds: list[int]) -> int:
        """Send an order, to another supervisor where the one there was has been killed.

        Return the process it was sent to.
        """
        for _ in range(2):
            launched = self._launched
            if launched is None or not self._open:
                raise GoferError("the supervisor is not open")
            try:
                await _send_fds(launched.control, fds)
            except (BrokenPipeError, ConnectionResetError):
                # There is no await in between: all who see its end find the same one in its place.
                if launched is self._launched:
                    self._launched = Launched()
                    launched.kill()
            else:
                return launched.program.pid
        raise RunnerError("the supervisor of agent processes ends as soon as it is started")


def _order(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> bytes:
    words = [word for pair in environment.items() for word in pair]
    order = {"argv": argv, "cwd": [str(cwd)], "env": words}
    spelt = {
        key: [os.fsencode(word).decode("latin-1") for word in value] for key, value in order.items()
    }
    return json.dumps(spelt).encode()


def _open_pipes(name: str, order: bytes, merge: bool) -> tuple[Process, list[int]]:
    """Return a process to be, and the descriptors to send for it."""
    opened: list[int] = []
    try:
        ours: list[int] = []
        theirs: list[int] = []
        for outwards in (True, False, False):
            ends = os.pipe()
            opened += ends
            mine = ends[1] if outwards else ends[0]
            ours.append(mine)
            theirs.append(ends[0] if outwards else ends[1])
            os.set_blocking(mine, False)
        memory = os.memfd_create("gofer")
        opened.append(memory)
        view = memoryview(order)
        while view:
            view = view[os.write(memory, view) :]
        os.lseek(memory, 0, os.SEEK_SET)
        lifeline, far = socket.socketpair()
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    lifeline.setblocking(False)
    if merge:
        os.dup2(theirs[1], theirs[2], inheritable=False)
    stdin, stdout, stderr = ours
    return Process(name, stdin, stdout, stderr, lifeline), [*theirs, far.detach(), memory]


async def _await_start(
    process: Process, what: str, because: Callable[[dict[str, Any]], str]
) -> None:
    while b"\n" not in process._said:
        data = await receive(process._lifeline)
        if not data:
            raise _NotTakenError
        process._said += data
    line, _, process._said = process._said.partition(b"\n")
    said = json.loads(line)
    if said.get("reaper", 0) < 0:
        # Killed as soon as it had started the process, and maybe by that: it ended, with all of it.
        process._heard(said)
        return
    if "pid" not in said:
        raise RunnerError(f"{what}: {because(said)}")
    process.pid, process._reaper = said["pid"], said["parent"]
    process._started = started_at(process.pid)
    *lines, process._said = process._said.split(b"\n")
    for line in lines:
        process._heard(json.loads(line))


async def _call_off(process: Process) -> None:
    """See that nothing lives of what may have been started."""

    async def end() -> None:
        while await receive(process._lifeline):
            pass

    process._lifeline.shutdown(socket.SHUT_WR)
    with anyio.CancelScope(shield=True):
        if not await patiently(end, process._session, process.name):
            log.error("%s was called off, and its reaper does not answer", process.name)
    process._close()


async def _send_fds(channel: socket.socket, fds: list[int]) -> None:
    while True:
        try:
            socket.send_fds(channel, [b"start"], fds)
        except BlockingIOError:
            await anyio.wait_writable(channel)
        else:
            return
