"""A runner's life in a fresh environment, from wheels alone, by its author's own commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Wheels
from .venvs import Venv


@pytest.fixture(scope="module")
def fresh(wheels: Wheels, place: Path) -> Venv:
    """Return an environment with gofer and its kit, and nothing of anybody's."""
    made = Venv(place / "fresh", place / "fresh-home", pip=False)
    wheels.builder.pip("install", f"{wheels.of('gofer')}[testing]", cwd=place, into=made)
    return made


def installed(fresh: Venv, cwd: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads(fresh.run("gofer", "plugins", "--json", cwd=cwd).stdout)
    return {row["name"]: row for row in rows}


def test_the_life_of_a_runner(fresh: Venv, wheels: Wheels, tmp_path: Path) -> None:
    builder = wheels.builder

    # Written: two of them, so that one can go on when the other is broken.
    for name in ("wobbly", "steady"):
        fresh.run("gofer", "new-runner", name, cwd=tmp_path)
        wheels.build(tmp_path / f"gofer-{name}")
        builder.pip("install", "--no-deps", wheels.of(f"gofer-{name}"), cwd=tmp_path, into=fresh)
    own = tmp_path / "gofer-wobbly"

    # Found, certified, and tested by its own tests as they were written.
    assert installed(fresh, tmp_path)["wobbly"]["error"] is None
    report = fresh.run("gofer", "certify", "wobbly", "--examples", "3", "--json", cwd=tmp_path)
    assert json.loads(report.stdout)["ok"] is True
    tested = fresh.run("python", "-m", "pytest", "--gofer-examples", "3", cwd=own)
    assert " passed" in tested.stdout
    assert " failed" not in tested.stdout

    # Run.
    said = fresh.run("gofer", "run", "--runner", "wobbly", "Hello there", cwd=tmp_path)
    assert said.stdout == "Hello there\n"

    # Broken on purpose: it is set aside with a reason and a remedy, and the others work.
    module = fresh.site / "gofer_wobbly" / "__init__.py"
    module.write_text("raise RuntimeError('broken on purpose')\n")
    row = installed(fresh, tmp_path)["wobbly"]
    assert "RuntimeError: broken on purpose" in row["error"]
    assert "gofer-wobbly" in row["remedy"]
    for_people = fresh.run("gofer", "plugins", cwd=tmp_path).stdout
    assert "RuntimeError: broken on purpose" in " ".join(for_people.split())
    refused = fresh.run("gofer", "run", "--runner", "wobbly", "Hello", cwd=tmp_path, code=2)
    assert "broken on purpose" in refused.stderr
    assert refused.stdout == ""
    fresh.run("gofer", "certify", "wobbly", cwd=tmp_path, code=2)
    said = fresh.run("gofer", "run", "--runner", "steady", "Hello", cwd=tmp_path)
    assert said.stdout == "Hello\n"

    # Gone.
    builder.pip("uninstall", "--yes", "gofer-wobbly", cwd=tmp_path, into=fresh)
    assert {"wobbly", "steady"} & installed(fresh, tmp_path).keys() == {"steady"}
    unknown = fresh.run("gofer", "run", "--runner", "wobbly", "Hello", cwd=tmp_path, code=2)
    assert "wobbly" in unknown.stderr
    assert "steady" in unknown.stderr
