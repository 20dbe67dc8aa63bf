"""What is configured of an agent: the registry's entry, with the user's settings over it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from gofer import Config, ConfigError, PluginNotSupportedError, Run, agents

from ._permissions import Policy

__all__ = ["AcpAgent", "Environment", "KnownAgent"]


def _either(what: str) -> WrapValidator:
    """Have a value of more than one type told as one thing: *what* it should be."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"should be {what}") from None

    return WrapValidator(check)


def _below(path: str) -> str:
    # Where links lead, and what a whole path is below, is seen when the directory is known.
    if os.path.normpath(path).split(os.sep)[0] == os.pardir:
        raise ValueError("should be a directory below the child's own")
    return path


class Environment(BaseModel):
    """What an agent's process finds in its environment.

    :param inherit: all of gofer's own environment, nothing of it, or the named variables.
    :param set: variables with their values.
    :param unset: variables to leave out.
    """

    model_config = ConfigDict(extra="forbid")

    inherit: Annotated[bool | list[str], _either("true, false or a list of names")] = True
    set: dict[str, str] = Field(default_factory=dict)
    unset: list[str] = []

    def variables(self, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment, made of *own*: by default of gofer's, as it is now."""
        own = _own_environment() if own is None else own
        if self.inherit is True:
            found = dict(own)
        else:
            found = {name: own[name] for name in self.inherit or () if name in own}
        for name in self.unset:
            found.pop(name, None)
        return {**found, **self.set}


_decoded: tuple[object, dict[str, str]] = (None, {})


def _own_environment() -> dict[str, str]:
    """Return the variables of this process, which are bytes to the system.

    To decode them all takes longer than anything else that a warm agent's turn begins with.
    """
    global _decoded
    as_bytes = getattr(os.environ, "_data", None)
    if as_bytes is None or _decoded[0] != as_bytes:
        _decoded = (None if as_bytes is None else as_bytes.copy(), dict(os.environ))
    return _decoded[1]


class AcpAgent(BaseModel):
    """One agent, ready to be started; the fields of ``[agents.NAME]``.

    Times are in seconds. The start-up limits hold for each of: introduction, login, opening a
    session; the longer one is for the first start in a Host, which may download something.

    :param cwd: a directory below the child's own, where the agent works.
    :param cancel_grace: how long a cancelled turn may take to answer.
    :param end_grace: how long the process may take to end after the end of its stdin, and again
        after TERM.
    :param drain: how long updates are waited for after the end of a turn; None: only where the
        turn seems unfinished.
    :param fs: whether the agent may read and write files through gofer, below its directory and
        ``roots``; ``terminal``: whether it may run commands so.
    :param warm: whether the process is kept for the next turn.
    """

    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1)
    env: Environment = Field(default_factory=Environment)
    cwd: Annotated[str, AfterValidator(_below)] | None = None
    mode: str | None = None
    model: str | None = None
    preferred_model: str | None = None
    config_options: dict[str, Annotated[str | bool, _either("a text, true or false")]] = Field(
        default_factory=dict
    )
    mcp_servers: list[dict[str, Any]] = []
    permissions: Policy = "approve"
    ask_timeout: float = Field(default=60.0, gt=0)
    ask_default: bool = False
    auth_method: str | None = None
    start_timeout: float = Field(default=60.0, gt=0)
    first_start_timeout: float = Field(default=300.0, gt=0)
    cancel_grace: float = Field(default=5.0, ge=0, le=50)
    end_grace: float = Field(default=2.0, ge=0)
    drain: float | None = Field(default=None, ge=0)
    fs: bool = False
    terminal: bool = False
    roots: list[str] = []
    warm: bool = True

    async def placed(self, run: Run) -> tuple[AcpAgent, Path]:
        """Return the settings for one run, and the directory that its agent works in.

        :raises ConfigError: that is none, or outside of the child's own.
        """
        program = self.command[0]
        settings = self
        if os.path.dirname(program) and not os.path.isabs(program):
            # No file names it, whose directory it would have been taken from.
            command = [str(run.host.cwd / program), *self.command[1:]]
            settings = self.model_copy(update={"command": command})
        if not self.cwd:
            return settings, run.cwd
        import anyio.to_thread

        return settings, await anyio.to_thread.run_sync(self._directory, self.cwd, run)

    def _directory(self, cwd: str, run: Run) -> Path:
        from gofer.roots import OutsideError, Roots, RootsError

        at = agents.where(run.spec.agent or "", run.host.config, "cwd")
        try:
            return Roots([run.cwd]).directory(cwd)
        except OutsideError:
            problem = f"leads out of the child's directory {str(run.cwd)!r}: name one below it"
        except RootsError as error:
            if error.missing:
                problem = f"there is no directory {str(run.cwd / cwd)!r}"
            else:
                problem = f"no directory to work in: {error}"
        raise ConfigError(f"{at}: {problem}")


class KnownAgent:
    """The settings of an agent that was found on PATH.

    :raises PluginNotSupportedError: it is unknown, or not installed.
    :raises ConfigError: its settings are wrong.
    """

    def __init__(self, name: str, config: Config) -> None:
        self._path = os.environ.get("PATH")
        self.config = config
        self.settings = _settings(name, config)
        self._program = shutil.which(self.settings.command[0])

    @property
    def is_there(self) -> bool:
        """Whether it need not be looked for again: PATH is the same, and its program there."""
        same = self._program is not None and self._path == os.environ.get("PATH")
        return same and os.access(str(self._program), os.X_OK)


def _settings(name: str, config: Config) -> AcpAgent:
    found = agents.find(name, config)
    own = config.agents.get(name)
    given: dict[str, Any] = {**found.agent.settings, **((own.model_extra or {}) if own else {})}
    # What is wrong with the other settings goes first: a key that is misspelt may be why there is
    # no command, or not the one that was meant.
    given["command"] = list(found.command or found.missing or (name,))
    given.pop("args", None)  # they are in it
    settings = agents.settings(name, config, AcpAgent, given, ("args",))
    if found.command is None:
        is_path = os.sep in found.missing[0]
        raise PluginNotSupportedError(
            f"agent {name!r} is not installed: {', '.join(found.missing)} is "
            f"{'no program that can be run' if is_path else 'not on PATH'}. "
            f"To install it: {found.agent.install}"
        )
    if not found.command:
        why = agents.unsupported(name, config)
        raise ConfigError(f"{agents.where(name, config)}: command is missing, and {why}")
    return settings
