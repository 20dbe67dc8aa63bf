"""The refusals that an agent has yet to read, so that it can be read meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from gofer import RunnerError

from ._errors import Lost

__all__ = ["Refusals"]

_MOST = 4 * 1024 * 1024
"""How many bytes of them may wait."""
_DEAF_SECONDS = 10.0
"""How long an agent may read nothing when that many wait, and ask on."""


class Refusals:
    """A queue of lines with a bound, written by a task that lives while there are any.

    ``size`` is how many bytes wait.

    :param write: sends a line; raises :class:`Lost` where nobody reads any more.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._lines: deque[bytes] = deque()
        self.size = 0
        self._progress = anyio.Event()

    def __bool__(self) -> bool:
        return bool(self._lines)

    async def add(self, line: bytes, tasks: TaskGroup) -> None:
        """Have *line* written by a task of *tasks*; wait where there is no room for it.

        :raises RunnerError: the agent reads nothing.
        """
        while self.size >= _MOST:
            with anyio.move_on_after(_DEAF_SECONDS) as waiting:
                await self._progress.wait()
            if waiting.cancelled_caught:
                raise RunnerError(
                    f"it asks without reading its answers: {len(self._lines)} refusals "
                    f"({self.size} bytes, the limit is {_MOST}) wait, and it has read nothing "
                    f"for {_DEAF_SECONDS:g} s"
                )
        self._lines.append(line)
        self.size += len(line)
        if len(self._lines) == 1:
            tasks.start_soon(self._send)

    def has_read(self) -> None:
        """Take note that the agent has read something."""
        if self._lines:
            self._progress.set()
            self._progress = anyio.Event()

    async def _send(self) -> None:
        while self._lines:
            line = self._lines[0]
            with suppress(Lost):
                await self._write(line)
            self.has_read()
            self._lines.popleft()
            self.size -= len(line)
