"""What can be set: for all children of the runner, and for one."""

from __future__ import annotations

import codecs
from typing import Annotated, Literal

from gofer import PluginValidationError, SubagentSpec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

__all__ = ["Options", "Settings", "options_of"]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL, which no program can be given")
    return text


def _codec(name: str) -> str:
    try:
        codecs.getincrementaldecoder(name)
        "".encode(name)
    except LookupError:
        raise ValueError("names no encoding of text that Python knows") from None
    return name


_Word = Annotated[str, AfterValidator(_without_nul)]


class Settings(BaseModel):
    """The settings in ``[tool.gofer.runners.command]``.

    :param command: the program and its arguments; it is looked up on the PATH.
    :param env: variables that it has beside those of gofer's own environment.
    :param encoding: of its stdin and stdout.
    :param errors: what becomes of bytes that are no text in that encoding.
    :param output_limit: bytes of stdout; a command that writes more is ended.
    :param grace: seconds that a cancelled command has after TERM.
    """

    model_config = ConfigDict(extra="forbid")

    command: list[_Word] = Field(min_length=1, description="a list: the program, its arguments")
    env: dict[_Word, _Word] = Field(default_factory=dict)
    encoding: Annotated[str, AfterValidator(_codec)] = "utf-8"
    errors: Literal["strict", "replace", "backslashreplace", "ignore"] = "replace"
    output_limit: int = Field(16 * 1024 * 1024, gt=0)
    grace: float = Field(2.0, ge=0, allow_inf_nan=False)


class Options(BaseModel):
    """What ``SubagentSpec.options`` may hold for one child."""

    model_config = ConfigDict(extra="forbid")

    arguments: list[_Word] = Field(default_factory=list)
    env: dict[_Word, _Word] = Field(default_factory=dict)
    output_limit: int | None = Field(None, gt=0)


def options_of(spec: SubagentSpec) -> Options:
    """Return the options of *spec*.

    :raises PluginValidationError: one is unknown or wrong; says which, and what is allowed.
    """
    try:
        return Options.model_validate(spec.options)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise PluginValidationError(
            ".".join(["command.options", *map(str, wrong["loc"])]),
            f"{wrong['msg']}; known are {', '.join(Options.model_fields)}",
        ) from None
