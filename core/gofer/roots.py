"""Files below given directories, and none outside: for whoever lets a model name the path.

A path is walked component by component, each opened relative to the one before and none through a
symbolic link that was not looked at: what is checked is what is opened, so that a link put in
place meanwhile leads nowhere else. (POSIX; elsewhere the path is checked first and opened then.)
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .errors import GoferError

__all__ = ["MAX_FILE", "OutsideError", "Roots", "RootsError"]

MAX_FILE = 16 * 1024 * 1024
"""The most bytes of a file that are read or written at once."""

_MOST_LINKS = 40
_POSIX = os.open in os.supports_dir_fd
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# To go through a directory, as opposed to listing it, needs no permission to read it.
_THROUGH = _DIRECTORY | getattr(os, "O_PATH", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
# What only looks at a file does nothing to it. (Linux)
_LOOK = os.O_PATH | os.O_NOFOLLOW if sys.platform == "linux" else 0
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)

Parts = tuple[str, ...]


class RootsError(GoferError):
    """A file cannot be used: says which, and why.

    ``missing``: there is none of that name. ``failed``: it may be used, and the system would not.
    """

    def __init__(self, message: str, *, missing: bool = False, failed: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        self.failed = failed


class OutsideError(RootsError):
    """A path leads out of the roots."""


class Roots:
    """The files below some directories.

    :param directories: the roots; a relative path is taken from the first.
    :param kept: names, in small letters, of files and directories in which nothing may be written,
        wherever they stand.

    Everything here blocks: call it in a thread.
    """

    def __init__(self, directories: Sequence[Path], *, kept: Collection[str] = ()) -> None:
        self._kept = kept
        # A root may be spelt as it was given, or as it really is.
        self._roots = [(Path(os.path.realpath(root)), root.absolute()) for root in directories]

    @property
    def first(self) -> Path:
        """The real path of the first root."""
        return self._roots[0][0]

    def read(self, path: str) -> bytes:
        """Return a whole file.

        :raises RootsError: it is outside, missing, no regular file, or over 16 MiB.
        """
        with self.opened(path) as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise RootsError(f"{path!r} is over the limit of {MAX_FILE} bytes: read it in parts")
        return data

    @contextmanager
    def opened(self, path: str) -> Iterator[BinaryIO]:
        """Open a regular file for reading.

        :raises RootsError: it is outside, missing, or no regular file.
        """
        with _told(path), self._at(path) as (folder, name, _):
            # Where that can be: looked at first, for to open a device could do something already.
            number = _open(name, _LOOK or _READ, folder)
            try:
                if not stat.S_ISREG(os.fstat(number).st_mode):
                    raise RootsError(f"{path!r} is no regular file")
                with open(f"/proc/self/fd/{number}" if _LOOK else os.dup(number), "rb") as file:
                    yield file
            finally:
                os.close(number)

    def write(self, path: str, data: bytes) -> None:
        """Write a file as a whole, or leave it as it was; directories are made as needed.

        Its mode is kept, and its owner where that is allowed; a new one gets 0644.

        :raises RootsError: it is outside, a symbolic link, no regular file, or over 16 MiB.
        """
        if len(data) > MAX_FILE:
            raise RootsError(f"{len(data)} bytes are over the limit of {MAX_FILE} for one file")
        with _told(path), self._at(path, make=True, follow=False) as (folder, name, _):
            mode, owner = 0o644, None
            with suppress(FileNotFoundError):
                info = _stat(name, folder)
                if stat.S_ISLNK(info.st_mode):
                    raise RootsError(f"{path!r} is a symbolic link: write to the file itself")
                if not stat.S_ISREG(info.st_mode):
                    raise RootsError(f"{path!r} is no regular file")
                mode, owner = stat.S_IMODE(info.st_mode), (info.st_uid, info.st_gid)
            draft = f".{secrets.token_hex(8)}.tmp"
            if not _POSIX:
                draft = os.path.join(os.path.dirname(name), draft)
            number = _open(draft, _CREATE, folder, mode)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(data)
                    if _POSIX and owner is not None:
                        with suppress(PermissionError):
                            os.fchown(file.fileno(), *owner)
                    if _POSIX:
                        os.fchmod(file.fileno(), mode)
                if _POSIX:
                    os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    os.replace(draft, name)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=folder) if _POSIX else os.unlink(draft)
                raise

    def directory(self, path: str) -> Path:
        """Return the real path of a directory.

        :raises RootsError: it is outside, missing, or no directory.
        """
        with _told(path), self._at(path) as (folder, name, real):
            os.close(_open(name, _DIRECTORY, folder))
            return real

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """Return the names in a directory, sorted, each with whether it is a directory.

        :raises RootsError: it is outside, missing, or no directory.
        """
        with _told(path), self._at(path) as (folder, name, real):
            number = _open(name, _DIRECTORY, folder)
            try:
                with os.scandir(number if _POSIX else real) as found:
                    return sorted(
                        (entry.name, entry.is_dir(follow_symlinks=False)) for entry in found
                    )
            finally:
                os.close(number)

    @contextmanager
    def _at(
        self, path: str, *, make: bool = False, follow: bool = True
    ) -> Iterator[tuple[int, str, Path]]:
        """Open the directory that holds *path*; give it, the name in it, and the real path.

        No name that is given is a symbolic link, unless *follow* is off.
        """
        root, parts = self._inside(path)
        for _ in range(_MOST_LINKS):
            if not _POSIX:
                real = Path(os.path.realpath(root.joinpath(*parts)))
                within = self._inside(str(real))[1]
                if make:
                    self._check_kept(within)
                    real.parent.mkdir(parents=True, exist_ok=True)
                yield -1, str(real), real
                return
            folder = _open_root(root)
            try:
                link = self._walk(folder, parts, make=make, follow=follow)
                if link is None:
                    yield folder, parts[-1] if parts else ".", root.joinpath(*parts)
                    return
            finally:
                os.close(folder)
            root, parts = self._through(path, root, parts, *link)
        raise RootsError(f"{path!r} leads through more than {_MOST_LINKS} symbolic links")

    def _walk(
        self, folder: int, parts: Parts, *, make: bool, follow: bool
    ) -> tuple[int, str] | None:
        """Let *folder* go down to the last directory; return where a link is and what it says."""
        if make:
            self._check_kept(parts)
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
                _step(folder, part)
        return None

    def _check_kept(self, parts: Parts) -> None:
        for part in parts:
            if part.lower() in self._kept:
                raise RootsError(f"{part!r} and what is in it cannot be written to")

    def _inside(self, path: str) -> tuple[Path, Parts]:
        try:
            os.fsencode(path)
        except UnicodeError:
            raise RootsError(f"{path!r} is no name that a file can have here") from None
        if "\0" in path:
            raise RootsError(f"{path!r} holds a NUL character")
        whole = Path(path) if os.path.isabs(path) else self.first / path
        if ".." in whole.parts:
            # Not past a link by its name: what the path says is what is walked.
            whole = Path(os.path.normpath(whole))
        for real, given in self._roots:
            for root in (real, given):
                with suppress(ValueError):
                    return real, whole.relative_to(root).parts
        allowed = ", ".join(str(real) for real, _ in self._roots)
        raise OutsideError(f"{path!r} is outside of what may be used: {allowed}")

    def _through(
        self, path: str, root: Path, parts: Parts, at: int, target: str
    ) -> tuple[Path, Parts]:
        """Put what a link says in the place of it; the parts before it are no links."""
        there = os.path.normpath(root.joinpath(*parts[:at], target))
        words = [word for word in target.split("/") if word not in ("", ".")]
        try:
            # Behind a name that may be a link itself, ".." is not what it looks like.
            if ".." in itertools.dropwhile("..".__eq__, words):
                raise OutsideError(target)
            found, before = self._inside(there)
        except RootsError:
            raise OutsideError(f"{path!r} leads outside, through a link to {target!r}") from None
        return found, (*before, *parts[at + 1 :])


def _open_root(root: Path) -> int:
    """Open a directory by its real path, on which no link is."""
    anchor, *parts = root.parts
    folder = os.open(anchor, _THROUGH)
    try:
        for part in parts:
            _step(folder, part)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _step(folder: int, part: str) -> None:
    """Let the descriptor *folder* go down to *part*, which is no link."""
    below = os.open(part, _THROUGH, dir_fd=folder)
    try:
        os.dup2(below, folder, inheritable=False)
    finally:
        os.close(below)


def _open(name: str, flags: int, folder: int, mode: int = 0o777) -> int:
    return os.open(name, flags, mode, dir_fd=folder) if _POSIX else os.open(name, flags, mode)


def _stat(name: str, folder: int) -> os.stat_result:
    if _POSIX:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return os.lstat(name)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise RootsError(f"{path!r} does not exist", missing=True) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise RootsError(f"{path!r} leads through something that is no directory") from None
        raise RootsError(f"{path!r}: {error.strerror}", failed=True) from None
