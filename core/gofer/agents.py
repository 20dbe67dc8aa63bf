"""The registry of agents: which there are, how each is started, whether it is installed here.

Agents are data. A user adds or overrides one in ``[agents.NAME]`` of a ``gofer.toml``, or in
``[tool.gofer.agents.NAME]`` of a ``pyproject.toml``.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from ._config_errors import config_error, with_key
from ._config_sources import did_you_mean
from .config import AgentConfig, Config
from .errors import ConfigError, PluginNotSupportedError

__all__ = [
    "AGENTS",
    "Agent",
    "Found",
    "find",
    "find_all",
    "names",
    "settings",
    "unsupported",
    "where",
]

M = TypeVar("M", bound=BaseModel)

_NPX = ("npx", "-y")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


# Named tuples: to make a dataclass takes every short command several times as long.
class Agent(NamedTuple):
    """One agent.

    :param name: what ``spec.agent`` says.
    :param commands: the ways to start it, the best first; one can be used where its first word
        and all that it requires are on PATH.
    :param requires: programs that every way needs.
    :param requires_with: programs that a way needs besides, by its first word: what a package
        runner fetches is no sign that the agent itself is there.
    :param install: how to install it, as a sentence.
    :param runner: the runner that drives it.
    :param settings: further settings for that runner.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    install: str
    requires: tuple[str, ...] = ()
    requires_with: Mapping[str, tuple[str, ...]] = _NOTHING
    runner: str = "acp"
    settings: Mapping[str, Any] = _NOTHING


class Found(NamedTuple):
    """An agent as it stands on this machine.

    ``command`` is how it would be started, None where it is not installed: then ``missing`` names
    what the best way to start it lacks on PATH.
    """

    agent: Agent
    command: tuple[str, ...] | None
    missing: tuple[str, ...] = ()
    configured: bool = False

    @property
    def tells_version(self) -> bool:
        """Whether its program is its own, and not one that would download it."""
        return bool(self.command) and (self.command or ())[:2] != _NPX

    @property
    def installed(self) -> bool:
        """Whether all that it needs is on PATH."""
        return self.command is not None


def _npm(package: str) -> str:
    return f"npm install -g {package}"


AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent(
            "gemini",
            (("gemini", "--acp"),),
            f"{_npm('@google/gemini-cli')}, then run gemini once and log in",
        ),
        Agent(
            "goose",
            (("goose", "acp"),),
            "install goose from its project's page, then run goose configure",
        ),
        Agent(
            "opencode",
            (("opencode", "acp"),),
            f"{_npm('opencode-ai')}, then run opencode auth login",
        ),
        Agent(
            "kilo",
            (("kilo", "acp"),),
            f"{_npm('@kilocode/cli')}, then run kilo auth login",
            settings={"preferred_model": "kilo/nvidia/nemotron-3-ultra-550b-a55b:free"},
        ),
        Agent("cline", (("cline", "--acp"),), f"{_npm('cline')}, then run cline auth"),
        Agent(
            "devin",
            (("devin", "acp"),),
            "install the Devin CLI and log in, or set WINDSURF_API_KEY",
        ),
        Agent(
            "claude",
            (
                ("claude-agent-acp",),
                (*_NPX, "@agentclientprotocol/claude-agent-acp@0.49.0"),
            ),
            f"{_npm('@agentclientprotocol/claude-agent-acp')}, "
            "then log in with claude or set ANTHROPIC_API_KEY",
            requires_with={"npx": ("claude",)},
            # It tells of usage after the answer.
            settings={"drain": 0.05},
        ),
        Agent(
            "codex",
            (("codex-acp",), (*_NPX, "@agentclientprotocol/codex-acp@2.6.0")),
            f"{_npm('@agentclientprotocol/codex-acp')}, "
            "then log in with codex or set OPENAI_API_KEY",
            requires_with={"npx": ("codex",)},
        ),
        Agent(
            "copilot",
            (("copilot", "--acp", "--no-auto-update"),),
            f"{_npm('@github/copilot')}, then run copilot and log in",
        ),
        Agent("qwen", (("qwen", "--acp"),), f"{_npm('@qwen-code/qwen-code')}, then run qwen once"),
        Agent(
            "pi",
            (("pi-acp",),),
            f"{_npm('pi-acp @earendil-works/pi-coding-agent')}, then run pi once",
            requires=("pi",),
        ),
        Agent(
            "vibe",
            (("vibe-acp",),),
            "pip install mistral-vibe, then run vibe once",
            settings={"drain": 0.05},
        ),
        Agent(
            "fast-agent",
            (("fast-agent-acp", "-x"),),
            "pip install fast-agent-mcp, then write fastagent.config.yaml",
        ),
        Agent(
            "openhands",
            (("openhands", "acp"),),
            "pip install openhands, then run openhands once",
            settings={"cancel_grace": 30.0, "first_start_timeout": 600.0},
        ),
    )
}


