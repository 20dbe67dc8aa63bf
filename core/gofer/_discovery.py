"""Finding plugins and runners that are installed, each alone: a broken one harms no other."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Literal

from pydantic import BaseModel

from ._config_errors import with_key
from ._config_sources import did_you_mean
from ._installed import Declared, Fault, normal, read
from ._registry import Rank
from .config import Config
from .errors import ConfigError

__all__ = [
    "COMMANDS",
    "GROUPS",
    "PLUGINS",
    "RUNNERS",
    "Found",
    "PluginInfo",
    "configured",
    "find",
    "kind_of",
    "leave_out",
    "load",
    "tell_of_names_for_nobody",
    "told",
    "why_disabled",
]

log = logging.getLogger("gofer")

PLUGINS, RUNNERS, COMMANDS = "gofer.plugins", "gofer.runners", "gofer.commands"
GROUPS = (PLUGINS, RUNNERS)
_KINDS = {PLUGINS: "plugin", RUNNERS: "runner", COMMANDS: "command", "": "package"}
_BUILT_IN = "gofer"
_REFERENCE = re.compile(r"[\w.]+\s*(:\s*[\w.]+\s*)?(\[.*\])?")
_LONGEST = 1000

Status = Literal["loaded", "available", "failed", "disabled", "set aside", "replaced"]


@dataclass(slots=True)
class PluginInfo:
    """What a Host knows of one plugin or runner.

    ``status``: ``loaded``; ``available`` (a runner, loaded at its first use); ``failed``;
    ``disabled`` (by the configuration); ``set aside`` (its name is taken); ``replaced`` (by an
    object given to the Host). For a broken one ``error`` says what and why, ``remedy`` what to do.
    A package whose metadata is broken stands here too, with its own name and no ``group``.
    """

    name: str
    group: str
    distribution: str | None
    version: str | None
    status: Status
    error: str | None = None
    remedy: str | None = None
    hooks: tuple[str, ...] = ()


class Found:
    """One entry point, with its standing; ``value`` is what it points to."""

    __slots__ = ("built_in", "info", "value")

    def __init__(self, info: PluginInfo, value: str = "", built_in: bool = False) -> None:
        self.info, self.value, self.built_in = info, value, built_in

    @property
    def rank(self) -> Rank:
        """Built-ins come first, then the others by distribution and name."""
        return (0 if self.built_in else 1, self.info.distribution or "", self.info.name, 0)

    @property
    def broken(self) -> bool:
        """Whether something is wrong that strict mode refuses."""
        return self.info.status in ("failed", "set aside")

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{kind_of(self.info)} {self.info.name!r}"

    def fail(self, error: str, remedy: str, status: Status = "failed") -> None:
        """Record why it is out."""
        self.info.status = status
        self.info.error, self.info.remedy = error, remedy

    def tell(self) -> None:
        """Log why it is out."""
        log.warning("%s is set aside: %s. %s", self.title, self.info.error, self.info.remedy)


def kind_of(info: PluginInfo) -> str:
    """Return ``plugin``, ``runner``, ``command``, or ``package`` where its metadata is broken."""
    return _KINDS[info.group]


def find(
    disable: Iterable[str] = (),
    allow: Iterable[str] | None = None,
    *,
    groups: Iterable[str] = GROUPS,
    taken: Iterable[str] = (),
) -> list[Found]:
    """Return every entry point of *groups* that is installed, from metadata alone.

    Names that are disabled or not allowed, and names that clash with another or, for a command,
    with one that is *taken*, are marked as such. Packages whose metadata is broken come last.
    """
    groups = tuple(groups)
    disabled = set(map(_normal, disable))
    allowed = None if allow is None else set(map(_normal, allow))
    declared, faults = read(groups)
    found = [_entry(one) for one in declared]
    for entry, key in zip(found, (one.package.key for one in declared), strict=True):
        names = {entry.info.name, f"{key}:{entry.info.name}"}
        if names & disabled:
            entry.info.status = "disabled"
        elif allowed is not None and not entry.built_in and not names & allowed:
            name = entry.info.name
            entry.fail(
                "it is not in the allow-list",
                f"Add {name!r} to allow in [tool.gofer] to use it",
                "disabled",
            )
    _settle_clashes(found, set(taken))
    found.sort(key=lambda entry: (entry.info.group, entry.rank))
    return found + [_broken(fault, disabled, allowed) for fault in faults]


def _for_nobody(listed: Iterable[str], found: Iterable[Found]) -> list[str]:
    """Return those of *listed*, entries of ``disable`` or ``allow``, that fit nothing found."""
    names: set[str] = set()
    unreadable: set[str] = set()
    for entry in found:
        key = normal(entry.info.distribution or "")
        names |= {entry.info.name, f"{key}:{entry.info.name}"}
        if not entry.info.group:
            names.add(key)
            unreadable.add(key)
    wanted = ((name, _normal(name)) for name in listed)
    return [
        name for name, one in wanted if not (one in names or one.partition(":")[0] in unreadable)
    ]


def tell_of_names_for_nobody(config: Config, found: Sequence[Found]) -> None:
    """Log which entries of ``disable`` and ``allow`` fit nothing that is installed."""
    # No error: who uninstalls a package need not clear up its settings first.
    for key in ("disable", "allow"):
        listed: list[str] = getattr(config, key) or []
        if not _for_nobody(listed, found):
            continue
        everything = [*found, *find(groups=[COMMANDS])]
        known = sorted({entry.info.name for entry in everything})
        for name in _for_nobody(listed, everything):
            log.warning(
                "%s: nothing that is installed is called %r%s",
                _where(config, key), name, did_you_mean(name, known),
            )  # fmt: skip


def _entry(one: Declared) -> Found:
    package = one.package
    info = PluginInfo(one.name, one.group, package.name, package.version, "available")
    return Found(info, one.value, package.key == _BUILT_IN)


def _broken(fault: Fault, disabled: set[str], allowed: set[str] | None) -> Found:
    package = fault.package
    entry = Found(PluginInfo(package.name, "", package.name, package.version, "failed"))
    names = {package.name, package.key, f"{package.key}:{package.name}"}
    wanted = allowed is None or any(
        one in names or one.startswith(f"{package.key}:") for one in allowed
    )
    if names & disabled or not wanted:
        entry.info.status = "disabled"
    else:
        entry.fail(fault.error, f"{fault.remedy}; or {leave_out(entry)}")
    return entry


def _normal(entry: str) -> str:
    """Return *entry* with its distribution, if it names one, as package indexes compare them."""
    distribution, colon, name = entry.rpartition(":")
    return normal(distribution) + colon + name


def _settle_clashes(found: list[Found], taken: set[str]) -> None:
    claims: dict[tuple[str, str], list[Found]] = {}
    for entry in found:
        if entry.info.status == "available":
            claims.setdefault((entry.info.group, entry.info.name), []).append(entry)
    for (group, name), rivals in claims.items():
        ours = (group == COMMANDS and name in taken) or any(entry.built_in for entry in rivals)
        if len(rivals) == 1 and not (ours and not rivals[0].built_in):
            continue
        for entry in rivals:
            if not entry.built_in:
                _set_aside(entry, [other for other in rivals if other is not entry], ours)


def _set_aside(entry: Found, rivals: list[Found], ours: bool) -> None:
    name, mine = entry.info.name, str(entry.info.distribution)
    others = sorted({str(other.info.distribution) for other in rivals} - {mine})
    if ours:
        error = f"the name {name!r} is gofer's own"
        remedy = f"It stays with gofer: rename the entry point of {mine}"
    elif others:
        error = f"the name {name!r} is claimed by {', '.join(others)} too"
        remedy = f"Disable one of them: disable = [{f'{mine}:{name}'!r}]"
    else:
        error = f"{mine} claims the name {name!r} twice, for {_values(entry, rivals)}"
        remedy = f"Reinstall or uninstall {mine}, or {leave_out(entry)}"
    entry.fail(error, remedy, "set aside")


def _values(entry: Found, rivals: list[Found]) -> str:
    return " and ".join(sorted({entry.value, *(other.value for other in rivals)}))


def leave_out(entry: Found) -> str:
    """Say how a user does without it."""
    name = entry.info.name
    return f"leave it out: disable = [{name!r}] in [tool.gofer], or GOFER_DISABLE={name}"


def why_disabled(config: Config) -> str:
    """Say why one that is disabled cannot be used, and how it could be."""
    return f"it is disabled ({_where(config, 'disable')}): take it out of there to use it"


def told(error: BaseException) -> str:
    """Return what an exception says, with its type, in a bounded text, whatever its class does."""
    kind = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        text = ""
    said = f"{kind}: {text}" if text else kind
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def load(entry: Found) -> Any:
    """Import what *entry* points to; None, with the reason recorded, if that fails."""
    info, value = entry.info, entry.value
    remedy = f"Reinstall or uninstall {info.distribution}, or {leave_out(entry)}"
    if not _REFERENCE.fullmatch(value):
        entry.fail(f"its entry point says {value!r:.100}, which is no module:attribute", remedy)
        return None
    try:
        loaded = EntryPoint(info.name, value, info.group).load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a package does, SystemExit included
        log.debug("loading %s", value, exc_info=error)
        entry.fail(f"loading {value} raised {told(error)}", f"{_hint(error, value)}{remedy}")
        return None
    if loaded is None:
        entry.fail(f"{value} is None", remedy)
    return loaded


def _hint(error: BaseException, value: str) -> str:
    """Say what may be behind an import that failed."""
    module = value.partition(":")[0].partition("[")[0].strip()
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    if module == error.name or module.startswith(f"{error.name}."):
        return "Its module is gone: the package was removed, moved, or installed in part. "
    return f"It needs {error.name.partition('.')[0]!r}, which is not installed. "


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
