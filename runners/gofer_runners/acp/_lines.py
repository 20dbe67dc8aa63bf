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
        if self._size > self._limit or any(len(line) > self._limit for line in rest):
            raise RunnerError(
                f"it sent a message of more than {self._limit} bytes: that is the limit for one"
            )
        self._parts.append(first)
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts = [rest[-1]]
        self._size = len(rest[-1])
        return lines
