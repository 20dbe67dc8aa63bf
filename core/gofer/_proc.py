"""Processes, as Linux tells of them: who is whose child, and whom a signal reaches.

On the standard library alone: the supervisor has nothing else.
"""

from __future__ import annotations

import ctypes
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
    "parent_of",
    "poll_of",
    "send_signal",
    "wakeup_on_child",
]

_PR_SET_CHILD_SUBREAPER = 36


def parent_of(pid: int) -> int:
    """Return a process's parent; 0 where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses too.
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def descendants(pid: int) -> Iterator[tuple[int, int]]:
    """Go through all below a process, each with its parent, from the top down."""
    families: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            families.setdefault(parent_of(int(name)), []).append(int(name))
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child in families.get(parent, []):
            waiting.append(child)
            yield child, parent


def children() -> list[int]:
    """Return this process's own children, those that have died and were not waited for too."""
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without it
        return [pid for pid, parent in descendants(own) if parent == own]


def send_signal(pid: int, parent: int, number: int) -> None:
    """Signal a process if it is still the one that was seen, below its parent or by now ours."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if parent_of(pid) in (parent, os.getpid()):
            signal.pidfd_send_signal(fd, number)
    except OSError:
        return
    finally:
        os.close(fd)


def become_subreaper() -> None:
    """Have what loses its parent, below this process, become its child."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def wakeup_on_child() -> int:
    """Return a descriptor that can be read when a child has ended."""
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
