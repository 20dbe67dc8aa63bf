"""Bytes of a pipe, put together to lines."""

from __future__ import annotations

from gofer import RunnerError

__all__ = ["MAX_MESSAGE", "Lines"]

MAX_MESSAGE = 64 * 1024 * 1024
"""The longest message that is read, in bytes."""


class Lines:
    """Splits what comes at its newlines, however it was cut; linear in its length.

    :param limit: the longest line that is accepted, in bytes.
    """

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that *data* completes, without their ends.

        :raises RunnerError: a line is over the limit.
        """
        first, *rest = data.split(b"\n")
        self._size += len(first)
        self._parts.append(first)
        over = self._size > self._limit
        if not over and len(data) > self._limit:
            over = any(len(line) > self._limit for line in rest)
        if over:
            raise RunnerError(
                f"it sent a message of more than {self._limit} bytes: that is the limit for one"
            )
        if not rest:
            return []
        last = rest.pop()
        rest.insert(0, b"".join(self._parts))
        self._parts = [last]
        self._size = len(last)
        return rest
