"""The supervisor of a Host's processes (Linux): a program of its own, on the standard library.

    python -I -S _supervisor.py CONTROL_FD PARENT_PIDFD

gofer sends it, over the control socket, one message for each process to start; with it come five
descriptors: stdin, stdout and stderr of the new process, its lifeline, and a memory file with the
order as JSON (argv, cwd, environment). For each the supervisor forks a *reaper*, which makes itself
the subreaper of all that the process starts, in whatever session and however often it forks: what
loses its parent becomes the reaper's child. So a tree is known exactly, and when the reaper has no
child left, nothing of it lives.

Over its lifeline a reaper says, one JSON object a line, ``{"pid": N}`` or ``{"errno": N}`` at the
start, ``{"exit": STATUS}`` when the process itself has ended, and ``{"left": [PIDS]}`` when all of
its tree has. It is told ``T`` (TERM to the process's group), ``K`` (KILL to the group) and ``E``
(end the whole tree: TERM, a grace, KILL). The end of the lifeline, or of gofer, means KILL to the
whole tree; so even SIGKILL of gofer leaves nothing.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36
_GRACE = 0.5
_STUCK = 10.0


def _become_subreaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _families() -> dict[int, list[int]]:
    """Return the children of every process, by its id."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name in parentheses may hold anything, parentheses too.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            found.setdefault(parent, []).append(int(name))
    return found


def _descendants(pid: int) -> list[int]:
    families = _families()
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = families.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _wakeup_on_child() -> int:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


class _Reaper:
    def __init__(self, lifeline: socket.socket, parent: int) -> None:
        self._lifeline = lifeline
        self._parent = parent
        self._wakeup = _wakeup_on_child()
        self._process = 0

    def run(self, order: dict[str, object], stdio: list[int]) -> None:
        _become_subreaper()
        try:
            process = subprocess.Popen(
                order["argv"],  # type: ignore[call-overload]
                stdin=stdio[0],
                stdout=stdio[1],
                stderr=stdio[2],
                cwd=order["cwd"],
                env=order["env"],
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            self._say({"errno": error.errno, "filename": error.filename})
            return
        except ValueError as error:
            self._say({"errno": errno.EINVAL, "filename": str(error)})
            return
        finally:
            for fd in stdio:
                os.close(fd)
        self._process = process.pid
        self._say({"pid": process.pid})
        self._serve()

    def _say(self, message: dict[str, object]) -> None:
        with suppress(OSError):  # nobody listens any more; the poll sees that too
            self._lifeline.sendall(json.dumps(message).encode() + b"\n")

    def _serve(self) -> None:
        poll = select.poll()
        for fd in (self._lifeline.fileno(), self._wakeup, self._parent):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wakeup:
                    _drain(fd)
                    self._reap()
                elif fd == self._parent:
                    self._end(grace=0)
                    return
                else:
                    try:
                        told = self._lifeline.recv(64)
                    except OSError:
                        told = b""
                    if not told:
                        self._end(grace=0)
                        return
                    if b"T" in told:
                        self._signal_group(signal.SIGTERM)
                    if b"K" in told:
                        self._signal_group(signal.SIGKILL)
                    if b"E" in told:
                        self._end(_GRACE)
                        return

    def _signal_group(self, number: int) -> None:
        # The group outlives its leader as long as a member does, and its id is not reused.
        with suppress(OSError):
            os.killpg(self._process, number)

    def _reap(self) -> bool:
        """Take the status of all that have died; return whether a child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._process:
                self._say({"exit": os.waitstatus_to_exitcode(status)})

    def _end(self, grace: float) -> None:
        if grace:
            self._strike(signal.SIGTERM)
            self._until(time.monotonic() + grace)
        stuck = time.monotonic() + _STUCK
        while self._reap() and (left := stuck - time.monotonic()) > 0:
            # What was forked since the last look is found in the next: its parent is dead by then.
            self._strike(signal.SIGKILL)
            self._await_death(left)
        self._say({"left": _descendants(os.getpid())})

    def _strike(self, number: int) -> None:
        for pid in _descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, number)

    def _until(self, deadline: float) -> None:
        while self._reap() and (left := deadline - time.monotonic()) > 0:
            self._await_death(left)

    def _await_death(self, seconds: float) -> None:
        select.select([self._wakeup], [], [], seconds)
        _drain(self._wakeup)


def _fork_reaper(control: socket.socket, parent: int, fds: list[int]) -> None:
    *stdio, lifeline_fd, order_fd = fds
    if os.fork():
        for fd in fds:
            os.close(fd)
        return
    code = 1
    try:
        control.close()
        with open(order_fd, "rb") as file:
            order = json.loads(file.read())
        _Reaper(socket.socket(fileno=lifeline_fd), parent).run(order, stdio)
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Serve until gofer closes the control socket or ends; then see that nothing is left."""
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _become_subreaper()
    wakeup = _wakeup_on_child()
    poll = select.poll()
    for fd in (control.fileno(), wakeup, parent):
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    alive = True
    while alive:
        for fd, _ in poll.poll():
            if fd == wakeup:
                _drain(fd)
                _collect()
            elif fd == parent:
                alive = False
            else:
                message, fds, _, _ = socket.recv_fds(control, 16, 5)
                if not message:
                    alive = False
                elif len(fds) == 5:
                    _fork_reaper(control, parent, fds)
    # Every reaper sees the same end and ends its tree; this waits until they have.
    control.close()
    _collect(block=True)


def _collect(*, block: bool = False) -> None:
    """Reap dead reapers; what a reaper that was killed left behind came here, and is killed."""
    while True:
        try:
            pid, _ = os.waitpid(-1, 0 if block else os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for orphan in _families().get(os.getpid(), []):
            if not _is_reaper(orphan):
                for below in (*_descendants(orphan), orphan):
                    with suppress(OSError):
                        os.kill(below, signal.SIGKILL)


def _is_reaper(pid: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe") and (
            os.getpgid(pid) == os.getpgid(0)
        )
    except OSError:
        return False


if __name__ == "__main__":
    main()
