"""Limits of a Host: how deep, and how many at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from types import TracebackType

import anyio

from .errors import ConfigError

__all__ = ["DEPTH", "DEPTH_LIMIT", "Places", "inherited_depth"]

DEPTH = "GOFER_DEPTH"
DEPTH_LIMIT = "GOFER_DEPTH_LIMIT"


def inherited_depth(environ: Mapping[str, str] = os.environ) -> tuple[int, int | None]:
    """Return the depth this process runs at, and the limit a gofer above it set, if any.

    :raises ConfigError: a variable is no whole number.
    """
    numbers: list[int | None] = []
    for name in (DEPTH, DEPTH_LIMIT):
        text = environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{name} is {text!r}: a whole number is needed; unset it")
        numbers.append(int(text) if text else None)
    return numbers[0] or 0, numbers[1]


class Places:
    """A number of places; who finds none waits, first come, first served."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._queue: deque[anyio.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    async def __aenter__(self) -> None:
        if self.taken < self.total and not self._queue:
            self.taken += 1
            return
        turn = anyio.Event()
        self._queue.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._free()
            else:
                self._queue.remove(turn)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._free()

    def _free(self) -> None:
        # A place goes straight to the next in the queue, so that nobody can slip in between.
        if self._queue:
            self._queue.popleft().set()
        else:
            self.taken -= 1
