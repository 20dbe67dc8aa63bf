"""The packages in examples/: installed from their wheels, tested, certified, run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .conftest import EXAMPLES
from .venvs import Venv

AGENT = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(custom_output_text="It is done. " * 50))
"""
ECHO = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdout.write(sys.stdin.read())"]
SETTINGS = f"""
[runners.command]
command = {json.dumps(ECHO)}

[runners.pydantic-ai]
agent = "an_agent_of_theirs:agent"
"""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="gofer supervises processes on Linux")


@pytest.fixture(scope="module", autouse=True)
def settings(shared: Venv) -> None:
    """Set both runners up as their users would."""
    (shared.site / "an_agent_of_theirs.py").write_text(AGENT)
    config = Path(shared.environment["XDG_CONFIG_HOME"]) / "gofer"
    config.mkdir(parents=True, exist_ok=True)
    (config / "gofer.toml").write_text(SETTINGS)


@pytest.mark.parametrize("copied", EXAMPLES, indirect=True)
def test_its_own_tests_pass(copied: Path, shared: Venv) -> None:
    done = shared.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gofer-examples", "3",
        cwd=copied,
    )  # fmt: skip
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("runner", "backend"),
    [pytest.param("command", "trio", marks=LINUX), ("pydantic-ai", "asyncio")],
)
def test_its_runner_is_certified(runner: str, backend: str, shared: Venv, tmp_path: Path) -> None:
    done = shared.run(
        "gofer", "certify", runner, "--backend", backend, "--examples", "3", "--json",
        cwd=tmp_path,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["ok"] is True


@LINUX
def test_the_journal_tells_of_a_child_on_another_package_of_theirs(
    shared: Venv, tmp_path: Path
) -> None:
    done = shared.run("gofer", "run", "--runner", "command", "Hello", cwd=tmp_path)
    assert done.stdout == "Hello\n"
    journal = Path(shared.environment["XDG_STATE_HOME"]) / "gofer" / "journal.jsonl"
    events = [json.loads(line)["event"] for line in journal.read_text().splitlines()[-5:]]
    assert events == ["request", "started", "block", "ended", "response"]


def test_all_of_them_are_found(shared: Venv, tmp_path: Path) -> None:
    done = shared.run("gofer", "plugins", "--json", cwd=tmp_path)
    found = {row["name"]: row for row in json.loads(done.stdout)}
    for name, package in (
        ("command", "gofer-command"),
        ("journal", "gofer-journal"),
        ("pydantic-ai", "gofer-pydantic-ai"),
    ):
        assert found[name]["error"] is None
        assert package in json.dumps(found[name])
