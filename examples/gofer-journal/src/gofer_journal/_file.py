"""The file: one line is one write, and what cannot be written harms nobody."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

__all__ = ["JournalFile", "line_of"]

log = logging.getLogger("gofer.journal")

# Who looks at the end in the middle of another Host's write takes that for a torn line.
_writing = threading.Lock()


def line_of(entry: dict[str, Any], limit: int) -> bytes:
    """Return *entry* as a line of at most *limit* bytes: its longest texts are cut until it is."""
    entry = dict(entry)
    while len(line := _dumped(entry)) > limit:
        texts = {key: value for key, value in entry.items() if isinstance(value, str) and value}
        if not texts:  # then it is a number that is too long
            return _dumped({"cut": True})
        longest = max(texts, key=lambda key: len(texts[key]))
        entry[longest] = texts[longest][: len(texts[longest]) // 2]
        entry["cut"] = True
    return line


def _dumped(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


class JournalFile:
    """Appends lines, each with one write: a crash leaves whole lines, and at most a torn one.

    An empty line may stand where it was opened in the middle of another program's write.

    It is opened when it is first needed. Lines that cannot be written are counted; the first is
    logged, and when it works again a line says how many there were.

    :param limit: bytes of a line, at most.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.lost = 0
        self._limit = limit
        self._fd = -1
        self._torn = False
        self._told = False

    def write(self, entry: dict[str, Any]) -> None:
        """Append *entry*; never raises."""
        try:
            line = line_of(entry, self._limit)
            if self._fd < 0:
                self._open()
            if self.lost:
                # It goes first, for the lines were lost before this one.
                self._append(_dumped({"event": "lost", "lines": self.lost}))
                self.lost = 0
            self._append(line)
        except Exception as error:
            self.lost += 1
            if not self._told:
                self._told = True
                log.warning(
                    "the journal %s cannot be written (%s): the children go on without it",
                    self.path, error,
                )  # fmt: skip

    def close(self) -> None:
        """Close it; a later line opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # What children say may be private.
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _writing:
                size = os.lseek(fd, 0, os.SEEK_END)
                self._torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        except OSError:  # a pipe or a device has no end to look at
            self._torn = False
        self._fd = fd

    def _append(self, line: bytes) -> None:
        if self._torn:
            line = b"\n" + line
        with _writing:
            written = os.write(self._fd, line)
        self._torn = written < len(line) and (written > 0 or self._torn)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes were taken: is the disk full?")
