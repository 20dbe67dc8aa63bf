"""Settings: what they are, where they come from, and who may set them."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    SecretStr,
    StrictBool,
    StrictInt,
    ValidationError,
)

from . import _pydantic as _pydantic
from . import _trust
from ._clean import no_items
from ._config_errors import config_error
from ._config_sources import (
    Key,
    Source,
    directory,
    dotted,
    read_environment,
    read_project,
    read_user,
)
from ._trust import DEFAULT_CONCURRENCY, DEFAULT_DEPTH, DEFAULT_PENDING
from .errors import ConfigError

__all__ = ["AgentConfig", "Config", "check_trust", "check_values", "load_config"]

M = TypeVar("M", bound=BaseModel)


def _seconds(value: object) -> object:
    if value == "none":
        return None
    if isinstance(value, bool | str):
        raise ValueError("should be a number")
    return value


def _for_all(value: object) -> object:
    return {"*": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("should be an http or https URL")
    return value


Seconds = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, BeforeValidator(_seconds)
]
Text = Annotated[str, Field(min_length=1)]
# Descriptions complete the sentence "… should be" in an error message.
_SECONDS = 'seconds, more than 0, or "none"'


class AgentConfig(BaseModel):
    """One agent of the user's: its runner, its limits, and what else that runner wants to know.

    :param timeout: seconds for a whole run of this agent's, where the spec says nothing.
    :param idle_timeout: seconds without a sign of life.
    """

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    runner: Text = "acp"
    timeout: Seconds = Field(None, description=_SECONDS)
    idle_timeout: Seconds = Field(None, description=_SECONDS)


class Config(BaseModel):
    """The settings of a Host.

    :param default_runner: the runner of a child for which neither a runner nor an agent is named.
    :param max_depth: how many generations of children there may be below the parent.
    :param max_pending: how many children may be uncollected at once.
    :param max_concurrent: how many runs go on at once, by runner; ``*`` is for all not named, as
        is a plain number. By default acp 8, others 64.
    :param timeout: seconds for a child's whole run, where its spec says nothing; None: no limit.
    :param idle_timeout: seconds without a sign of life from a child; None: no limit.
    :param disable: plugins, runners and commands to leave out: ``name`` or ``distribution:name``.
    :param allow: the only ones to take, in the same form; None: all.
    :param strict: make a plugin that cannot be loaded an error.
    :param base_url: the OpenAI-compatible server of the model runners.
    :param model: the model's name there.
    :param api_key: the key for it.
    :param runners: each runner's own settings, by its name.
    :param plugins: each plugin's own settings, by its name.
    :param agents: further agents, or other settings for known ones, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    default_runner: Text = Field("internal", description="the name of a runner")
    max_depth: StrictInt = Field(DEFAULT_DEPTH, ge=0, description="a whole number, at least 0")
    max_pending: StrictInt = Field(DEFAULT_PENDING, ge=1, description="a whole number, at least 1")
    max_concurrent: Annotated[
        dict[str, Annotated[StrictInt, Field(ge=1)]], BeforeValidator(_for_all)
    ] = Field(
        default_factory=lambda: dict(DEFAULT_CONCURRENCY),
        description="a whole number, at least 1, for all runners or a table of them by runner",
    )
    timeout: Seconds = Field(None, description=_SECONDS)
    idle_timeout: Seconds = Field(None, description=_SECONDS)
    disable: list[Text] = Field(
        default_factory=no_items, description="a list of names, or of distribution:name"
    )
    allow: list[Text] | None = Field(None, description="a list of names, or of distribution:name")
    strict: StrictBool = Field(False, description="true or false")
    base_url: Annotated[str, AfterValidator(_http_url)] | None = Field(
        None, description="an http or https URL, such as http://127.0.0.1:8080/v1"
    )
    model: Text | None = Field(None, description="the name of a model")
    api_key: SecretStr | None = Field(None, description="a text")
    runners: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="a table for each runner, of values that JSON can hold"
    )
    plugins: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="a table for each plugin, of values that JSON can hold"
    )
    agents: dict[str, AgentConfig] = Field(
        default_factory=dict, description="a table for each agent"
    )

    _sources: tuple[Source, ...] | None = PrivateAttr(default=None)

    @property
    def origins(self) -> dict[str, str]:
        """Where each value came from, by dotted key.

        That is ``FILE:KEY``, the name of a variable, ``argument`` or ``default``.
        """
        return {dotted(key): self.origin(*key) for key in self.leaf_keys()}

    def leaf_keys(self) -> Iterator[Key]:
        """Go through all values: each key, in its parts; an empty table counts as a value."""
        for key, value in self:
            if key in self.model_fields_set:
                yield from _leaves(value, (key,))
            else:
                yield (key,)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that were read, in the order in which they count."""
        return tuple(source.path for source in self._sources or () if source.path is not None)

    def origin(self, *key: str | int) -> str:
        """Return where the value at *key* came from; if it is none, where its table did."""
        if key[0] not in self.model_fields_set:
            return "default"
        return _place(self._sources or (Source(self._given()),), key)

    def concurrency(self, runner: str) -> int:
        """Return how many runs *runner* may have going on at once, at each depth."""
        for limits in (self.max_concurrent, DEFAULT_CONCURRENCY):
            for name in (runner, "*"):
                if name in limits:
                    return limits[name]
        raise AssertionError("the defaults are for every runner")

    def section(self, table: Literal["runners", "plugins"], name: str, model: type[M]) -> M:
        """Return the settings of one runner or plugin as an instance of its own *model*.

        :raises ConfigError: they do not fit the model; it names each place, key and reason.
        """
        data = getattr(self, table).get(name, {})
        try:
            return model.model_validate(data)
        except ValidationError as error:
            place = (table, name)
            raise config_error(error, model, lambda loc: self.origin(*place, *loc), place) from None

    def _given(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


def load_config(
    cwd: Path | None = None,
    overrides: Config | Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Gather the settings for work in *cwd* (by default, here).

    The project's file, the user's own file, the ``GOFER_*`` variables and *overrides*: a later
    one wins, key by key within tables, as a whole for anything else. A Config that came from here
    is returned as it is.

    :param environ: what to take the variables from instead of the environment.
    :raises ConfigError: a file cannot be read, a key or value is wrong, or a project's file holds
        what it may only hold once the user has trusted it.
    """
    if isinstance(overrides, Config):
        if overrides._sources is not None:
            return overrides
        overrides = overrides._given()
    found = [
        read_project(directory(cwd).resolve()),
        read_user(),
        read_environment(os.environ if environ is None else environ),
        Source(dict(overrides or {})),
    ]
    gathered = [source for source in found if source is not None]
    merged: dict[str, Any] = {}
    for source in gathered:
        check_values(source)
        # A number for all replaces what was said of some before.
        if "*" in source.data.get("max_concurrent", ()):
            merged.pop("max_concurrent", None)
        _merge(merged, source.data)
    project = found[0]
    if project is not None:
        check_trust(project)
    config = Config.model_validate(merged)
    config._sources = tuple(gathered)
    return config


