"""Server-sent events: from the bytes of a response to the data of its events.

The format is the one of the HTML standard, section 9.2.6, read as tolerantly as it is sent: lines
end with LF, CRLF or CR, comments and unknown fields are skipped, and an event may come without
the blank line that should end it.
"""

from __future__ import annotations

import json

from gofer import ModelError

__all__ = ["EVENT_LIMIT", "EventReader"]

EVENT_LIMIT = 64 * 1024 * 1024
"""How many bytes one event may have."""

_BOM = b"\xef\xbb\xbf"


class EventReader:
    """Takes bytes as they come, in pieces of any size, and gives the data of each whole event.

    The work is linear in the number of bytes. What is held is at most one event of *limit* bytes.
    """

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self._limit = limit
        self._line = bytearray()  # of the line that has not ended
        self._data: list[bytes] = []  # of the event that has not ended
        self._size = 0
        self._after_cr = False
        self._started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that *chunk* completes.

        :raises ModelError: an event is larger than the limit.
        """
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if not chunk:
            return []
        lines = chunk.splitlines()
        ended = chunk.endswith((b"\n", b"\r"))
        if ended:
            self._after_cr = chunk.endswith(b"\r")
        if self._line:
            self._line += lines[0]
            if ended or len(lines) > 1:
                lines[0] = bytes(self._line)
                self._line.clear()
            else:
                lines.clear()
        if not ended and lines:
            self._line += lines.pop()
        events = self._take(lines)
        if self._line or self._data:
            if events:
                self._size = len(self._line) + sum(map(len, self._data))
            else:
                self._size += len(chunk)
            if self._size > self._limit:
                raise ModelError(
                    f"an event of the stream is larger than {self._limit} bytes: "
                    "no completion sends that much in one piece"
                )
        else:
            self._size = 0
        return events

    def end(self) -> list[bytes]:
        """Return the data of an event that the end of the stream left without its blank line."""
        lines = [bytes(self._line), b""]
        self._line.clear()
        return self._take(lines if lines[0] else [b""])

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if not line:
                if self._data:
                    data = self._data
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    self._data = []
                continue
            if not self._started:
                self._started = True
                line = line.removeprefix(_BOM)
            if line.startswith(b"data: "):
                self._data.append(line[6:])
            elif line.startswith(b"data:"):
                self._data.append(line[5:])
            elif line.startswith(b"error:"):
                self._data.append(_error(line[6:]))
        return events


def _error(value: bytes) -> bytes:
    # Older llama.cpp servers report a failure in a field of this name instead of data.
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        value = json.dumps(value.decode(errors="replace").strip()).encode()
    return b'{"error":' + value + b"}"