def names(config: Config | None = None) -> list[str]:
    """Return the names of all agents: the registry's, then the user's own."""
    own = config.agents if config is not None else {}
    return [*AGENTS, *(name for name in own if name not in AGENTS)]


def unsupported(name: str, config: Config | None = None) -> str:
    """Say that gofer knows no such agent, which there are, and how to add one."""
    others = [other for other in names(config) if other != name]
    said = (
        f"agent {name!r} is unsupported{did_you_mean(name, others)}; "
        f"the supported agents are: {', '.join(others)}"
    )
    if config is not None and name in config.agents:
        return said
    return (
        f"{said}. Add it as [agents.{name}] of a gofer.toml, or [tool.gofer.agents.{name}] of a "
        "pyproject.toml, with its command, if it speaks the Agent Client Protocol"
    )


def where(name: str, config: Config, *key: str | int) -> str:
    """Return where a setting of a user's agent stands, as messages name it: file and key.

    Where it stands in no file, that is where the agent's table does.
    """
    whole = ("agents", name, *key)
    return with_key(config.origin(*whole), whole)


def settings(
    name: str, config: Config, model: type[M], data: Mapping[str, Any], more: Collection[str] = ()
) -> M:
    """Return an agent's settings as an instance of its runner's *model*.

    :param data: all that the model is to be made of; what the user wrote stands in *config*.
    :param more: keys that a user may write and the model does not have.
    :raises ConfigError: they do not fit the model; it names each file, key and reason.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # Those of any agent, whichever runner drives it, were taken before.
        others = {*more, *AgentConfig.model_fields} - model.model_fields.keys()
        table = ("agents", name)
        raise config_error(
            error, model, lambda loc: config.origin(*table, *loc), table, others
        ) from None


def find(name: str, config: Config | None = None, path: str | None = None) -> Found:
    """Look for an agent; nothing is remembered between calls.

    In a user's entry ``command`` is a list of words, or one line of them; without one, ``args``
    are added to the words that the registry knows. ``~`` begins a program below the user's home. A
    relative one with a slash is taken from the directory of the file that names it; one that no
    file names stays as it is, and counts as there: where it is taken from is its runner's to say.

    :param path: where to look, like PATH; None: the PATH of this process, now.
    :raises PluginNotSupportedError: there is no such agent; lists those there are.
    :raises ConfigError: the user's command is none.
    """
    own = config.agents.get(name) if config is not None else None
    known = AGENTS.get(name)
    if config is None or own is None:
        if known is None:
            raise PluginNotSupportedError(unsupported(name, config))
        agent = known
    else:
        agent = _configured(name, known, own, config)
    if not agent.commands:
        # Another runner's agent: whether it is installed is that runner's to say.
        return Found(agent, (), configured=own is not None)
    path = os.environ.get("PATH", "") if path is None else path
    missing: list[tuple[str, ...]] = []
    for command in agent.commands:
        program = command[0]
        needed = (program, *agent.requires, *agent.requires_with.get(program, ()))
        absent = tuple(word for word in needed if not _is_there(word, path))
        if not absent:
            return Found(agent, command, configured=own is not None)
        missing.append(absent)
    return Found(agent, None, missing[0], configured=own is not None)


def _configured(name: str, known: Agent | None, own: AgentConfig, config: Config) -> Agent:
    given = own.model_extra or {}
    at = where(name, config, "command")
    args = _words(where(name, config, "args"), given.get("args", []))
    if "command" in given:
        command = _words(at, given["command"])
        if not command:
            raise ConfigError(f"{at}: is empty: give the program and its arguments")
        if not command[0].strip():
            raise ConfigError(f"{at}: its first word is empty: that is the program to start")
        program = _from_its_file(os.path.expanduser(command[0]), name, config)
        commands: tuple[tuple[str, ...], ...] = ((program, *command[1:], *args),)
    else:
        commands = tuple((*words, *args) for words in known.commands) if known is not None else ()
    if known is not None and "command" not in given:
        return known._replace(commands=commands, runner=own.runner)
    return Agent(
        name,
        commands,
        f"check {at}",
        runner=own.runner,
        settings=known.settings if known is not None else {},
    )


def _words(at: str, value: Any) -> list[str]:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ConfigError(f"{at}: {value!r} cannot be split: {error}") from None
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    raise ConfigError(f"{at}: should be a list of words, not {value!r}")


def _from_its_file(program: str, name: str, config: Config) -> str:
    if not _is_relative(program):
        return program
    origin = config.origin("agents", name, "command")
    folders = [file.parent for file in config.files if origin.startswith(f"{file}:")]
    return str(folders[0] / program) if folders else program


def _is_relative(program: str) -> bool:
    """Return whether it is a path, and one that only a directory makes whole."""
    return bool(os.path.dirname(program)) and not os.path.isabs(program)


def find_all(config: Config | None = None, path: str | None = None) -> list[Found]:
    """Look for every agent, in the order of :func:`names`."""
    return [find(name, config, path) for name in names(config)]


def _is_there(program: str, path: str) -> bool:
    return _is_relative(program) or shutil.which(program, path=path) is not None
