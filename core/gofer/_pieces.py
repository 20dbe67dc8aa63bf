"""Text that comes in many small pieces."""

from __future__ import annotations

__all__ = ["Pieces"]

_TOGETHER = 1024


class Pieces:
    """Joins pieces of text as they come, so that many small ones take no more than their text.

    ``io.StringIO`` keeps each piece as an object of its own, some fifty bytes for each token.
    """

    __slots__ = ("_joined", "_recent")

    def __init__(self) -> None:
        self._joined: list[str] = []
        self._recent: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._recent or self._joined)

    def add(self, text: str) -> None:
        """Take the next piece."""
        self._recent.append(text)
        if len(self._recent) >= _TOGETHER:
            self._joined.append("".join(self._recent))
            self._recent.clear()

    @property
    def text(self) -> str:
        """All of it."""
        return "".join([*self._joined, *self._recent])
