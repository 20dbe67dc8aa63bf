"""Processes, as Linux tells of them: who is whose child, and whom a signal reaches.

On the standard library alone: the supervisor has nothing else.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress

__all__ = [
    "become_subreaper",
    "children",
    "descendants",
    "drain",
    "marked",
    "parent_of",
    "poll_of",
    "rouse",
    "send_signal",
    "started_at",
    "wakeup_on_child",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def parent_of(pid: int) -> int:
    """Return a process's parent; 0 where there is no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def started_at(pid: int) -> int:
    """Return when a process was started, which tells it from another of the same id.

    0: there is none, or nothing can be read.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses too.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _listed() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # there are no descriptors left
        return []


def descendants(pid: int) -> Iterator[tuple[int, int]]:
    """Go through all below a process, each with the time of its start, from the top down."""
    families: dict[int, list[tuple[int, int]]] = {}
    for each in _listed():
        fields = _stat(each)
        if fields:
            families.setdefault(int(fields[1]), []).append((each, int(fields[19])))
    waiting = [pid]
    while waiting:
        for child in families.get(waiting.pop(), []):
            waiting.append(child[0])
            yield child


def marked(variable: bytes) -> Iterator[tuple[int, int]]:
    """Go through all whose environment holds ``NAME=value``, each with the time of its start."""
    for each in _listed():
        try:
            with open(f"/proc/{each}/environ", "rb") as file:
                found = variable in file.read().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if found:
            yield each, started_at(each)


def children() -> list[int]:
    """Return this process's own children, those that have died and were not waited for too."""
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without it
        return [pid for pid, _ in descendants(own) if parent_of(pid) == own]


def send_signal(pid: int, started: int, number: int) -> None:
    """Signal a process if it is still the one that was started then."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if started_at(pid) == started:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        return
    finally:
        os.close(fd)


def rouse(session: int) -> list[int]:
    """Have the stopped processes of a session go on; return them. Session 0 is none."""
    stopped = []
    for each in _listed() if session else ():
        fields = _stat(each)
        if fields and fields[0] == b"T" and int(fields[3]) == session:
            send_signal(each, int(fields[19]), signal.SIGCONT)
            stopped.append(each)
    return stopped


def become_subreaper() -> None:
    """Have what loses its parent, below this process, become its child.

    And should this process be stopped when its own parent ends, it goes on.
    """
    import ctypes  # of all who import this, only the supervisor's processes need it

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def wakeup_on_child() -> int:
    """Return a descriptor that can be read when a child has ended, or was stopped."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def drain(fd: int) -> None:
    """Read all that is there."""
    with suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def poll_of(*fds: int) -> select.poll:
    """Return a poll for input from these; negative ones are left out."""
    poll = select.poll()
    for fd in fds:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return poll
