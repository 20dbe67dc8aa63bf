"""For tests of what is built on gofer: scripted parts, and the conformance kit for runners.

:class:`ScriptedModel` and :class:`ScriptedRunner` play a script; :mod:`gofer.testing.fake_agent`
is an agent that does. A subclass of :class:`RunnerConformance` tests a runner with pytest against
all that users of gofer rely on; ``gofer certify NAME`` does the same with an installed one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conformance import RunnerConformance
    from .scripted import Item, Script, ScriptedModel, ScriptedRunner

__all__ = ["Item", "RunnerConformance", "Script", "ScriptedModel", "ScriptedRunner"]

# The kit's pytest plugin is loaded in every project where gofer is installed: nothing else is.
_HOMES = {
    ".conformance": ("RunnerConformance",),
    ".scripted": ("Item", "Script", "ScriptedModel", "ScriptedRunner"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker reads the imports above, and finds wrong names

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
