"""What can be set, for all children and for one, and the agent that the settings name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from gofer import PluginNotSupportedError, PluginValidationError, SubagentSpec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

__all__ = ["Options", "Settings", "load_agent", "options_of"]

_Reference = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]


class Settings(BaseModel):
    """The settings in ``[tool.gofer.runners.pydantic-ai]``.

    :param agent: the agent, as ``module:attribute``; it is imported when it is first needed.
    :param request_limit: how many requests to its model one child may make.
    :param sessions: how many conversations are kept, to be resumed.
    :param session_bytes: how much all of them may take; the ones used longest ago go.
    """

    model_config = ConfigDict(extra="forbid")

    agent: _Reference = Field(description="module:attribute, such as my_agents:reviewer")
    request_limit: int = Field(50, gt=0)
    sessions: int = Field(64, ge=0)
    session_bytes: int = Field(64 * 1024 * 1024, ge=0)


class Options(BaseModel):
    """What ``SubagentSpec.options`` may hold for one child."""

    model_config = ConfigDict(extra="forbid")

    request_limit: int | None = Field(None, gt=0)


def options_of(spec: SubagentSpec) -> Options:
    """Return the options of *spec*.

    :raises PluginValidationError: one is unknown or wrong; says which, and what is allowed.
    """
    try:
        return Options.model_validate(spec.options)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise PluginValidationError(
            ".".join(["pydantic-ai.options", *map(str, wrong["loc"])]),
            f"{wrong['msg']}; known are {', '.join(Options.model_fields)}",
        ) from None


def load_agent(reference: str) -> AbstractAgent[Any, Any]:
    """Import the agent that *reference*, ``module:attribute``, names.

    :raises PluginNotSupportedError: it cannot be imported, or is none; says why.
    """
    from pydantic_ai.agent import AbstractAgent

    module, _, path = reference.partition(":")
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:  # whatever a module does when it is imported
        raise PluginNotSupportedError(
            f"the agent {reference!r} cannot be imported: {type(error).__name__}: {error}; install "
            "its package here, and see runners.pydantic-ai.agent in the settings"
        ) from error
    if not isinstance(found, AbstractAgent):
        raise PluginNotSupportedError(
            f"{reference!r} is a {type(found).__name__} and no agent of pydantic-ai: see "
            "runners.pydantic-ai.agent in the settings"
        )
    return found
