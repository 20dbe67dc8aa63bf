"""The registry of agents: which there are, which are installed here, in which version."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gofer import Config, ConfigError, PluginNotSupportedError, agents
from gofer._versions import versions
from gofer.cli import app

SEED = ["gemini", "goose", "opencode", "kilo", "cline", "devin", "claude", "codex"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there, and the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, script: str = "exit 0", mode: int = 0o755) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(mode)
    return program


def config(**entries: Any) -> Config:
    return Config.model_validate({"agents": entries})


def test_those_that_everybody_expects_come_first_and_in_order() -> None:
    assert agents.names()[: len(SEED)] == SEED
    assert agents.names(config(mine={"command": ["x"]}, codex={}))[-1] == "mine"
    assert len(agents.names(config(codex={}))) == len(agents.names())


@pytest.mark.parametrize("name", agents.names())
def test_each_entry_says_how_it_is_started_and_installed(name: str) -> None:
    agent = agents.AGENTS[name]
    assert agent.name == name
    assert agent.runner == "acp"
    assert agent.install
    assert all(command and all(command) for command in agent.commands)
    for command in agent.commands:
        if command[0] == "npx":  # never whatever is the newest
            assert "@" in command[-1][1:]
            assert not command[-1].endswith("@latest")


def test_what_is_on_path_is_found_as_soon_as_it_is_there_and_no_longer(path: Path) -> None:
    assert agents.find("opencode").missing == ("opencode",)
    assert not agents.find("opencode").installed
    program = put(path, "opencode")
    assert agents.find("opencode").command == ("opencode", "acp")
    program.unlink()
    assert not agents.find("opencode").installed
    assert agents.find("opencode", path="/nowhere").command is None
    put(path, "opencode", mode=0o644)
    assert not agents.find("opencode").installed
    (path / "opencode").unlink()
    (path / "opencode").mkdir()
    assert not agents.find("opencode").installed


def test_without_a_path_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert not any(found.installed for found in agents.find_all())


def test_an_adapter_that_is_here_goes_before_one_that_would_be_fetched(path: Path) -> None:
    put(path, "npx")
    assert agents.find("claude").missing == ("claude-agent-acp",)
    put(path, "claude")
    assert agents.find("claude").command == (
        "npx", "-y", "@agentclientprotocol/claude-agent-acp@0.49.0",
    )  # fmt: skip
    assert not agents.find("claude").tells_version
    put(path, "claude-agent-acp")
    assert agents.find("claude").command == ("claude-agent-acp",)
    assert agents.find("claude").tells_version


def test_every_program_that_it_needs_must_be_there(path: Path) -> None:
    assert agents.find("pi").missing == ("pi-acp", "pi")
    put(path, "pi-acp")
    assert agents.find("pi").missing == ("pi",)
    put(path, "pi")
    assert agents.find("pi").installed


@pytest.mark.parametrize("name", ["emacs", "", "Gemini", "gemini ", "cursor"])
def test_an_unknown_one_is_unsupported_and_those_there_are_are_listed(name: str) -> None:
    with pytest.raises(PluginNotSupportedError) as caught:
        agents.find(name, config(mine={"command": ["x"]}))
    assert f"agent {name!r} is unsupported" in str(caught.value)
    assert "gemini, goose, opencode" in str(caught.value)
    assert "mine" in str(caught.value)
    assert f"[tool.gofer.agents.{name}]" in str(caught.value)
    guess = "; did you mean gemini?" if name.lower().strip() == "gemini" else ""
    assert f"{name!r} is unsupported{guess}; the" in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "command"),
    [
        ({"command": ["my-agent", "--acp"]}, ("my-agent", "--acp")),
        ({"command": "my-agent --acp 'a b'"}, ("my-agent", "--acp", "a b")),
        ({"command": ["my-agent"], "args": ["-v"]}, ("my-agent", "-v")),
        ({"args": ["-v"]}, ("opencode", "acp", "-v")),
        ({"mode": "x"}, ("opencode", "acp")),
    ],
)
def test_a_user_changes_how_it_is_started(path: Path, entry: Any, command: Any) -> None:
    put(path, "my-agent")
    put(path, "opencode")
    found = agents.find("opencode", config(opencode=entry))
    assert found.command == command
    assert found.configured


def test_a_users_own_agent_may_belong_to_another_runner(path: Path) -> None:
    found = agents.find("mine", config(mine={"runner": "my-runner", "anything": 3}))
    assert found.agent.runner == "my-runner"
    assert found.command == ()
    missing = agents.find("mine", config(mine={"command": ["nothing"]}))
    assert missing.missing == ("nothing",)
    assert "check the command of [tool.gofer.agents.mine]" in missing.agent.install


@pytest.mark.parametrize(
    "entry", [{"command": 3}, {"command": []}, {"command": "a 'b"}, {"args": 3}]
)
def test_a_command_that_is_none_is_an_error(entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"\[tool.gofer.agents.codex\]"):
        agents.find("codex", config(codex=entry))


# Versions


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="processes are Linux's")
async def test_versions_are_asked_of_the_programs(path: Path, tmp_path: Path) -> None:
    put(path, "opencode", '[ "$1" = --version ] && echo 1.18.33')
    put(path, "gemini", 'echo "warning: 3 things" >&2; echo "gemini-cli v0.61.0-beta.2 (node)"')
    put(path, "goose", "echo ' 1.2.3' >&2; exit 1")
    put(path, "kilo", "echo none of that")
    put(path, "cline", f"/bin/sleep 8001 & echo $! > {tmp_path}/pid; read line; /bin/sleep 8002")
    put(path, "vibe-acp", "exec /nowhere/at/all")
    put(path, "npx", f"echo 9.9; echo run >> {tmp_path}/fetched")
    put(path, "codex")
    told = await versions(agents.find_all(), seconds=2)
    assert told == {"opencode": "1.18.33", "gemini": "0.61.0-beta.2", "goose": "1.2.3"}
    assert "fetched" not in os.listdir(tmp_path)
    tool = int((tmp_path / "pid").read_text())
    assert not os.path.exists(f"/proc/{tool}")  # noqa: ASYNC240


@pytest.mark.anyio
async def test_elsewhere_than_on_linux_no_version_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, "opencode", "echo 1.18.33")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert await versions(agents.find_all()) == {}


# The command


def test_the_command_lists_them_for_people(path: Path, tmp_path: Path) -> None:
    put(path, "opencode", "echo 1.18.33")
    (tmp_path / "gofer.toml").write_text("")
    lines = CliRunner().invoke(app, ["agents"]).stdout.splitlines()
    assert lines[0].split() == ["name", "installed", "version", "runner", "command"]
    table = {line.split()[0]: line.split()[1:] for line in lines[1:] if line[0] != " "}
    assert table["opencode"] == ["yes", "1.18.33", "acp", "opencode", "acp"]
    assert table["gemini"] == ["no", "-", "acp", "-"]
    after = lines[lines.index(next(line for line in lines if line.startswith("gemini"))) + 1]
    assert after.startswith("    needs gemini: npm install -g @google/gemini-cli")


def test_the_command_lists_them_for_programs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(path, "opencode", "echo 1.18.33")
    result = CliRunner().invoke(app, ["agents", "--json"])
    assert result.exit_code == 0
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert list(rows)[: len(SEED)] == SEED
    assert rows["opencode"] == {
        "name": "opencode",
        "installed": True,
        "version": "1.18.33",
        "runner": "acp",
        "command": "opencode acp",
        "missing": [],
        "install": agents.AGENTS["opencode"].install,
        "configured": False,
    }
    assert rows["pi"]["installed"] is False
    assert rows["pi"]["missing"] == ["pi-acp", "pi"]


def test_the_command_can_leave_every_program_alone(path: Path, tmp_path: Path) -> None:
    put(path, "opencode", f"echo run > {tmp_path}/run; echo 1.18.33")
    result = CliRunner().invoke(app, ["agents", "--json", "--no-version"])
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["opencode"]["installed"] is True
    assert rows["opencode"]["version"] is None
    assert not (tmp_path / "run").exists()
