"""What a process has one of, and a runner must leave alone."""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ProcessState"]


@dataclass(frozen=True)
class ProcessState:
    """The working directory, the environment, and so on, at one moment."""

    cwd: str
    environ: dict[str, str]
    umask: int
    handlers: dict[int, Any]
    objects: dict[str, Any]
    log_level: int
    log_handlers: tuple[Any, ...]

    @classmethod
    def now(cls) -> ProcessState:
        """Return it as it is."""
        umask = os.umask(0)
        os.umask(umask)
        return cls(
            cwd=_cwd(),
            environ=dict(os.environ),
            umask=umask,
            handlers={number: signal.getsignal(number) for number in signal.valid_signals()},
            objects={name: getattr(sys, name) for name in _OBJECTS},
            log_level=logging.root.level,
            log_handlers=tuple(logging.root.handlers),
        )

    def changes(self, later: ProcessState) -> list[str]:
        """Return what is different later, in words."""
        found = []
        if self.cwd != later.cwd:
            found.append(f"the working directory of the process became {later.cwd}")
        for name in sorted(self.environ.keys() | later.environ.keys()):
            if self.environ.get(name) != later.environ.get(name):
                found.append(f"os.environ[{name!r}] was changed")
        if self.umask != later.umask:
            found.append(f"the umask became {later.umask:#o}")
        for number, handler in self.handlers.items():
            if later.handlers.get(number) != handler:
                found.append(f"the handler of {_name(number)} was replaced")
        for name, value in self.objects.items():
            if later.objects[name] is not value:
                found.append(f"sys.{name} was replaced")
        if (self.log_level, self.log_handlers) != (later.log_level, later.log_handlers):
            found.append("the root logger was given another level or other handlers")
        return found

    def restore(self) -> None:
        """Make it so again."""
        if _cwd() != self.cwd and Path(self.cwd).is_dir():
            os.chdir(self.cwd)
        for name in os.environ.keys() - self.environ.keys():
            del os.environ[name]
        for name, value in self.environ.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        os.umask(self.umask)
        for number, handler in self.handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        for name, value in self.objects.items():
            setattr(sys, name, value)
        logging.root.setLevel(self.log_level)
        if tuple(logging.root.handlers) != self.log_handlers:
            logging.root.handlers[:] = self.log_handlers


_OBJECTS = ("stdin", "stdout", "stderr", "excepthook", "unraisablehook")


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "(gone)"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
