"""Every error that gofer raises, in one tree.

    GoferError
     ├── PluginError
     │    ├── PluginValidationError    arguments or a definition do not fit
     │    ├── PluginNotSupportedError  not to be had here: unknown, not installed, not possible
     │    └── PluginInternalError      a limit is reached, or a part broke its promise
     ├── PluginErrors                  several failed together (an ExceptionGroup)
     ├── ModelError                    a model server refused, failed or broke off
     │    └── ContextOverflowError     the request has more tokens than the model's context
     ├── RunnerError                   a runner could not do its run
     └── ConfigError                   a setting is wrong

A message says what was wrong, with which value, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ConfigError",
    "ContextOverflowError",
    "GoferError",
    "ModelError",
    "PluginError",
    "PluginErrors",
    "PluginInternalError",
    "PluginNotSupportedError",
    "PluginValidationError",
    "RunnerError",
]


class GoferError(Exception):
    """The base of all of gofer's errors."""


class PluginError(GoferError):
    """A plugin failed, or refused what it was asked.

    ``plugin`` and ``hook`` name where, once the error has passed a hook; before that they are
    None. A plain exception of a plugin arrives as the ``__cause__`` of one of these.
    """

    plugin: str | None = None
    hook: str | None = None


class PluginValidationError(PluginError):
    """Arguments or a definition do not fit.

    :param schema: which part was checked, e.g. ``spawn_subagent.task``.
    :param message: what was wrong with it, and what would be right.
    """

    def __init__(self, schema: str, message: str) -> None:
        super().__init__(schema, message)
        self.schema = schema
        self.message = message

    def __str__(self) -> str:
        return f"{self.schema}: {self.message}"


class PluginNotSupportedError(PluginError):
    """What was asked for is not to be had here: unknown, not installed, or not possible."""


class PluginInternalError(PluginError):
    """A limit is reached, or a part of the machinery broke its promise."""


class PluginErrors(GoferError, ExceptionGroup[Exception]):
    """Several plugins failed in one hook; ``exceptions`` holds each error."""

    def derive(self, excs: Sequence[Exception]) -> PluginErrors:  # type: ignore[override]
        return PluginErrors(self.message, excs)


class ModelError(GoferError):
    """A model server refused, failed, or broke off.

    :param message: what happened, and what to do.
    :param status: the HTTP status, where there was an answer.
    :param body: what the server said, as text, cut to a readable length.
    """

    def __init__(self, message: str, status: int | None = None, body: str | None = None) -> None:
        super().__init__(message, status, body)
        self.status = status
        self.body = body

    def __str__(self) -> str:
        return str(self.args[0])


class ContextOverflowError(ModelError):
    """The request has more tokens than the model's context."""


class RunnerError(GoferError):
    """A runner could not do its run."""


class ConfigError(GoferError):
    """A setting is wrong; the message names where it stands, its key, and what is allowed."""