def check_trust(project: Source) -> None:
    """Refuse what a project's file may not set unless the user has trusted it.

    :raises ConfigError: it sets such a key and is not trusted as it is.
    """
    keys = _trust.needs_trust(project.data)
    path = project.path
    assert path is not None
    if keys and not _trust.is_trusted(path, project.content):
        raise ConfigError(
            f"{path}: a project's file may set {', '.join(keys)} only once you trust it as it is; "
            f"read it, then run: gofer config trust {shlex.quote(str(path))}"
        )


def check_values(source: Source) -> None:
    """Raise ConfigError if a key or value of *source* is wrong."""
    try:
        Config.model_validate(source.data)
    except ValidationError as error:
        raise config_error(error, Config, lambda loc: _place((source,), loc)) from None


def _merge(target: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        old = target.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            _merge(old, value)
        else:
            target[key] = copy.deepcopy(value)


def _leaves(value: object, path: Key) -> Iterator[Key]:
    if isinstance(value, AgentConfig):
        value = value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path


def _place(found: Sequence[Source], key: Key) -> str:
    for length in range(len(key), 0, -1):
        for source in reversed(found):
            if _holds(source.data, key[:length]):
                return source.label(dotted(key[:length]))
    return found[-1].label(dotted(key))


def _holds(data: object, key: Key) -> bool:
    for part in key:
        try:
            data = data[part]  # type: ignore[index]
        except (LookupError, TypeError):
            return False
    return True
