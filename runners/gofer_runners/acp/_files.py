"""Text files that an agent reads and writes through gofer: below the roots, and none outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync

from gofer.roots import MAX_FILE, Roots, RootsError

from ._errors import INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, Refused
from ._text import as_json, cut

__all__ = ["MAX_FILE", "Files"]

_MOST_SKIPPED = 16 * MAX_FILE


class Files:
    """Reads and writes text files below *roots*; every other path is refused."""

    def __init__(self, roots: list[Path]) -> None:
        self._roots = Roots(roots)

    async def read(self, path: str, line: Any = None, limit: Any = None) -> str:
        """Return a file's text, or *limit* lines of it from *line* on, counted from 1.

        :raises Refused: it is outside, no regular file, too large, or no UTF-8; *line* or *limit*
            is no count.
        """
        first, most = _count("line", line), _count("limit", limit)
        return await run_sync(self._read, path, max(first or 1, 1), most)

    async def write(self, path: str, content: str) -> None:
        """Write a file as a whole, or leave it as it was; directories are made as needed.

        :raises Refused: it is outside, a symbolic link, no regular file, or cannot be written.
        """
        await run_sync(self._write, path, content)

    async def directory(self, path: str) -> Path:
        """Return a directory's real path.

        :raises Refused: it is outside, or no directory.
        """
        return await run_sync(self._directory, path)

    # In a thread

    def _read(self, path: str, first: int, most: int | None) -> str:
        with _checked(path), self._roots.opened(path) as reader:
            size = os.fstat(reader.fileno()).st_size
            whole = first == 1 and most is None
            if whole and size > MAX_FILE:
                raise Refused(
                    f"{path!r} has {size} bytes, over the limit of {MAX_FILE}: "
                    "read it in parts, with line and limit"
                )
            data = reader.read(MAX_FILE + 1) if whole else _lines(reader, first, most, path)
        if len(data) > MAX_FILE:
            raise Refused(f"{path!r} is over the limit of {MAX_FILE} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Refused(f"{path!r} is no UTF-8 text: {error}") from None

    def _write(self, path: str, content: str) -> None:
        with _checked(path):
            self._roots.write(path, content.encode("utf-8", "replace"))

    def _directory(self, path: str) -> Path:
        with _checked(path):
            return self._roots.directory(path)


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    # JSON has one kind of number: 2.0 is a whole one.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or value < 0:
        raise Refused(f"{name} must be a whole number, at least 0, not {cut(as_json(value))}")
    return value


def _lines(reader: Any, first: int, most: int | None, path: str) -> bytes:
    """Return some lines of a file without holding more than those."""
    found: list[bytes] = []
    size = number = skipped = 0
    while most is None or len(found) < most:
        line = reader.readline(MAX_FILE + 1)
        if not line:
            break
        if len(line) > MAX_FILE:
            raise Refused(f"{path!r} has a line of more than {MAX_FILE} bytes")
        number += 1
        if number < first:
            skipped += len(line)
            if skipped > _MOST_SKIPPED:
                raise Refused(f"line {first} of {path!r} is more than {_MOST_SKIPPED} bytes in it")
            continue
        found.append(line)
        size += len(line)
        if size > MAX_FILE:
            raise Refused(f"these lines of {path!r} are over the limit of {MAX_FILE} bytes")
    return b"".join(found)


@contextmanager
def _checked(path: str) -> Iterator[None]:
    # The protocol has absolute paths only, and ".." in one is nothing that an agent needs.
    if "\0" in path or not os.path.isabs(path):
        raise Refused(f"{path!r} is no absolute path")
    if ".." in Path(path).parts:
        raise Refused(
            f"{path!r} is outside of the directories that may be used, or may be: no '..'"
        )
    try:
        yield
    except RootsError as error:
        code = NOT_FOUND if error.missing else INTERNAL_ERROR if error.failed else INVALID_PARAMS
        raise Refused(str(error), code) from None
