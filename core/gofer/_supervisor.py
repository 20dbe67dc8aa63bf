"""The supervisor of a Host's processes (Linux): a program of its own, on the standard library.

    python -I -S -c PROGRAM SOURCE_ROOT CONTROL_FD PARENT_PIDFD      (see ``_launch``)

gofer sends it, over the control socket, one message for each process to start; with it come five
descriptors: stdin, stdout and stderr of the new process, its lifeline, and a memory file with the
order as JSON (argv, cwd, environment; bytes are spelt as Latin-1). For each the supervisor forks a
*reaper*, which makes itself the subreaper of all that the process starts, in whatever session and
however often it forks: what loses its parent becomes the reaper's child. So a tree is known
exactly, and when the reaper has no child left, nothing of it lives.

Over its lifeline a reaper says, one JSON object a line, ``{"pid": N, "parent": ITS_OWN}`` or
``{"errno": N}`` at the start, ``{"exit": STATUS}`` when the process itself has ended, and
``{"left": [PIDS]}`` when all of its tree has. It is told ``T`` (TERM to the process's group), ``K``
(KILL to the group) and ``E`` (end the whole tree: TERM, a grace, KILL). The end of the lifeline, or
of gofer, means KILL to the whole tree; so even SIGKILL of gofer leaves nothing. The tree of a
reaper that is killed itself falls to the supervisor, which kills it and says
``{"left": [], "reaper": STATUS}`` in the reaper's stead, perhaps before the reaper could say
anything.

A reaper that is stopped is told by the supervisor to go on; one that is stopped again and again is
killed. The supervisor itself is looked after by gofer, and goes on when gofer ends (see ``_proc``).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress

from ._proc import become_subreaper, children, drain, poll_of, wakeup_on_child
from ._reaper import Reaper, say

__all__ = ["main"]

# Who suspends whole jobs, and honestly, does not come again so soon.
_AGAIN = 0.1


class _Supervisor:
    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._wakeup = wakeup_on_child()
        self._reapers: dict[int, socket.socket] = {}
        self._bereft: dict[socket.socket, int] = {}
        self._stopped: dict[int, float] = {}

    def run(self) -> None:
        """Serve until gofer closes the control socket or ends; then see that nothing is left."""
        poll = poll_of(self._control.fileno(), self._wakeup, self._parent)
        while self._step(poll.poll()):
            pass
        # Every reaper sees the same end and ends its tree; this waits until they have.
        self._control.close()
        poll = poll_of(self._wakeup)
        while self._collect():
            poll.poll()
            drain(self._wakeup)

    def _step(self, events: list[tuple[int, int]]) -> bool:
        for fd, _ in events:
            if fd == self._wakeup:
                drain(fd)
                self._collect()
            elif fd == self._parent:
                return False
            else:
                try:
                    message, fds, _, _ = socket.recv_fds(self._control, 16, 5)
                except OSError:
                    return False
                if not message:
                    return False
                if len(fds) == 5:
                    self._fork_reaper(fds)
                else:  # we have no more descriptors; gofer sees the end of the lifeline
                    for passed in fds:
                        os.close(passed)
        return True

    def _fork_reaper(self, fds: list[int]) -> None:
        *stdio, lifeline_fd, order_fd = fds
        lifeline = socket.socket(fileno=lifeline_fd)
        try:
            pid = os.fork()
        except OSError as error:
            say(lifeline, {"errno": error.errno})
            lifeline.close()
        else:
            if not pid:
                self._be_reaper(lifeline, order_fd, stdio)
            self._reapers[pid] = lifeline
        for fd in (*stdio, order_fd):
            os.close(fd)

    def _be_reaper(self, lifeline: socket.socket, order_fd: int, stdio: list[int]) -> None:
        code = 1
        try:
            self._control.close()
            os.close(self._wakeup)
            for other in (*self._reapers.values(), *self._bereft):
                other.close()
            with open(order_fd, "rb") as file:
                order = json.loads(file.read())
            Reaper(lifeline, self._parent).run(order, stdio)
            code = 0
        except Exception:
            import traceback  # hardly ever needed, and long to load

            traceback.print_exc()
        finally:
            os._exit(code)

    def _collect(self) -> bool:
        """Reap dead reapers, kill what one that was killed left here; is a child left?

        Those that were stopped go on.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self._console()
                return False
            if not pid:
                break
            if os.WIFSTOPPED(status):
                if pid in self._reapers:
                    self._rouse(pid)
                continue
            self._stopped.pop(pid, None)
            lifeline = self._reapers.pop(pid, None)
            if lifeline is not None and status:
                self._bereft[lifeline] = os.waitstatus_to_exitcode(status)
            elif lifeline is not None:
                lifeline.close()
        orphans = [pid for pid in children() if pid not in self._reapers]
        for orphan in orphans:
            with suppress(OSError):
                os.kill(orphan, signal.SIGKILL)
        if not orphans:
            self._console()
        return True

    def _rouse(self, reaper: int) -> None:
        now = time.monotonic()
        again = now - self._stopped.get(reaper, -_AGAIN) < _AGAIN
        self._stopped[reaper] = now
        os.kill(reaper, signal.SIGKILL if again else signal.SIGCONT)

    def _console(self) -> None:
        for lifeline, status in self._bereft.items():
            say(lifeline, {"left": [], "reaper": status})
            lifeline.close()
        self._bereft.clear()


def main() -> None:
    """Serve the gofer that started this program."""
    # What it starts must find every signal as usual: handlers go at an exec, to ignore stays.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    become_subreaper()
    _Supervisor(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run()
    os._exit(0)  # gofer waits for it, and there is nothing left to tidy up
