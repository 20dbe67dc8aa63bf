"""What is configured of an agent: the registry's entry, with the user's settings over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ._permissions import Policy

__all__ = ["AcpAgent", "Environment"]


class Environment(BaseModel):
    """What an agent's process finds in its environment.

    :param inherit: all of gofer's own environment, nothing of it, or the named variables.
    :param set: variables with their values.
    :param unset: variables to leave out.
    """

    model_config = ConfigDict(extra="forbid")

    inherit: bool | list[str] = True
    set: dict[str, str] = Field(default_factory=dict)
    unset: list[str] = Field(default_factory=list)

    def variables(self, own: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment, made of *own*."""
        names = own if self.inherit is True else self.inherit or []
        found = {name: own[name] for name in names if name in own and name not in self.unset}
        return {**found, **self.set}


class AcpAgent(BaseModel):
    """One agent, ready to be started; the fields of ``[tool.gofer.agents.NAME]``.

    Times are in seconds. The start-up limits hold for each of: introduction, login, opening a
    session; the longer one is for the first start in a Host, which may download something.

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
    cwd: str | None = None
    mode: str | None = None
    model: str | None = None
    preferred_model: str | None = None
    config_options: dict[str, str | bool] = Field(default_factory=dict)
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
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
    roots: list[str] = Field(default_factory=list)
    warm: bool = True
