"""Looks for files and in files: a program of its own, on the standard library.

A regular expression can take for ever, and nothing can stop it but the end of its process. Reads
its order as JSON on stdin: ``root`` (a real path), ``glob``, and for a search ``pattern``; writes
what it found. Symbolic links are not followed, those neither that are put in place meanwhile: each
directory is opened relative to the one above it (POSIX).
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

__all__ = ["main"]

_SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"}
_MOST_FILES = 1000
_MOST_LINES = 200
_LINE = 400
_FILE = 4 * 1024 * 1024
_DEEPEST = 100

_POSIX = os.open in os.supports_dir_fd
_NO_LINK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_DIRECTORY = _NO_LINK | getattr(os, "O_DIRECTORY", 0)

Opener = Callable[[], int]


def _files(root: str, glob: str) -> Iterator[tuple[str, Opener]]:
    """Give the files that *glob* matches, each with what opens it for reading."""
    match = re.compile(_pattern(glob)).match
    for path, opener in _walk(root) if _POSIX else _walk_by_path(root):
        if match(path):
            yield path, opener


def _walk(root: str) -> Iterator[tuple[str, Opener]]:
    anchor, *parts = _parts(root)
    folder = os.open(anchor, _DIRECTORY)
    try:
        for part in parts:
            below = os.open(part, _DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = below
        yield from _below(folder, "", 0)
    finally:
        os.close(folder)


def _below(folder: int, above: str, depth: int) -> Iterator[tuple[str, Opener]]:
    with os.scandir(folder) as found:
        entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    for name, is_directory in entries:
        if not is_directory:
            yield above + name, partial(os.open, name, _NO_LINK, dir_fd=folder)
    for name, is_directory in entries:
        if not is_directory or name in _SKIPPED or depth == _DEEPEST:
            continue
        try:
            below = os.open(name, _DIRECTORY, dir_fd=folder)
        except OSError:
            continue
        try:
            yield from _below(below, f"{above}{name}/", depth + 1)
        finally:
            os.close(below)


def _walk_by_path(root: str) -> Iterator[tuple[str, Opener]]:
    for folder, folders, names in os.walk(root, followlinks=False):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            path = os.path.join(folder, name)
            below = os.path.relpath(path, root).replace(os.sep, "/")
            yield below, partial(os.open, path, _NO_LINK)


def _parts(root: str) -> list[str]:
    parts: list[str] = []
    while True:
        root, name = os.path.split(root)
        if not name:
            return [root, *reversed(parts)]
        parts.append(name)


def _pattern(glob: str) -> str:
    """Return the regular expression of a glob: ``**`` crosses directories, ``*`` does not."""
    if "/" not in glob:
        glob = f"**/{glob}"
    glob = glob.removeprefix("./")
    parts: list[str] = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob):
        if piece == "**/":
            parts.append("(?:.*/)?")
        elif piece == "**":
            parts.append(".*")
        elif piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif piece.startswith("[") and piece.endswith("]"):
            parts.append(fnmatch.translate(piece).removeprefix("(?s:").rpartition(")")[0])
        else:
            parts.append(re.escape(piece))
    return f"(?s:{''.join(parts)})\\Z"


def _lines(path: str, opener: Opener, pattern: re.Pattern[str]) -> Iterator[str]:
    try:
        number = opener()
    except OSError:
        return
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return
        data = b""
        with suppress(OSError):
            data = file.read(_FILE + 1)
    if b"\0" in data:
        return
    # Not splitlines: whoever goes on with a line of read_file counts by this sign alone.
    for count, line in enumerate(data[:_FILE].decode(errors="replace").split("\n"), 1):
        if pattern.search(line.rstrip("\r")):
            yield f"{path}:{count}: {line.rstrip()[:_LINE]}"
    if len(data) > _FILE:
        yield f"[… {path}: only its first {_FILE} bytes were searched …]"


def main() -> None:
    """Do what stdin asks."""
    order = json.loads(sys.stdin.buffer.read())
    root, glob = order["root"], order["glob"]
    found = 0
    if "pattern" not in order:
        for path, _ in _files(root, glob):
            if found == _MOST_FILES:
                print("[… more files match: narrow the pattern …]")
                return
            found += 1
            print(path)
        return
    pattern = re.compile(order["pattern"])
    for path, opener in _files(root, glob):
        for line in _lines(path, opener, pattern):
            if found == _MOST_LINES:
                print("[… more lines match: narrow the pattern or the glob …]")
                return
            found += 1
            print(line)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    main()
