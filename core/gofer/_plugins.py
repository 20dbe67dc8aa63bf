"""The plugins and runners of one Host: given ones and discovered ones, loaded and registered."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ._config_errors import with_key
from ._config_sources import did_you_mean
from ._discovery import (
    PLUGINS,
    RUNNERS,
    Found,
    PluginInfo,
    configured,
    find,
    leave_out,
    load,
    tell_of_names_for_nobody,
    told,
    why_disabled,
)
from ._registry import Registry, name_of
from .config import Config
from .errors import ConfigError, PluginError, PluginNotSupportedError, PluginValidationError
from .runner import Runner

__all__ = ["Plugins"]

log = logging.getLogger("gofer")

_GIVEN = 2

Table = Literal["runners", "plugins"]


class Plugins:
    """Loads plugins when the Host opens, and each runner at its first use."""

    def __init__(
        self,
        registry: Registry,
        config: Config,
        bind: Callable[[object], None],
        *,
        strict: bool,
    ) -> None:
        self._registry = registry
        self._config = config
        self._bind = bind
        self._strict = strict
        self._found: list[Found] = []
        self._objects: dict[tuple[str, str], Any] = {}
        self._given: list[PluginInfo] = []

    @property
    def infos(self) -> list[PluginInfo]:
        """What is known of each, those given to the Host last."""
        return [*(entry.info for entry in self._found), *self._given]

    def open(self, given: Sequence[object], *, discover: bool) -> None:
        """Take the *given* objects, and what is installed.

        :raises PluginValidationError: a given one is no plugin, or two have one name.
        :raises ConfigError: the settings of a plugin do not fit it.
        :raises PluginError: in strict mode, anything is wrong with a discovered one.
        """
        objects = [self._made(plugin) for plugin in given]
        names = self._names(objects)
        replaced = {
            (RUNNERS if isinstance(plugin, Runner) else PLUGINS, name)
            for plugin, name in zip(objects, names, strict=True)
        }
        if discover:
            self._found = find(self._config.disable, self._config.allow)
        for entry in self._found:
            if (entry.info.group, entry.info.name) in replaced:
                entry.info.status, entry.info.error, entry.info.remedy = "replaced", None, None
        for entry in self._found:
            if entry.broken:
                self._out(entry)
        # pluggy calls the newest first, so the last in our order is registered first.
        positions = list(enumerate(zip(objects, names, strict=True)))
        for position, (plugin, name) in reversed(positions):
            runner = isinstance(plugin, Runner)
            if isinstance(plugin, Runner):
                _check_run(plugin, f"the runner {name!r}")
            hooks = self._registry.add(plugin, name, (_GIVEN, "", "", position), runner=runner)
            group = RUNNERS if runner else PLUGINS
            self._objects[group, name] = plugin
            self._given.insert(0, PluginInfo(name, group, None, None, "loaded", hooks=hooks))
            self._bind(plugin)
        for entry in reversed(self._found):
            if entry.info.group == PLUGINS and entry.info.status == "available":
                self._load(entry)
        if discover:
            self._tell_of_settings_for_nobody()

    def get(self, group: str, name: str) -> Any:
        """Return the plugin or runner *name*, loading a runner at its first use.

        :raises PluginNotSupportedError: there is none, or it is broken; says what there is.
        :raises ConfigError: its settings do not fit it.
        """
        known = self._objects.get((group, name))
        if known is not None:
            return known
        entries = [
            entry for entry in self._found if entry.info.group == group and entry.info.name == name
        ]
        for entry in entries:
            if entry.info.status == "available":
                self._load(entry)
                known = self._objects.get((group, name))
                if known is not None:
                    return known
        for entry in sorted(entries, key=lambda entry: not entry.broken):
            info = entry.info
            why = f"{info.error}. {info.remedy}" if info.error else why_disabled(self._config)
            raise PluginNotSupportedError(f"{entry.title} cannot be used: {why}")
        kind = "runner" if group == RUNNERS else "plugin"
        there = sorted(self.names(group))
        unreadable = [i.name for i in self.infos if not i.group and i.status == "failed"]
        more = f"; {', '.join(unreadable)} cannot be read, see gofer plugins" if unreadable else ""
        raise PluginNotSupportedError(
            f"there is no {kind} {name!r}{did_you_mean(name, there)}; "
            f"installed: {', '.join(there) or 'none'}{more}"
        )

    def names(self, group: str) -> set[str]:
        """Return the names that can be used, loaded or not."""
        return {
            info.name
            for info in self.infos
            if info.group == group and info.status in ("loaded", "available")
        }

    def _made(self, plugin: object) -> object:
        if not isinstance(plugin, type):
            return plugin
        table: Table = "runners" if issubclass(plugin, Runner) else "plugins"
        return configured(plugin, self._config, table, name_of(plugin))

    def _names(self, objects: Sequence[object]) -> list[str]:
        names: list[str] = []
        taken: set[tuple[bool, str]] = set()
        for plugin in objects:
            name = base = name_of(plugin)
            number = 1
            while (isinstance(plugin, Runner), name) in taken:
                if getattr(plugin, "name", None) == base:
                    raise PluginValidationError(
                        "Host.plugins", f"two plugins are named {base!r}: rename or leave out one"
                    )
                number += 1
                name = f"{base}-{number}"
            names.append(name)
            taken.add((isinstance(plugin, Runner), name))
        return names

    def _tell_of_settings_for_nobody(self) -> None:
        # No error: who uninstalls a package need not clear up its settings first.
        tables: list[tuple[Table, str]] = [("runners", RUNNERS), ("plugins", PLUGINS)]
        for table, group in tables:
            known = sorted({info.name for info in self.infos if info.group == group})
            for name in getattr(self._config, table):
                if name not in known:
                    log.warning(
                        "%s: there is no %s %r%s; there are: %s",
                        with_key(self._config.origin(table, name), (table, name)),
                        table[:-1], name, did_you_mean(name, known), ", ".join(known),
                    )  # fmt: skip
        tell_of_names_for_nobody(self._config, self._found)

    def take(self, entry: Found) -> None:
        """Load one entry point, whatever it is: for who wants to know whether it works."""
        self._found.append(entry)
        self._load(entry)

    def _load(self, entry: Found) -> None:
        info = entry.info
        loaded = load(entry)
        if loaded is None:
            self._out(entry)
            return
        table: Table = "runners" if info.group == RUNNERS else "plugins"
        try:
            plugin = (
                configured(loaded, self._config, table, info.name)
                if isinstance(loaded, type)
                else loaded
            )
            _check_kind(plugin, entry)
            # Bound first: what fails to bind must not stay among the hooks.
            self._bind(plugin)
            runner = info.group == RUNNERS
            info.hooks = self._registry.add(plugin, info.name, entry.rank, runner=runner)
        except KeyboardInterrupt:
            raise
        except ConfigError as error:
            if info.name in getattr(self._config, table):
                raise  # the user's mistake; to be installed is none
            entry.fail(
                f"it needs settings: {str(error).removeprefix('default: ')}",
                f"{info.distribution} wants them in [tool.gofer.{table}.{info.name}]: write them, "
                f"or {leave_out(entry)}",
            )
        except PluginValidationError as error:
            entry.fail(str(error), _report(entry))
        except BaseException as error:
            log.debug("setting up %s", entry.value, exc_info=error)
            entry.fail(f"setting it up raised {told(error)}", _report(entry))
        else:
            info.status = "loaded"
            self._objects[info.group, info.name] = plugin
            return
        self._out(entry)

    def _out(self, entry: Found) -> None:
        """Tell of a broken one, once; in strict mode as an error."""
        if self._strict:
            raise PluginError(
                f"{entry.title}: {entry.info.error}. {entry.info.remedy} (strict mode)"
            )
        entry.tell()


def _check_kind(plugin: object, entry: Found) -> None:
    info, where = entry.info, entry.value
    if info.group != RUNNERS:
        if isinstance(plugin, Runner):
            raise PluginValidationError(
                where,
                "is a gofer.Runner: its entry point belongs into the group gofer.runners alone",
            )
        return
    if not isinstance(plugin, Runner):
        raise PluginValidationError(where, f"{plugin!r:.100} is no gofer.Runner: subclass it")
    if plugin.name != info.name:
        raise PluginValidationError(
            where,
            f"its class says name = {plugin.name!r}: both names must be the same",
        )
    _check_run(plugin, where)


def _check_run(runner: Runner, where: str) -> None:
    """Refuse a ``run`` that no child can be run with; most others only show when they are called.

    :raises PluginValidationError: it yields, or takes something else than the spec and the run.
    """
    if type(runner).run_subagent is not Runner.run_subagent:
        return
    if inspect.isasyncgenfunction(runner.run) or inspect.isgeneratorfunction(runner.run):
        raise PluginValidationError(
            where,
            "its run yields, and should return: await run.emit(block) for each block, "
            "and return run.result()",
        )
    try:
        signature = inspect.signature(runner.run)
    except (TypeError, ValueError):
        return  # what is written in C need not tell
    try:
        signature.bind("spec", "run")
    except TypeError as error:
        raise PluginValidationError(
            where,
            f"its run cannot be called with a spec and a run ({error}): "
            "write async def run(self, spec, run)",
        ) from error


def _report(entry: Found) -> str:
    return f"Report it to the authors of {entry.info.distribution}, or {leave_out(entry)}"
