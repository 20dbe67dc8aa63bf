"""Files that an agent reads and writes through gofer: inside the roots only.

A path is walked from its root, component by component, each opened relative to the one before and
none through a symbolic link that was not looked at: what is checked is what is opened, so that a
link put in place meanwhile leads nowhere else.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from anyio.to_thread import run_sync

from ._errors import INTERNAL_ERROR, NOT_FOUND, Refused

__all__ = ["MAX_FILE", "Files"]

MAX_FILE = 16 * 1024 * 1024
"""The most bytes of a file that are read or written at once."""

_MOST_LINKS = 40
_MOST_SKIPPED = 16 * MAX_FILE


def _flags(*names: str) -> int:
    # Elsewhere than on Linux some are missing, and this module is only imported.
    return sum(getattr(os, f"O_{name}", 0) for name in names)


_DIRECTORY = _flags("RDONLY", "DIRECTORY", "NOFOLLOW", "CLOEXEC")
_LOOK = _flags("PATH", "NOFOLLOW", "CLOEXEC")
_CREATE = _flags("WRONLY", "CREAT", "EXCL", "NOFOLLOW", "CLOEXEC")

Parts = tuple[str, ...]


class Files:
    """Reads and writes text files below *roots*; every other path is refused."""

    def __init__(self, roots: list[Path]) -> None:
        # A root may be spelt as it was given, or as it really is.
        self._roots = [(Path(os.path.realpath(root)), root.absolute()) for root in roots]

    async def read(self, path: str, line: Any = None, limit: Any = None) -> str:
        """Return a file's text, or *limit* lines of it from *line* on, counted from 1.

        :raises Refused: it is outside, no regular file, too large, or no UTF-8.
        """
        first = max(line, 1) if isinstance(line, int) else 1
        most = max(limit, 0) if isinstance(limit, int) else None
        return await run_sync(self._read, path, first, most)

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
        with _told(path), self._opened(path) as (folder, name, _):
            with _regular(path, folder, name) as reader:
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
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_FILE:
            raise Refused(f"{len(data)} bytes are over the limit of {MAX_FILE} for one file")
        with _told(path), self._opened(path, make=True, follow=False) as (folder, name, _):
            mode, owner = 0o644, None
            with suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISLNK(info.st_mode):
                    raise Refused(f"{path!r} is a symbolic link: write to the file itself")
                if not stat.S_ISREG(info.st_mode):
                    raise Refused(f"{path!r} is no regular file")
                mode, owner = stat.S_IMODE(info.st_mode), (info.st_uid, info.st_gid)
            draft = f".gofer-{secrets.token_hex(8)}"
            file = os.open(draft, _CREATE, mode, dir_fd=folder)
            try:
                with os.fdopen(file, "wb") as writer:
                    writer.write(data)
                    if owner is not None:
                        with suppress(PermissionError):
                            os.fchown(writer.fileno(), *owner)
                        os.fchmod(writer.fileno(), mode)
                os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise

    def _directory(self, path: str) -> Path:
        with _told(path), self._opened(path) as (folder, name, real):
            os.close(os.open(name, _DIRECTORY, dir_fd=folder) if name != "." else os.dup(folder))
            return real

    @contextmanager
    def _opened(
        self, path: str, *, make: bool = False, follow: bool = True
    ) -> Iterator[tuple[int, str, Path]]:
        """Open the directory that holds *path*; give it, the name in it, and the real path.

        No name that is given is a symbolic link, unless *follow* is off.
        """
        root, parts = self._inside(path)
        for _ in range(_MOST_LINKS):
            folder = os.open(root, _DIRECTORY)
            try:
                link = self._walk(folder, parts, make=make, follow=follow)
                if isinstance(link, int):
                    folder = link
                    yield folder, parts[-1] if parts else ".", root.joinpath(*parts)
                    return
            finally:
                os.close(folder)
            at, target = link
            root, parts = self._follow(path, root, parts, at, target)
        raise Refused(f"{path!r} leads through more than {_MOST_LINKS} symbolic links")

    def _walk(
        self, folder: int, parts: Parts, *, make: bool, follow: bool
    ) -> int | tuple[int, str]:
        """Go down to the last directory; return it, or where a link is and what it says."""
        last = len(parts) - 1
        for at, part in enumerate(parts):
            if at == last and not follow:
                break
            try:
                return at, os.readlink(part, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):
                    raise
                if error.errno == errno.ENOENT and make and at < last:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
            if at < last:
                below = os.open(part, _DIRECTORY, dir_fd=folder)
                os.dup2(below, folder, inheritable=False)
                os.close(below)
        return folder

    def _inside(self, path: str) -> tuple[Path, Parts]:
        if "\0" in path or not os.path.isabs(path):
            raise Refused(f"{path!r} is no absolute path")
        for real, given in self._roots:
            for root in (real, given):
                try:
                    parts = Path(path).relative_to(root).parts
                except ValueError:
                    continue
                if ".." in parts:
                    break
                return real, parts
        raise Refused(f"{path!r} is outside of the directories that may be used")

    def _follow(
        self, path: str, root: Path, parts: Parts, at: int, target: str
    ) -> tuple[Path, Parts]:
        """Put what a link says in the place of it; the parts before it are no links."""
        there = os.path.normpath(root.joinpath(*parts[:at], target))
        words = [word for word in target.split("/") if word not in ("", ".")]
        try:
            # Behind a name that may be a link itself, ".." is not what it looks like.
            if ".." in words[len(list(takewhile("..".__eq__, words))) :]:
                raise Refused("")
            found, before = self._inside(there)
        except Refused:
            raise Refused(
                f"{path!r} leads outside of the directories that may be used, through a link"
            ) from None
        return found, (*before, *parts[at + 1 :])


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
def _regular(path: str, folder: int, name: str) -> Iterator[BinaryIO]:
    """Open a file to read, if it is a regular one: to open another could do something already."""
    found = os.open(name, _LOOK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise Refused(f"{path!r} is no regular file")
        with open(f"/proc/self/fd/{found}", "rb") as reader:
            yield reader
    finally:
        os.close(found)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Refused(f"{path!r} does not exist", NOT_FOUND) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused(f"{path!r} leads through something that is no directory") from None
        raise Refused(f"{path!r}: {error.strerror}", INTERNAL_ERROR) from None
