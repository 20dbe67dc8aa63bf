"""Limits of a Host: how deep, and how many at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from types import TracebackType

import anyio

from .errors import ConfigError

__all__ = ["DEPTH", "DEPTH_LIMIT", "Place", "Places", "inherited_depth"]

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
        self._queue: deque[Place] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def ask(self) -> Place:
        """Ask for a place, or stand in the queue, at once; ``async with`` what it returns."""
        place = Place(self)
        if self.taken < self.total:
            self.taken += 1
            place.given = True
        else:
            self._queue.append(place)
        return place

    def _free(self) -> None:
        # A place goes straight to the next in the queue, so that nobody can slip in between.
        if self._queue:
            self._queue.popleft()._give()
        else:
            self.taken -= 1


class Place:
    """A place that was asked for: entering waits until it is given, leaving frees it."""

    __slots__ = ("_places", "_turn", "given")

    def __init__(self, places: Places) -> None:
        self.given = False
        self._places = places
        self._turn: anyio.Event | None = None

    def _give(self) -> None:
        self.given = True
        if self._turn is not None:
            self._turn.set()

    async def __aenter__(self) -> None:
        if self.given:
            return
        self._turn = anyio.Event()
        try:
            await self._turn.wait()
        except BaseException:
            if self.given:
                self._places._free()
            else:
                self._places._queue.remove(self)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._places._free()
