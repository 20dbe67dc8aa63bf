"""Each test runs on each agent; what came of it goes into the table of the documentation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import table
from .recipes import FOLDER, IN_CI, WANTED, Recipe, chosen
from .scene import Scene
from .scene import scene as new_scene
from .server import ModelServer, serve

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
WRITE = os.environ.get("GOFER_WRITE_AGENTS") == "1"

ROWS = pytest.StashKey[table.Rows]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes an agent on each."""
    if "recipe" in metafunc.fixturenames:
        # One agent after another: each is in the memory of the machine then.
        by_name = {recipe.name: recipe for recipe in chosen()}
        metafunc.parametrize("recipe", by_name.values(), ids=list(by_name), scope="session")


@pytest.fixture
def anyio_backend() -> str:
    """Return the one loop that is enough here: the runner is tested on both by its own tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    """Run the model server."""
    with serve() as server:
        yield server


@pytest.fixture
def scene(recipe: Recipe, server: ModelServer) -> Iterator[Scene]:
    """Return the agent in a scratch folder; where it is not there skip, but fail under CI."""
    if not (WANTED or IN_CI):
        pytest.skip("takes minutes: nox -s agents, or GOFER_AGENTS=all or some names")
    if not recipe.installed:
        lacking = (
            f"{recipe.name} {recipe.version} is not in {FOLDER}: "
            f"python -m tests.agents.install {recipe.name}"
        )
        (pytest.fail if IN_CI else pytest.skip)(lacking)
    with new_scene(recipe, server) as made:
        yield made


@pytest.fixture
def tell(request: pytest.FixtureRequest, recipe: Recipe) -> Callable[[str], None]:
    """Return what takes the outcome of a case, in a few words."""
    rows = request.config.stash.setdefault(ROWS, {})
    row = rows.setdefault((recipe.name, recipe.version), {})
    name = request.node.originalname.removeprefix("test_").replace("_", " ")
    row[name] = "**failed**"

    def tell(outcome: str) -> None:
        row[name] = outcome

    return tell


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table, if that is wanted."""
    rows = session.config.stash.get(ROWS, {})
    if WRITE and rows:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(table.written(page, rows), encoding="utf-8")
