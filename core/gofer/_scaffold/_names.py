"""The names of a package, all made from that of its runner."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec

from .._discovery import RUNNERS, find
from ..errors import PluginValidationError

__all__ = ["Names", "check_name"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 32
"""So that no line of the package is too long."""


@dataclass(frozen=True)
class Names:
    """What things are called: ``name`` is the runner's, ``package`` what is installed."""

    name: str

    @property
    def package(self) -> str:
        """The distribution."""
        return f"gofer-{self.name}"

    @property
    def module(self) -> str:
        """What is imported; with this beginning it is no keyword and no module of Python's."""
        return f"gofer_{self.name.replace('-', '_')}"

    @property
    def class_(self) -> str:
        """The runner's class."""
        return "".join(part.capitalize() for part in self.name.split("-")) + "Runner"


def check_name(name: str) -> Names:
    """Return the names of a package for the runner *name*.

    :raises PluginValidationError: it is no good name, or is taken here; says why, and what to do.
    """
    names = Names(name)
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise _refused(
            f"{name[: _LONGEST + 10]!r} is no name for a runner: small letters, digits and single "
            f"hyphens between them, a letter first, {_LONGEST} at most{_instead(name)}"
        )
    if name.startswith("gofer-"):
        raise _refused(f"the package of {name!r} would be {names.package}: leave out 'gofer-'")
    for entry in find(groups=(RUNNERS,)):
        if entry.info.name == name:
            whose = "gofer's own" if entry.built_in else f"that of {entry.info.distribution}"
            raise _refused(f"the runner {name!r} is {whose}, and is installed here: choose another")
    if find_spec(names.module) is not None:
        raise _refused(
            f"the module of {name!r} would be {names.module}, which is installed here already: "
            "choose another name"
        )
    return names


def _instead(name: str) -> str:
    better = "-".join(re.findall(r"[a-z0-9]+", name.lower())).removeprefix("gofer-")
    return f"; {better!r} is one" if _NAME.fullmatch(better) and len(better) <= _LONGEST else ""


def _refused(message: str) -> PluginValidationError:
    return PluginValidationError("new-runner.NAME", message)
