"""Finding plugins and runners that are installed, each alone: a broken one harms no other."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import (
    Distribution,
    EntryPoint,
    EntryPoints,
    distributions,
    entry_points,
)
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel

from ._config_errors import with_key
from ._registry import Rank
from .config import Config
from .errors import ConfigError

__all__ = ["GROUPS", "Found", "PluginInfo", "configured", "find", "load"]

log = logging.getLogger("gofer")

PLUGINS, RUNNERS = "gofer.plugins", "gofer.runners"
GROUPS = (PLUGINS, RUNNERS)
_BUILT_IN = "gofer"

Status = Literal["loaded", "available", "failed", "disabled", "set aside", "replaced"]


@dataclass(slots=True)
class PluginInfo:
    """What a Host knows of one plugin or runner.

    ``status``: ``loaded``; ``available`` (a runner, loaded at its first use); ``failed``;
    ``disabled`` (by the configuration); ``set aside`` (its name is taken); ``replaced`` (by an
    object given to the Host). For a broken one ``error`` says what and why, ``remedy`` what to do.
    """

    name: str
    group: str
    distribution: str | None
    version: str | None
    status: Status
    error: str | None = None
    remedy: str | None = None
    hooks: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """One entry point, with its standing."""

    info: PluginInfo
    point: EntryPoint
    built_in: bool = field(default=False)

    @property
    def rank(self) -> Rank:
        """Built-ins come first, then the others by distribution and name."""
        return (0 if self.built_in else 1, self.info.distribution or "", self.info.name, 0)

    def fail(self, error: str, remedy: str) -> None:
        """Record why it is out, and log it once."""
        self.info.status = "failed"
        self.info.error, self.info.remedy = error, remedy
        log.warning("%s %r is set aside: %s. %s", self.info.group, self.info.name, error, remedy)


def find(
    disable: Iterable[str] = (),
    allow: Iterable[str] | None = None,
    *,
    groups: Iterable[str] = GROUPS,
    taken: Iterable[str] = (),
) -> list[Found]:
    """Return every entry point of *groups* that is installed, from metadata alone.

    Names that are disabled or not allowed, and names that clash with another or with one that is
    *taken*, are marked as such.
    """
    installed = _installed()
    disabled = set(map(_normal, disable))
    allowed = None if allow is None else set(map(_normal, allow))
    found: list[Found] = []
    for group in groups:
        known: set[tuple[str, str | None, str]] = set()
        for point in installed.select(group=group):
            distribution, version = (None, None) if point.dist is None else _identity(point.dist)
            key = (point.name, distribution, point.value)
            if key in known:
                continue
            known.add(key)
            info = PluginInfo(
                point.name,
                group,
                distribution,
                version,
                "available",
            )
            entry = Found(info, point, distribution == _BUILT_IN)
            names = {point.name, _normal(f"{distribution}:{point.name}")}
            if names & disabled:
                info.status = "disabled"
            elif allowed is not None and not entry.built_in and not names & allowed:
                info.status = "disabled"
                info.error = "it is not in the allow-list"
                info.remedy = f"add {point.name!r} to allow in [tool.gofer] to use it"
            found.append(entry)
    _settle_clashes(found, set(taken))
    return sorted(found, key=lambda entry: (entry.info.group, entry.rank))


def _installed() -> EntryPoints:
    try:
        return cast("EntryPoints", entry_points())
    except Exception:
        pass  # of one package, and it hides all the others: read each alone
    known: set[str] = set()
    points: list[EntryPoint] = []
    for dist in distributions():
        name, _ = _identity(dist)
        if _normal(f"{name}:") in known:
            continue
        known.add(_normal(f"{name}:"))
        try:
            points.extend(dist.entry_points)
        except Exception as error:
            log.warning(
                "the entry points of %s cannot be read (%s: %s): reinstall or uninstall it",
                name, type(error).__name__, error,
            )  # fmt: skip
    return EntryPoints(points)


def _identity(dist: Distribution) -> tuple[str, str | None]:
    try:
        name, version = dist.name, dist.version
    except Exception:  # its metadata is not there, or is no text
        name = version = None  # type: ignore[assignment]
    # Then its folder says it: name-version.dist-info
    return name or Path(str(getattr(dist, "_path", "unknown"))).name.partition("-")[0], version


def _normal(entry: str) -> str:
    """Return *entry* with its distribution, if it names one, as package indexes compare them."""
    distribution, colon, name = entry.rpartition(":")
    return re.sub(r"[-_.]+", "-", distribution).lower() + colon + name


def _settle_clashes(found: list[Found], taken: set[str]) -> None:
    claims: dict[tuple[str, str], list[Found]] = {}
    for entry in found:
        if entry.info.status == "available":
            claims.setdefault((entry.info.group, entry.info.name), []).append(entry)
    for (_, name), rivals in claims.items():
        ours = name in taken or any(entry.built_in for entry in rivals)
        if len(rivals) == 1 and name not in taken:
            continue
        for entry in rivals:
            if entry.built_in:
                continue
            others = {str(other.info.distribution) for other in rivals if other is not entry}
            entry.fail(
                f"the name {name!r} is gofer's own"
                if ours
                else f"the name {name!r} is claimed by {', '.join(sorted(others))} too",
                f"{name!r} stays with gofer; rename this one's entry point"
                if ours
                else f"disable one of them: disable = [{f'{entry.info.distribution}:{name}'!r}]",
            )
            entry.info.status = "set aside"


def load(entry: Found) -> Any:
    """Return the object that *entry* points to; None, with the reason recorded, if it fails."""
    info = entry.info
    remedy = (
        f"Reinstall or uninstall {info.distribution}, or leave it out: "
        f"disable = [{info.name!r}] in [tool.gofer], or GOFER_DISABLE={info.name}"
    )
    try:
        loaded = entry.point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        entry.fail(f"loading {entry.point.value} raised {type(error).__name__}: {error}", remedy)
        return None
    return loaded


def configured(
    factory: type, config: Config, table: Literal["runners", "plugins"], name: str
) -> Any:
    """Return an instance of *factory*, made with its settings, ``[tool.gofer.TABLE.NAME]``.

    A class with a pydantic model ``Config`` is called with that model's fields as keywords.

    :raises ConfigError: the settings do not fit; it names file and key, and what is allowed.
    """
    model = getattr(factory, "Config", None)
    settings: dict[str, Any] = getattr(config, table).get(name, {})
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        if settings:
            key = next(iter(settings))
            raise ConfigError(
                f"{_where(config, table, name, key)}: {factory.__name__} takes no settings: "
                f"remove the table {table}.{name}"
            )
        return factory()
    made = config.section(table, name, model)
    known = set(model.model_fields) | {str(f.alias) for f in model.model_fields.values() if f.alias}
    for key in settings:
        if key not in known:
            raise ConfigError(
                f"{_where(config, table, name, key)}: there is no such key; allowed: "
                f"{', '.join(model.model_fields)}"
            )
    return factory(**{field: getattr(made, field) for field in model.model_fields})


def _where(config: Config, *key: str) -> str:
    return with_key(config.origin(*key), key)
