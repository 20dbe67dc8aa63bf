"""The files of a new package: filled in, and written all or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from ..errors import GoferError, PluginValidationError
from ._names import Names

__all__ = ["render", "write_package"]

# Which template becomes which file.
_FILES = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md.in": "README.md",
    "LICENSE.in": "LICENSE",
    "gitignore.in": ".gitignore",
    "noxfile.py.in": "noxfile.py",
    "ci.yml.in": ".github/workflows/ci.yml",
    "init.py.in": "src/«module»/__init__.py",
    "runner.py.in": "src/«module»/runner.py",
    "test_conformance.py.in": "tests/test_conformance.py",
}
_TYPED = "src/«module»/py.typed"


def render(names: Names, *, author: str, year: int, version: str) -> dict[str, str]:
    """Return the package's files by their paths.

    :param author: who holds the copyright.
    :param version: gofer's, the oldest that the package works with.
    """
    values = {
        "name": names.name,
        "package": names.package,
        "module": names.module,
        "class": names.class_,
        "author": author,
        "year": str(year),
        "version": version,
    }

    def fill(text: str) -> str:
        return re.sub("«([a-z]+)»", lambda found: values[found[1]], text)

    templates = files(__package__) / "templates"
    written = {
        fill(path): fill((templates / template).read_text(encoding="utf-8"))
        for template, path in _FILES.items()
    }
    return {**written, fill(_TYPED): ""}


def write_package(target: Path, package: Mapping[str, str]) -> None:
    """Write the files of *package* below *target*, which must not be there, or must be empty.

    What is there is never overwritten, and a failure leaves nothing of what was made.

    :raises PluginValidationError: something is at *target* already.
    :raises GoferError: it cannot be written; says why.
    """
    if os.path.lexists(target) and not target.is_dir():
        raise _occupied(target, "is no directory")
    made: list[Path] = []
    try:
        if target.is_dir() and any(target.iterdir()):
            raise _occupied(target, "is not empty")
        _make(target, made)
        for path, text in package.items():
            _make((target / path).parent, made)
            with open(target / path, "x", encoding="utf-8", newline="\n") as file:
                made.append(target / path)
                file.write(text)
    except BaseException as error:
        _take_back(made)
        if isinstance(error, OSError):
            raise GoferError(
                f"{error.filename or target} cannot be written: {error.strerror or error}; "
                "nothing was left behind"
            ) from error
        raise


def _make(directory: Path, made: list[Path]) -> None:
    missing = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir()
        made.append(path)


def _take_back(made: list[Path]) -> None:
    for path in reversed(made):
        # What somebody else has put there meanwhile is not ours to remove.
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()


def _occupied(target: Path, why: str) -> PluginValidationError:
    return PluginValidationError(
        "new-runner.directory",
        f"{str(target)!r} {why}: nothing is ever overwritten; name another with --directory",
    )
