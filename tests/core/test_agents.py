"""The registry of agents: which there are, which are installed here, in which version."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gofer import Config, ConfigError, PluginNotSupportedError, _trust, agents, load_config
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
    assert f"[agents.{name}] of a gofer.toml" in str(caught.value)
    assert f"[tool.gofer.agents.{name}] of a pyproject.toml" in str(caught.value)
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


def test_what_is_known_of_an_agent_cannot_be_changed() -> None:
    agent = agents.Agent("x", (("x",),), "install it")
    with pytest.raises(AttributeError):
        agent.runner = "other"  # type: ignore[misc]
    for field in (agent.settings, agent.requires_with):
        with pytest.raises(TypeError):
            field["key"] = "value"  # type: ignore[index]


def test_a_users_own_agent_may_belong_to_another_runner(path: Path) -> None:
    found = agents.find("mine", config(mine={"runner": "my-runner", "anything": 3}))
    assert found.agent.runner == "my-runner"
    assert found.command == ()
    missing = agents.find("mine", config(mine={"command": ["nothing"]}))
    assert missing.missing == ("nothing",)
    assert missing.agent.install == "check argument agents.mine.command"


FILES = [("gofer.toml", "agents"), ("pyproject.toml", "tool.gofer.agents")]


def written(folder: Path, name: str, table: str, text: str) -> Config:
    """Return the settings of a project with this table of an agent."""
    file = folder / name
    file.write_text(f"[{table}]\n{text}\n")
    _trust.grant(file, file.read_bytes())
    return load_config(folder)


@pytest.mark.parametrize(("file", "table"), FILES)
@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("command = 3", "command: should be a list of words, not 3"),
        ("command = [3]", "command: should be a list of words, not [3]"),
        ("command = []", "command: is empty"),
        ('command = ""', "command: is empty"),
        ('command = [""]', "command: its first word is empty"),
        ('command = [" ", "x"]', "command: its first word is empty"),
        ("""command = "'' x\"""", "command: its first word is empty"),
        ('command = "a \'b"', 'command: "a \'b" cannot be split'),
        ("args = 3", "args: should be a list of words, not 3"),
    ],
)
def test_a_command_that_is_none_is_an_error_that_says_where_it_stands(
    tmp_path: Path, file: str, table: str, entry: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        agents.find("codex", written(tmp_path, file, f"{table}.codex", entry))
    assert str(caught.value).startswith(f"{tmp_path / file}:{table}.codex.{said}")


def test_an_entry_whose_program_is_missing_says_where_it_stands(tmp_path: Path, path: Path) -> None:
    for file, table in FILES:
        settings = written(tmp_path, file, f"{table}.mine", 'command = ["nothing"]')
        install = agents.find("mine", settings).agent.install
        assert install == f"check {tmp_path / file}:{table}.mine.command"
        (tmp_path / file).unlink()


def test_a_tilde_begins_a_program_below_the_home(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program = str(put(path, "ag"))
    for command in (["~/bin/ag", "~/x", "a~"], "~/bin/ag ~/x a~"):
        found = agents.find("mine", config(mine={"command": command, "args": ["~"]}))
        assert found.command == (program, "~/x", "a~", "~")


@pytest.mark.parametrize(("file", "table"), FILES)
@pytest.mark.parametrize("word", ["./ag", "tools/ag", "../ag"])
def test_a_relative_program_is_taken_from_the_directory_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, table: str, word: str
) -> None:
    project = tmp_path / "project"
    below = project / "below"
    below.mkdir(parents=True)
    settings = written(project, file, f"{table}.mine", f'command = ["{word}", "./x"]')
    # From wherever it is looked for: what lies there is another.
    monkeypatch.chdir(below)
    (below / word).parent.mkdir(exist_ok=True)
    put((below / word).parent, "ag")
    missing = agents.find("mine", settings)
    if word != "../ag":
        assert missing.missing == (str(project / word),)
    (project / word).parent.mkdir(exist_ok=True)
    put((project / word).parent, "ag")
    command = agents.find("mine", load_config(below)).command
    assert command == (str(project / word), "./x")


def test_a_relative_program_that_no_file_names_is_left_to_its_runner() -> None:
    assert agents.find("mine", config(mine={"command": ["./ag"]})).command == ("./ag",)


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


@pytest.mark.parametrize("said", ["GitHub CLI 1.0.102.", "1.0.102.-", "1.0.102"])
def test_a_version_at_the_end_of_a_sentence_has_no_full_stop(path: Path, said: str) -> None:
    put(path, "copilot", f"echo '{said}'")
    rows = json.loads(CliRunner().invoke(app, ["agents", "--json"]).stdout)
    assert [row["version"] for row in rows if row["name"] == "copilot"] == ["1.0.102"]


def test_the_command_can_leave_every_program_alone(path: Path, tmp_path: Path) -> None:
    put(path, "opencode", f"echo run > {tmp_path}/run; echo 1.18.33")
    result = CliRunner().invoke(app, ["agents", "--json", "--no-version"])
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["opencode"]["installed"] is True
    assert rows["opencode"]["version"] is None
    assert not (tmp_path / "run").exists()
