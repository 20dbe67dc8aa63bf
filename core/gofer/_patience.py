"""Waiting for processes: for their ends, and for what supervisors and their reapers do."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable

import anyio

from ._proc import rouse, started_at

__all__ = ["LAST_SECONDS", "LOOK_SECONDS", "exit_of", "patiently", "receive"]

log = logging.getLogger("gofer")

LAST_SECONDS = 20.0
"""How long the supervisor may take to end what it has."""

# When there is nothing yet of what takes milliseconds, somebody may have been stopped. Who is
# stopped each time that he has been made to go on will never come.
LOOK_SECONDS = 1.0
_MOST_STOPS = 3


async def patiently(
    waiting: Callable[[], Awaitable[object]],
    session: int,
    name: str,
    seconds: float = LAST_SECONDS,
) -> bool:
    """Await what a supervisor or its reapers do; return whether it came.

    Where an agent, or somebody else, has stopped them, they go on, and the log says so.

    :param waiting: may be cancelled, and called again.
    :param session: theirs; 0 where none of them can have been told yet.
    :param name: who waits.
    """
    stops = 0
    with anyio.move_on_after(seconds):
        while stops < _MOST_STOPS:
            with anyio.move_on_after(LOOK_SECONDS):
                await waiting()
                return True
            if stopped := rouse(session):
                stops += 1
                what = "had been stopped, by what they supervise or by hand; they go on"
                log.warning("%s: the supervising processes %s %s", name, stopped, what)
    return False


async def exit_of(pid: int, started: int = 0) -> bool:
    """Wait until a process has ended; return False, at once, where that cannot be seen.

    :param started: when it was started, where its id may be another process's by now; 0: that is
        not known.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    try:
        # Where nothing can be read of it, the descriptor still tells: it is no worse than the id.
        if not started or started_at(pid) in (0, started):
            await anyio.wait_readable(fd)
    finally:
        os.close(fd)
    return True


async def receive(channel: socket.socket) -> bytes:
    """Return what comes next; empty at the end."""
    while True:
        try:
            return channel.recv(4096)
        except BlockingIOError:
            await anyio.wait_readable(channel)
        except ConnectionResetError:
            return b""
