"""The test matrix: ``nox`` runs lint, types, tests, lowest and docs; ``nox -s bench`` measures.

Nothing here is needed to work on gofer: the README has the two commands for that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement

PYPROJECT: dict[str, Any] = nox.project.load_toml("pyproject.toml")
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "tests", "lowest", "docs"]
nox.options.reuse_existing_virtualenvs = True
# A machine need not have every Python, not even on CI: nox says which it skipped.
nox.options.error_on_missing_interpreters = False


def _find_pyenv() -> None:
    """Let pyenv's ``python3.x`` be found for each version it has, not for the selected alone."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    newest: dict[int, tuple[int, int, int]] = {}
    for path in versions.glob("3.*.*"):
        if re.fullmatch(r"3\.\d+\.\d+", path.name):
            major, minor, patch = map(int, path.name.split("."))
            newest[minor] = max(newest.get(minor, (0, 0, 0)), (major, minor, patch))
    wanted = [newest[minor] for minor in sorted(newest) if f"3.{minor}" in PYTHONS]
    if wanted and "PYENV_VERSION" not in os.environ:
        os.environ["PYENV_VERSION"] = ":".join(".".join(map(str, parts)) for parts in wanted)


_find_pyenv()


def _group(name: str) -> list[str]:
    return list(nox.project.dependency_groups(PYPROJECT, name))


def _oldest(requirements: list[str]) -> list[str]:
    """Turn each lower bound, ``name>=version``, into a pin of just that version."""
    pins = []
    for text in requirements:
        requirement = Requirement(text)
        bounds = [
            bound.version for bound in requirement.specifier if bound.operator in (">=", "==")
        ]
        if len(bounds) != 1:
            raise ValueError(f"{text!r} says no lower bound: write name>=version")
        pins.append(f"{requirement.name}=={bounds[0]}")
    return pins


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install(*_group("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly."""
    session.install("-e", ".[mcp]", *_group("types"))
    session.run("mypy", *session.posargs)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests on each Python that is here."""
    session.install("-e", ".[local,mcp]", *_group("test"))
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the tests with the oldest versions that are allowed."""
    project = PYPROJECT["project"]
    # The extras need newer versions of some than gofer itself does.
    wanted = [*project["dependencies"], *_group("test")]
    session.install("-e", ".", *_oldest(wanted))
    session.run("pytest", "-m", "not model", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Check the links of the documentation, and run its code and the examples."""
    session.install("-e", ".[local,mcp]", *_group("test"))
    session.run("pytest", "tests/docs", *session.posargs)


@nox.session
def agents(session: nox.Session) -> None:
    """Install real agents, those that are named or all, and run the tests on each."""
    session.install("-e", ".", *_group("test"))
    wanted = {"GOFER_AGENTS": ",".join(session.posargs or ["all"])}
    # One that cannot be installed here is skipped, and the tests say so.
    session.run("python", "-m", "tests.agents.install", env=wanted, success_codes=[0, 1])
    session.run("pytest", "tests/agents", env=wanted)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure how fast gofer is."""
    session.install("-e", ".[local,mcp]", *_group("test"))
    session.run("python", "tests/bench", *session.posargs)
