"""What the metadata of installed packages says: no code of theirs is run.

It reads what ``importlib.metadata.entry_points`` reads, and survives what that does not: of a
package whose metadata is broken it tells what is wrong, and goes on with the others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Declared", "Fault", "Package", "normal", "read"]

_FILE = "entry_points.txt"
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.M | re.I)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.M | re.I)


class Package(NamedTuple):
    """An installed package; ``key`` is its name as package indexes compare them."""

    key: str
    name: str
    version: str | None


class Declared(NamedTuple):
    """One entry point, as a package declares it."""

    group: str
    name: str
    value: str
    package: Package


class Fault(NamedTuple):
    """What is wrong with the metadata of a package, and what to do."""

    package: Package
    error: str
    remedy: str


def normal(name: str) -> str:
    """Return a package's name as package indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(groups: Collection[str]) -> tuple[list[Declared], list[Fault]]:
    """Return every entry point of *groups*, and what is wrong with the metadata of packages."""
    declared: dict[tuple[str, str, str, str], Declared] = {}
    faults: list[Fault] = []
    known: dict[str, list[_Metadata]] = {}
    for dist in _distributions():
        found = _Metadata(dist)
        others = known.setdefault(found.key, [])
        # The first on the path hides the rest, as its modules do; twice in one folder it hides
        # nothing, and nobody can tell which of the two its modules are.
        if others and others[0].parent != found.parent:
            continue
        # A folder may stand on the path twice, as it does for `python -m` in one of PYTHONPATH's.
        if any(other.place == found.place for other in others):
            continue
        others.append(found)
        text = found.entry_points()
        if isinstance(text, _Broken):
            faults.append(_unreadable(found.package, text.why))
            continue
        entries, lost = _parse(text, groups)
        if lost is not None:
            faults.append(_unreadable(found.package, lost))
        if entries:
            package = found.package
            if len(others) > 1:
                package = Package(package.key, package.name, None)
            for entry in entries:
                declared[found.key, *entry] = Declared(*entry, package)
    ours = {key for key, *_ in declared}
    faults += [_doubled(found) for key, found in known.items() if len(found) > 1 and key in ours]
    return list(declared.values()), faults


def _distributions() -> Iterator[Distribution]:
    for finder in list(sys.meta_path):
        resolve = getattr(finder, "find_distributions", None)
        if resolve is not None:
            try:
                yield from resolve(DistributionFinder.Context())
            except Exception:  # somebody's import hook, and no reason to lose all other packages
                continue


class _Broken(NamedTuple):
    why: str


class _Metadata:
    """One folder of metadata, read as far as it is needed."""

    __slots__ = ("_dist", "_head", "_stem", "folder", "key", "parent", "place")

    def __init__(self, dist: Distribution) -> None:
        self._dist = dist
        self._head: str | None = None
        path: Any = getattr(dist, "_path", None)
        # In a folder, reading bytes is faster, and tells more of a file that is broken.
        self.folder = str(path) if isinstance(path, Path) else None
        self.place = "" if path is None else str(path).rstrip("/")
        self.parent, file = os.path.split(self.place)
        self._stem = re.sub(r"\.(dist|egg)-info$", "", file, flags=re.I).split("-")
        self.key = normal(self._stem[0] or self._said(_NAME) or "unknown")

    @property
    def package(self) -> Package:
        """Its name and version: as it says, else as its folder is named."""
        name = self._said(_NAME) or self._stem[0] or self.key
        version = self._said(_VERSION) or (*self._stem[1:2], None)[0]
        return Package(self.key, name, version)

    def _said(self, field: re.Pattern[str]) -> str | None:
        if self._head is None:
            try:
                text = self._dist.read_text("METADATA") or self._dist.read_text("PKG-INFO") or ""
            except Exception:  # it is no text
                text = ""
            self._head = text.partition("\n\n")[0]
        found = field.search(self._head)
        return found[1] if found else None

    def entry_points(self) -> str | _Broken:
        try:
            if self.folder is None:
                return self._dist.read_text(_FILE) or ""
            with open(os.path.join(self.folder, _FILE), "rb") as file:
                return file.read().decode()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except UnicodeDecodeError as error:
            return _Broken(f"it is no UTF-8 text (byte {error.object[error.start]:#04x})")
        except Exception as error:
            return _Broken(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}")


def _parse(
    text: str, groups: Collection[str]
) -> tuple[dict[tuple[str, str, str], None], str | None]:
    """Return the entries of *groups*, and what other readers would stumble over."""
    entries: dict[tuple[str, str, str], None] = {}
    lost: str | None = None
    section: str | None = None
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]")
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if section is None:
            continue
        if not equals:
            lost = f"the line {line[:80]!r} in it is no entry point, name = module:attribute"
        elif section in groups:
            entries[section, name, value] = None
    return entries, lost


def _unreadable(package: Package, why: str) -> Fault:
    return Fault(
        package,
        f"its {_FILE} cannot be read: {why}",
        f"Reinstall or uninstall {package.name}: other programs may fail because of it",
    )


def _doubled(found: list[_Metadata]) -> Fault:
    package = found[0].package
    folders = " and ".join(sorted(os.path.basename(one.place) for one in found))
    return Fault(
        package,
        f"it is installed twice in {found[0].parent}: {folders}; which of them its code is, "
        "nobody can tell",
        f"Uninstall {package.name} until nothing of it is left, then install it again",
    )
