"""One process of the supervisor's, as gofer holds it."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
from collections import deque
from contextlib import suppress

import anyio

from . import _patience
from ._patience import exit_of, patiently, receive
from ._proc import descendants, marked, send_signal, started_at

if sys.platform != "win32":
    import fcntl
    import termios

__all__ = ["STDERR_TAIL", "TREE", "Process"]

log = logging.getLogger("gofer")

STDERR_TAIL = 64 * 1024
"""How many bytes of a process's stderr are kept, the last ones."""

TREE = "GOFER_TREE"
"""The variable by which a process, and what it starts, are known where all else has failed."""

_SWEEPS = 20

_CHUNK = 64 * 1024


class Process:
    """One process and all that it starts; made by ``Supervisor.process``.

    ``name`` is what messages call it; ``returncode`` is its exit code, or the negative number of
    the signal that ended it; None while it runs. ``sent`` counts the bytes written to its stdin.
    """

    def __init__(self, name: str, stdin: int, stdout: int, stderr: int, lifeline: socket.socket):
        self.name = name
        self.pid = 0
        self._started = 0
        self._reaper = 0
        self._mark = ""
        self._session = 0  # its supervisor's and its reaper's, which nobody else can join
        self.returncode: int | None = None
        self.left: list[int] | None = None
        self.sent = 0
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._lifeline = lifeline
        self._said = b""
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._writing: anyio.CancelScope | None = None
        self._watching: anyio.CancelScope | None = None
        self._exited = anyio.Event()
        self._gone = anyio.Event()
        self._drained = anyio.Event()
        self._attending = anyio.CancelScope(shield=True)

    # Talking to it

    async def receive(self) -> bytes:
        """Return what it wrote to stdout next; empty at the end of it."""
        return await _read(self._stdout)

    def receive_nowait(self, most: int = _CHUNK) -> bytes:
        """Return what it has written to stdout and nobody has read; empty where that is nothing."""
        try:
            return os.read(self._stdout, min(most, _CHUNK))
        except BlockingIOError:
            return b""

    @property
    def unread(self) -> int:
        """How many bytes of its stdout lie in the pipe."""
        return _lying(self._stdout)

    async def send(self, data: bytes) -> None:
        """Write to its stdin; one task at a time.

        :raises anyio.BrokenResourceError: it does not read any more, or was not waited for.
        :raises anyio.ClosedResourceError: its stdin was closed here, perhaps meanwhile.
        """
        view = memoryview(data)
        while view:
            stdin = self._stdin
            if stdin < 0:
                raise anyio.ClosedResourceError
            try:
                written = os.write(stdin, view)
                self.sent += written
                view = view[written:]
            except BlockingIOError:
                try:
                    with anyio.CancelScope() as self._writing:
                        await anyio.wait_writable(stdin)
                        continue
                finally:
                    self._writing = None
                    if self._stdin < 0:
                        os.close(stdin)
                if self._stdin >= 0:
                    raise anyio.BrokenResourceError from None
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    def stop_sending(self) -> None:
        """Have a :meth:`send` that waits for it to read fail now."""
        if self._writing is not None:
            self._writing.cancel()

    async def deafened(self) -> int:
        """Wait until nobody can read its stdin any more; return how many bytes were never read.

        One task at a time. It returns 0 also where it was closed here.

        :raises OSError: there are no descriptors left.
        """
        if self._stdin < 0:
            return 0
        watch = select.epoll()
        try:
            watch.register(self._stdin, 0)  # that an end is closed is told all the same
            with anyio.CancelScope() as self._watching:
                await anyio.wait_readable(watch.fileno())
        finally:
            self._watching = None
            watch.close()
        return _lying(self._stdin) if self._stdin >= 0 else 0

    def close_stdin(self) -> None:
        """Close its stdin: most agents end then."""
        stdin, self._stdin = self._stdin, -1
        if self._watching is not None:
            self._watching.cancel()
        if self._writing is not None:
            self._writing.cancel()  # who waits for it closes it
        elif stdin >= 0:
            os.close(stdin)

    @property
    def stderr_tail(self) -> str:
        """The last 64 KiB of its stderr."""
        return b"".join(self._tail)[-STDERR_TAIL:].decode(errors="replace")

    # Its end

    async def wait(self) -> int:
        """Wait for its own exit; return the code, or the negative number of the signal.

        What it started may still live, and may hold its pipes open.
        """
        await self._exited.wait()
        assert self.returncode is not None
        return self.returncode

    async def drained(self, seconds: float) -> None:
        """Wait until its stderr has been read to the end, so long at most."""
        with anyio.move_on_after(seconds):
            await self._drained.wait()

    def terminate(self) -> None:
        """Send TERM to its process group."""
        self._tell(b"T")

    def kill(self) -> None:
        """Send KILL to its process group."""
        self._tell(b"K")

    async def end(self, grace: float = 2.0) -> None:
        """End it and all that it started, and wait until nothing of it lives.

        Its stdin is closed; *grace* seconds later its group gets TERM, and after as many again
        the whole tree is ended. To be called shielded from cancellation, or again.
        """
        self.close_stdin()
        if grace > 0:
            await self._exits_within(grace)
            if not self._exited.is_set():
                self.terminate()
                await self._exits_within(grace)
        self._tell(b"E")
        if not await patiently(self._gone.wait, self._session, self.name):
            self._sweep("its reaper does not answer")
            with anyio.move_on_after(_patience.LOOK_SECONDS):
                await self._gone.wait()
        if self.left:
            log.error("%s: processes %s could not be ended", self.name, self.left)

    async def _exits_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._exited.wait()

    @property
    def exit_text(self) -> str:
        """How it ended, for an error message."""
        if self.returncode is None:
            return "it is still running"
        if self.returncode >= 0:
            return f"it exited with code {self.returncode}"
        try:
            return f"it was ended by {signal.Signals(-self.returncode).name}"
        except ValueError:
            return f"it was ended by signal {-self.returncode}"

    def _tell(self, command: bytes) -> None:
        with suppress(OSError):  # the reaper has ended, and with it all of the tree
            self._lifeline.send(command)

    def _sweep(self, why: str) -> None:
        """Kill what can be found of it, and its reaper, where those do not whose task it is."""
        log.error("%s: %s; what can be found of its processes is killed", self.name, why)
        self.left = []
        for _ in range(_SWEEPS):  # what is killed may just have started another
            found = self._found()
            if not found:
                break
            for pid, started in found.items():
                send_signal(pid, started, signal.SIGKILL)

    def _found(self) -> dict[int, int]:
        found = dict(marked(f"{TREE}={self._mark}".encode())) if self._mark else {}
        if self.pid and started_at(self.pid) == self._started:
            found |= {self.pid: self._started, **dict(descendants(self.pid))}
        with suppress(ProcessLookupError):  # its id may be another process's by now
            if os.getsid(self._reaper) == self._session != 0:
                found |= dict(descendants(self._reaper))
                found[self._reaper] = started_at(self._reaper)
        return found

    # What a task does for it, until it has ended

    async def _attend(self) -> None:
        # Who is cancelled still waits for its end, and that is heard here.
        with self._attending:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen)
                tasks.start_soon(self._drain_stderr)
                if self.pid:
                    tasks.start_soon(self._see_exit)

    async def _listen(self) -> None:
        try:
            while not self._gone.is_set():
                data = await receive(self._lifeline)
                if not data:
                    break
                *lines, self._said = (self._said + data).split(b"\n")
                for line in lines:
                    self._heard(json.loads(line))
            if self.left is None:
                self._sweep("the supervisor and its reaper were killed")
        finally:
            if self.returncode is None:
                self.returncode = -signal.SIGKILL
            self._exited.set()
            self._gone.set()

    async def _see_exit(self) -> None:
        """See that its exit becomes known, also where those have been stopped who tell of it."""
        if not await exit_of(self.pid, self._started):
            return
        if not await patiently(self._exited.wait, self._session, self.name):
            self._sweep("nobody tells how it exited")
            self.returncode = -signal.SIGKILL
            self._exited.set()

    def _heard(self, message: dict[str, object]) -> None:
        if "exit" in message:
            self.returncode = int(str(message["exit"]))
            self._exited.set()
        elif "left" in message:
            left = message["left"]
            self.left = list(left) if isinstance(left, list) else []
            self._gone.set()
            if "reaper" in message:
                what = "was killed or failed, and the supervisor killed what it had started"
                log.error("%s: its reaper (status %s) %s", self.name, message["reaper"], what)

    async def _drain_stderr(self) -> None:
        try:
            while data := await _read(self._stderr):
                if log.isEnabledFor(logging.DEBUG):
                    said = data.decode(errors="replace").rstrip()
                    log.debug("%s stderr: %s", self.name, said)
                self._tail.append(data)
                self._tail_size += len(data)
                while self._tail_size - len(self._tail[0]) >= STDERR_TAIL:
                    self._tail_size -= len(self._tail.popleft())
        finally:
            self._drained.set()

    def _close(self) -> None:
        self.close_stdin()
        os.close(self._stdout)
        os.close(self._stderr)
        with suppress(OSError):  # where gofer was forked, a copy of it is open elsewhere
            self._lifeline.shutdown(socket.SHUT_RDWR)
        self._lifeline.close()


def _lying(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


async def _read(fd: int) -> bytes:
    while True:
        # Most often there is nothing yet; to try that first costs more than to wait.
        await anyio.wait_readable(fd)
        with suppress(BlockingIOError):
            return os.read(fd, _CHUNK)
