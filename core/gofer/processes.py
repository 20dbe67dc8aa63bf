"""Child processes that cannot outlive their Host, with all that they start.

On Linux each is started through the Host's supervisor (see ``_supervisor``), which knows every
process below it; elsewhere it leads a process group of its own, and what can be found of its tree
is ended with it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint

from .errors import GoferError, PluginNotSupportedError, RunnerError

__all__ = ["STDERR_TAIL", "Process", "Supervisor"]

log = logging.getLogger("gofer")

STDERR_TAIL = 64 * 1024
"""How many bytes of a process's stderr are kept, the last ones."""

_CHUNK = 64 * 1024
_START_SECONDS = 30.0
_LAST_SECONDS = 20.0


class Process:
    """One process and all that it starts; made by :meth:`Supervisor.process`."""

    def __init__(self, name: str, stdin: int, stdout: int, stderr: int, lifeline: socket.socket):
        self.name = name
        self.pid = 0
        self.returncode: int | None = None
        self.left: list[int] | None = None
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._lifeline = lifeline
        self._said = b""
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._exited = anyio.Event()
        self._gone = anyio.Event()
        self._drained = anyio.Event()

    # Talking to it

    async def receive(self) -> bytes:
        """Return what it wrote to stdout next; empty at the end of it."""
        return await _read(self._stdout)

    def receive_nowait(self) -> bytes:
        """Return what it has written to stdout and nobody has read; empty where that is nothing."""
        try:
            return os.read(self._stdout, _CHUNK)
        except BlockingIOError:
            return b""

    async def send(self, data: bytes) -> None:
        """Write to its stdin.

        :raises anyio.BrokenResourceError: it does not read any more.
        :raises anyio.ClosedResourceError: its stdin was closed here.
        """
        view = memoryview(data)
        while view:
            if self._stdin < 0:
                raise anyio.ClosedResourceError
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._stdin)
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    def close_stdin(self) -> None:
        """Close its stdin: most agents end then."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

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
        for step in (self.terminate, None):
            if self._exited.is_set():
                break
            with anyio.move_on_after(grace):
                await self._exited.wait()
            if step is not None and not self._exited.is_set():
                step()
        self._tell(b"E")
        with anyio.move_on_after(_LAST_SECONDS):
            await self._gone.wait()
        if self.left:
            log.error("%s: processes %s could not be ended", self.name, self.left)

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

    # What the Host's tasks do for it

    async def _listen(self) -> None:
        try:
            while not self._gone.is_set():
                data = await _receive(self._lifeline)
                if not data:
                    break
                *lines, self._said = (self._said + data).split(b"\n")
                for line in lines:
                    self._heard(json.loads(line))
        finally:
            if self.returncode is None:
                self.returncode = -signal.SIGKILL
            self._exited.set()
            self._gone.set()

    def _heard(self, message: dict[str, object]) -> None:
        if "exit" in message:
            self.returncode = int(str(message["exit"]))
            self._exited.set()
        elif "left" in message:
            left = message["left"]
            self.left = list(left) if isinstance(left, list) else []
            self._gone.set()

    async def _drain_stderr(self) -> None:
        try:
            while data := await _read(self._stderr):
                log.debug("%s stderr: %s", self.name, data)
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
        self._lifeline.close()


class Supervisor:
    """Starts processes, each with a lifeline to this one; an async context manager.

    A Host has one: ``await host.supervisor()``.

    :raises PluginNotSupportedError: the platform has no processes that can be supervised.
    """

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Supervisor:
        if sys.platform != "linux":
            raise PluginNotSupportedError(
                f"agent processes need Linux for now, not {sys.platform}: "
                "use the llama-server or the internal runner"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            parent = os.pidfd_open(os.getpid())
        except OSError:
            parent = -1  # the end of the control socket has to do
        passed = [fd for fd in (theirs.fileno(), parent) if fd >= 0]
        program = Path(__file__).with_name("_supervisor.py")
        try:
            self._program = subprocess.Popen(  # noqa: ASYNC220 - a fork and an exec, no waiting
                [sys.executable, "-I", "-S", str(program), str(theirs.fileno()), str(parent)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if parent >= 0:
                os.close(parent)
        ours.setblocking(False)
        self._control = ours
        return self

    async def __aexit__(self, *_: object) -> None:
        control, program = self._control, self._program
        assert control is not None
        assert program is not None
        self._control = None
        control.close()
        # Every process was ended by the task that owns it, so this is a matter of milliseconds.
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_LAST_SECONDS):
                await _exit_of(program.pid)
            if program.poll() is None:
                program.kill()
                program.wait()

    @asynccontextmanager
    async def process(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        grace: float = 2.0,
        merge_stderr: bool = False,
    ) -> AsyncIterator[Process]:
        """Start a process; leaving the block ends it and all that it started.

        Its stderr is read all the time. It leads a session and a process group of its own.

        :param argv: the program and its arguments; the program is looked up on the PATH of
            *environment*.
        :param grace: see :meth:`Process.end`.
        :param merge_stderr: let its stderr go where its stdout goes.
        :raises RunnerError: it cannot be started; says why.
        """
        process = await self._start(argv, cwd, environment, merge_stderr)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process._listen)
                tasks.start_soon(process._drain_stderr)
                try:
                    yield process
                finally:
                    with anyio.CancelScope(shield=True):
                        await process.end(grace)
                    tasks.cancel_scope.cancel()
        finally:
            process._close()

    async def _start(
        self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str], merge: bool
    ) -> Process:
        if self._control is None:
            raise GoferError("the supervisor is not open")
        order = {"argv": list(argv), "cwd": str(cwd), "env": dict(environment)}
        ours: list[int] = []
        theirs: list[int] = []
        lifeline, far = socket.socketpair()
        try:
            memory = os.memfd_create("gofer")
            theirs.append(memory)
            os.write(memory, json.dumps(order).encode("utf-8", "surrogateescape"))
            os.lseek(memory, 0, os.SEEK_SET)
            for outwards in (True, False, False):
                reader, writer = os.pipe()
                ours.append(writer if outwards else reader)
                theirs.insert(len(theirs) - 1, reader if outwards else writer)
                os.set_blocking(ours[-1], False)
            lifeline.setblocking(False)
            stdio = theirs[:-1]
            if merge:
                stdio[2] = stdio[1]
            fds = [*stdio, far.fileno(), memory]
            await _send_fds(self._control, fds)
        except BaseException:
            for fd in ours:
                os.close(fd)
            lifeline.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
            far.close()
        stdin, stdout, stderr = ours
        process = Process(argv[0], stdin, stdout, stderr, lifeline)
        try:
            with anyio.fail_after(_START_SECONDS):
                await self._await_start(process, argv, cwd)
        except BaseException:
            # The end of the lifeline ends what may have been started.
            process._close()
            raise
        return process

    async def _await_start(self, process: Process, argv: Sequence[str], cwd: Path) -> None:
        while b"\n" not in process._said:
            data = await _receive(process._lifeline)
            if not data:
                raise RunnerError(f"{argv[0]!r} was not started: the supervisor has ended")
            process._said += data
        line, _, process._said = process._said.partition(b"\n")
        said = json.loads(line)
        if "pid" in said:
            process.pid = said["pid"]
            for rest in process._said.split(b"\n")[:-1]:
                process._heard(json.loads(rest))
            process._said = process._said.rpartition(b"\n")[2]
            return
        reason = os.strerror(said["errno"])
        where = f" ({said['filename']!r})" if said.get("filename") else ""
        raise RunnerError(f"{' '.join(argv)!r} cannot be started in {str(cwd)!r}: {reason}{where}")


async def _read(fd: int) -> bytes:
    while True:
        await checkpoint()
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(fd)


async def _receive(channel: socket.socket) -> bytes:
    while True:
        try:
            return channel.recv(4096)
        except BlockingIOError:
            await anyio.wait_readable(channel)
        except ConnectionResetError:
            return b""


async def _send_fds(channel: socket.socket, fds: list[int]) -> None:
    while True:
        try:
            socket.send_fds(channel, [b"start"], fds)
        except BlockingIOError:
            await anyio.wait_writable(channel)
        except (BrokenPipeError, ConnectionResetError):
            raise RunnerError("the supervisor of agent processes has ended") from None
        else:
            return


async def _exit_of(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        await anyio.wait_readable(fd)
    finally:
        os.close(fd)
