"""Style and types of what is written by ``gofer new-runner``, and types of the examples."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from .conftest import EXAMPLES, ROOT, Wheels
from .venvs import Venv


@pytest.fixture(scope="module")
def tools(shared: Venv, wheels: Wheels, place: Path) -> Venv:
    """Return the shared environment, with the tools as this project has them."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        tool
        for group in ("lint", "types")
        for tool in groups["dependency-groups"][group]
        if tool.startswith(("ruff", "mypy"))
    ]
    assert len(wanted) == 2
    wheels.builder.pip("install", *wanted, cwd=place, into=shared)
    shared.environment["MYPY_CACHE_DIR"] = str(place / "mypy")
    return shared


@pytest.mark.parametrize("name", ["a", "a-rather-long-name-for-a-runner1"])
def test_what_is_written_is_clean(name: str, tools: Venv, tmp_path: Path) -> None:
    tools.run("gofer", "new-runner", name, cwd=tmp_path)
    own = tmp_path / f"gofer-{name}"
    for command in (("ruff", "check"), ("ruff", "format", "--check"), ("mypy",)):
        tools.run(*command, cwd=own)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_types_of_an_example_hold(example: str, tools: Venv) -> None:
    tools.run("mypy", cwd=ROOT / "examples" / example)
