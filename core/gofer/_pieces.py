"""Text that comes in many small pieces."""

from __future__ import annotations

__all__ = ["Pieces"]

_TOGETHER = 1024
_SHARE = 32


class Pieces:
    """Joins pieces of text as they come, so that many small ones take no more than their text.

    The text is held once: it grows where it lies, as CPython lets a string grow that nobody else
    holds; elsewhere it is copied. It grows by a 32nd at a time at least, so that the work stays
    linear either way; what waits for that is joined already, but for the last 1024 pieces.
    ``io.StringIO`` holds each piece as an object of its own, or the text twice.
    """

    __slots__ = ("_joined", "_recent", "_text", "_waiting")

    def __init__(self) -> None:
        self._text = ""
        self._joined: list[str] = []
        self._recent: list[str] = []
        self._waiting = 0

    def __bool__(self) -> bool:
        return bool(self._recent or self._joined or self._text)

    def add(self, text: str) -> None:
        """Take the next piece."""
        self._recent.append(text)
        if len(self._recent) >= _TOGETHER:
            self._join()
            if self._waiting * _SHARE >= len(self._text):
                self._grow()

    @property
    def text(self) -> str:
        """All of it."""
        self._join()
        self._grow()
        return self._text

    def _join(self) -> None:
        if self._recent:
            joined = "".join(self._recent)
            self._recent.clear()
            self._joined.append(joined)
            self._waiting += len(joined)

    def _grow(self) -> None:
        if self._joined:
            more = "".join(self._joined)
            self._joined.clear()
            self._waiting = 0
            text, self._text = self._text, ""
            text += more  # in place: only this variable holds it
            self._text = text
