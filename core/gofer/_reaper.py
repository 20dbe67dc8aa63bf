"""One tree of processes: started, told, and ended. See ``_supervisor``."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress

from ._proc import (
    become_subreaper,
    children,
    descendants,
    drain,
    poll_of,
    send_signal,
    wakeup_on_child,
)

__all__ = ["Reaper", "say"]

_GRACE = 0.5
_STUCK = 10.0
_LOOK_AGAIN = 0.1


def say(lifeline: socket.socket, message: dict[str, object]) -> None:
    with suppress(OSError):  # nobody listens any more; the poll sees that too
        lifeline.sendall(json.dumps(message).encode() + b"\n")


class Reaper:
    def __init__(self, lifeline: socket.socket, parent: int) -> None:
        self._lifeline = lifeline
        self._parent = parent
        self._wakeup = wakeup_on_child()
        self._process = 0
        self._exited = False

    def run(self, order: dict[str, list[str]], stdio: list[int]) -> None:
        become_subreaper()
        words = {key: [word.encode("latin-1") for word in order[key]] for key in order}
        names, values = words["env"][::2], words["env"][1::2]
        try:
            process = subprocess.Popen(
                words["argv"],
                stdin=stdio[0],
                stdout=stdio[1],
                stderr=stdio[2],
                cwd=words["cwd"][0],
                env=dict(zip(names, values, strict=True)),
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            name = error.filename
            name = os.fsdecode(name) if isinstance(name, str | bytes) else ""
            say(self._lifeline, {"errno": error.errno, "filename": name})
            return
        except ValueError as error:
            say(self._lifeline, {"errno": errno.EINVAL, "filename": str(error)})
            return
        finally:
            for fd in stdio:
                os.close(fd)
        self._process = process.pid
        say(self._lifeline, {"pid": process.pid, "parent": os.getpid()})
        self._end(self._serve())

    def _serve(self) -> float:
        """Do as told until the end is; return the grace it may take."""
        poll = poll_of(self._lifeline.fileno(), self._wakeup, self._parent)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wakeup:
                    drain(fd)
                    self._reap()
                    continue
                if fd == self._parent:
                    return 0
                try:
                    told = self._lifeline.recv(64)
                except OSError:
                    told = b""
                if not told:
                    return 0
                if b"T" in told:
                    self._signal_group(signal.SIGTERM)
                if b"K" in told:
                    self._signal_group(signal.SIGKILL)
                if b"E" in told:
                    return _GRACE

    def _signal_group(self, number: int) -> None:
        if not self._exited:
            with suppress(OSError):
                os.killpg(self._process, number)
            return
        # Its id may be another group's by now: only what is below us can be of ours.
        for pid, started in descendants(os.getpid()):
            with suppress(OSError):
                if os.getpgid(pid) == self._process:
                    send_signal(pid, started, number)

    def _reap(self) -> bool:
        """Take the status of all that have died; return whether a child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._process and not self._exited:
                self._exited = True
                say(self._lifeline, {"exit": os.waitstatus_to_exitcode(status)})

    def _end(self, grace: float) -> None:
        with suppress(OSError):  # what forks and forks must not have the CPU for itself
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        if grace and self._reap():
            self._strike(signal.SIGTERM)
            ends = time.monotonic() + grace
            while self._reap() and (left := ends - time.monotonic()) > 0:
                self._await_death(left)
        stuck = time.monotonic() + _STUCK
        thorough = False
        while self._reap() and time.monotonic() < stuck:
            # A child that is killed leaves its own children to us, for the next round: so nothing
            # slips through, however fast it forks. Only where one does not die is more needed.
            if thorough:
                self._strike(signal.SIGKILL)
            for pid in children():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            thorough = not self._await_death(_LOOK_AGAIN)
        living = [pid for pid, _ in descendants(os.getpid())] if self._reap() else []
        say(self._lifeline, {"left": living})

    def _strike(self, number: int) -> None:
        for pid, started in descendants(os.getpid()):
            send_signal(pid, started, number)

    def _await_death(self, seconds: float) -> bool:
        died = bool(poll_of(self._wakeup).poll(seconds * 1000))
        drain(self._wakeup)
        return died
