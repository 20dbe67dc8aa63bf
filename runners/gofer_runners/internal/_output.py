"""Output of any length, kept within a limit."""

from __future__ import annotations

from collections import deque

__all__ = ["Middle", "cut"]


class Middle:
    """Collects bytes and keeps the first and the last of them; what is between is left out."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.size = 0

    def add(self, data: bytes) -> None:
        """Take what came next."""
        self.size += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data[-self._half :])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) >= self._half:
            self._tail_size -= len(self._tail.popleft())

    @property
    def text(self) -> str:
        """What is kept, with a word about what is not."""
        tail = b"".join(self._tail)[-self._half :]
        left_out = self.size - len(self._head) - len(tail)
        if not left_out:
            return (bytes(self._head) + tail).decode(errors="replace")
        head, tail_text = self._head.decode(errors="replace"), tail.decode(errors="replace")
        return f"{head}\n[… {left_out} bytes were left out here …]\n{tail_text}"


def cut(text: str, limit: int) -> str:
    """Return *text*, its middle left out where it has more than *limit* characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out} characters were left out here …]\n{text[-half:]}"
