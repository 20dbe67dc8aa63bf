"""Environments of their own: nothing of this one's packages, settings or variables is in them."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Venv", "clean_environment"]

_SECONDS = 600.0
_OWN = ("GOFER_", "PYTHON", "PYTEST_", "VIRTUAL_ENV", "COV_", "HYPOTHESIS_")


def clean_environment(home: Path) -> dict[str, str]:
    """Return this environment without what could lead to what is installed or set up here.

    *home* is for settings and data; the cache stays the user's, so that pip loads nothing twice.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    return kept | {
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONIOENCODING": "utf-8",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


class Venv:
    """A fresh virtual environment.

    :param pip: whether it has a pip of its own; another's can install into it in any case.
    """

    def __init__(self, path: Path, home: Path, *, pip: bool) -> None:
        venv.create(path, with_pip=pip, symlinks=os.name != "nt")
        self.path = path
        self.bin = path / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"
        self.environment = clean_environment(home) | {"VIRTUAL_ENV": str(path)}
        self.environment["PATH"] = f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    @property
    def site(self) -> Path:
        """Where its packages are."""
        if os.name == "nt":
            return self.path / "Lib" / "site-packages"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.path / "lib" / version / "site-packages"

    def run(
        self,
        *command: str | Path,
        cwd: Path,
        code: int | None = 0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, and check its exit code; None: whatever it is."""
        words = [str(word) for word in command]
        own = self.bin / words[0]
        done = subprocess.run(
            [str(own) if own.exists() else words[0], *words[1:]],
            cwd=cwd,
            env=self.environment | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        assert code is None or done.returncode == code, _told(words, done)
        return done

    def pip(self, *words: str | Path, cwd: Path, into: Venv | None = None) -> None:
        """Have its pip do something, *into* another environment if that is given."""
        where = ["--python", str(into.python)] if into is not None else []
        # What is imported is compiled then: that is little of all.
        rest = ["--no-compile"] if words[0] == "install" else []
        self.run("python", "-m", "pip", *where, *words, *rest, "--quiet", cwd=cwd)


def _told(words: Sequence[str], done: subprocess.CompletedProcess[str]) -> str:
    return (
        f"{' '.join(words)} exited with {done.returncode}\n"
        f"--- stdout\n{done.stdout[-8000:]}\n--- stderr\n{done.stderr[-8000:]}"
    )
