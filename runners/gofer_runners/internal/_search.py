"""Looks for files and in files: a program of its own, on the standard library.

A regular expression can take for ever, and nothing can stop it but the end of its process. Reads
its order as JSON on stdin: ``root``, ``glob``, and for a search ``pattern``; writes what it found.
Symbolic links are not followed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator

__all__ = ["main"]

_SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"}
_MOST_FILES = 1000
_MOST_LINES = 200
_LINE = 400
_FILE = 4 * 1024 * 1024


def _files(root: str, glob: str) -> Iterator[str]:
    match = re.compile(_pattern(glob)).match
    for folder, folders, names in os.walk(root, followlinks=False):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if match(path.replace(os.sep, "/")):
                yield path


def _pattern(glob: str) -> str:
    """Return the regular expression of a glob: ``**`` crosses directories, ``*`` does not."""
    if "/" not in glob:
        glob = f"**/{glob}"
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


def _lines(root: str, path: str, pattern: re.Pattern[str]) -> Iterator[str]:
    try:
        number = os.open(os.path.join(root, path), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return
    with os.fdopen(number, "rb") as file:
        data = file.read(_FILE)
    if b"\0" in data:
        return
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if pattern.search(line):
            yield f"{path}:{number}: {line[:_LINE]}"


def main() -> None:
    """Do what stdin asks."""
    order = json.loads(sys.stdin.buffer.read())
    root, glob = order["root"], order["glob"]
    found = 0
    if "pattern" not in order:
        for path in _files(root, glob):
            if found == _MOST_FILES:
                print("[… more files match: narrow the pattern …]")
                return
            found += 1
            print(path)
        return
    pattern = re.compile(order["pattern"])
    for path in _files(root, glob):
        for line in _lines(root, path, pattern):
            if found == _MOST_LINES:
                print("[… more lines match: narrow the pattern or the glob …]")
                return
            found += 1
            print(line)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    main()
