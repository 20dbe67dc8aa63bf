"""The plugins of one Host: checked when they are registered, kept in one order."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy

from .errors import PluginValidationError
from .hooks import HOOKS, PROJECT, HookSpecs
from .subagents import SubagentSpec

if TYPE_CHECKING:
    from .runner import Run

__all__ = ["Hook", "Rank", "Registry", "check", "name_of"]

Rank = tuple[int, str, str, int]
"""Where a plugin stands: group (built-in, discovered, given), distribution, name, position."""

_MARK = f"{PROJECT}_impl"
_SEQUENTIAL = ("on_request", "on_stream_chunk", "on_response_complete")


class Hook(NamedTuple):
    """One implementation of a sequential hook: whose it is, and how to call it."""

    plugin: str
    call: Callable[[Any], Any]


def name_of(plugin: object) -> str:
    """Return the name a plugin gives itself, else its module's or class's."""
    name = getattr(plugin, "name", None)
    if isinstance(name, str) and name:
        return name
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    return plugin.__name__ if isinstance(plugin, type) else type(plugin).__name__


class Implementation(NamedTuple):
    """What a plugin marked: as which of its attributes, for which hook, with pluggy's options."""

    attribute: str
    hook: str
    function: Callable[..., Any]
    options: dict[str, Any]
    takes: bool
    """Whether it takes the hook's argument; it may leave it out."""


def check(plugin: object) -> list[Implementation]:
    """Return what *plugin* implements.

    :raises PluginValidationError: a marked name that is no hook, an unmarked hook name, a wrong
        signature, a wrapper where none is allowed, or no hook at all.
    """
    found: list[Implementation] = []
    for attribute, static, function in _callables(plugin):
        # The mark may also stand above @staticmethod or @classmethod.
        options = getattr(function, _MARK, None) or getattr(static, _MARK, None)
        where = f"{_described(plugin)}.{attribute}"
        if not inspect.isroutine(function):
            if isinstance(options, dict) or attribute in HOOKS:
                raise PluginValidationError(
                    where,
                    f"is a {type(function).__name__}, and a hook is a function or a method: "
                    "write one that calls it",
                )
            continue
        if not isinstance(options, dict):
            if attribute in HOOKS:
                raise PluginValidationError(
                    where, "has a hook's name but no mark: put @gofer.hookimpl on it, or rename it"
                )
            continue
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            raise PluginValidationError(
                where, f"{hook!r} is no hook of gofer; the hooks are {', '.join(HOOKS)}"
            )
        takes = _check_function(where, hook, function, options)
        found.append(Implementation(attribute, hook, function, options, takes))
    if not found:
        raise PluginValidationError(
            _described(plugin),
            f"implements no hook: mark at least one of {', '.join(HOOKS)} with @gofer.hookimpl",
        )
    return found


def _check_function(
    where: str, hook: str, function: Callable[..., Any], options: dict[str, Any]
) -> bool:
    """Check one implementation; return whether it takes an argument of the hook."""
    allowed = HOOKS[hook]
    takes = False
    wraps = options.get("wrapper") or options.get("hookwrapper")
    if hook in _SEQUENTIAL:
        if wraps:
            raise PluginValidationError(
                where, f"{hook} takes no wrappers: make it a plain or an async function"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise PluginValidationError(where, f"{hook} must not yield")
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginValidationError(
            where,
            f"{hook} must be a plain function that returns an awaitable or None: "
            "an async function could never decline",
        )
    elif bool(wraps) is not inspect.isgeneratorfunction(function):
        raise PluginValidationError(
            where, f"{hook} yields exactly if it is marked @gofer.hookimpl(wrapper=True)"
        )
    signature = ", ".join(allowed)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in allowed:
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and (
                parameter.default is parameter.empty
            ):
                takes = True
                continue
            reason = f"parameter {parameter.name!r} must be ordinary and without a default"
        elif parameter.default is not parameter.empty:
            continue
        else:
            shown = parameter.replace(annotation=parameter.empty)
            reason = f"parameter {str(shown)!r} is unknown"
        raise PluginValidationError(where, f"{reason}; the hook is {hook}({signature})")
    return takes


_DESCRIPTORS = (classmethod, staticmethod, functools.partialmethod, MemberDescriptorType)


def _callables(plugin: object) -> Iterator[tuple[str, object, Callable[..., Any]]]:
    for attribute in dir(plugin):
        if attribute.startswith("__"):
            continue
        # A property may do anything when it is read: ask the class first.
        static = inspect.getattr_static(plugin, attribute, None)
        if (
            hasattr(type(static), "__get__")
            and not callable(static)
            and not isinstance(static, _DESCRIPTORS)
        ):
            continue
        value = getattr(plugin, attribute, None)
        if callable(value):
            yield attribute, static, value


def _described(plugin: object) -> str:
    kind = plugin if isinstance(plugin, type | ModuleType) else type(plugin)
    module = "" if isinstance(kind, ModuleType) else f"{kind.__module__}."
    return f"{module}{getattr(kind, '__qualname__', kind.__name__)}"


class _Manager(pluggy.PluginManager):
    """Takes what :func:`check` found, however a version of pluggy itself would look for it."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        return plugin.marked.get(name) if isinstance(plugin, _Part) else None


class _Part:
    """What pluggy gets of a plugin: its implementations of ``run_subagent``.

    pluggy compares plugins, and shows them in its errors: theirs could say or raise anything.
    """

    def __init__(self, name: str, found: list[Implementation]) -> None:
        self.name = name
        self.marked = {made.attribute: made.options for made in found}
        for made in found:
            setattr(self, made.attribute, made.function)


class Registry:
    """The registered plugins and, for each sequential hook, its implementations in order."""

    def __init__(self) -> None:
        self.manager = _Manager(PROJECT)
        self.manager.add_hookspecs(HookSpecs)
        self._plugins: dict[int, object] = {}
        self._takers: list[Callable[[SubagentSpec, Run], Any]] | None = []
        self._ranked: dict[str, list[tuple[int, Rank, Hook]]] = {hook: [] for hook in _SEQUENTIAL}
        self.on_request: tuple[Hook, ...] = ()
        self.on_stream_chunk: tuple[Hook, ...] = ()
        self.on_response_complete: tuple[Hook, ...] = ()
        self.takes_runs = False
        """Whether a plugin that is no runner may take a run."""

    def run_subagent(self, spec: SubagentSpec, run: Run) -> Any:
        """Ask who takes a child, and return the first answer; None: nobody does."""
        if self._takers is None:
            return self.manager.hook.run_subagent(spec=spec, run=run)
        for take in self._takers:
            answer = take(spec, run)
            if answer is not None:
                return answer
        return None

    def add(
        self, plugin: object, name: str, rank: Rank, *, runner: bool = False
    ) -> tuple[str, ...]:
        """Register *plugin*, and return the hooks it implements.

        :raises PluginValidationError: see :func:`check`; nothing is registered then.
        """
        found = check(plugin)
        if id(plugin) in self._plugins:
            raise PluginValidationError(
                _described(plugin), "is registered already, under another name: leave one out"
            )
        runs = [made for made in found if made.hook not in _SEQUENTIAL]
        if runs:
            # pluggy calls the newest first; a Host registers its plugins from the last to the
            # first. A plugin and a runner may share a name, and pluggy knows one kind only.
            self.manager.register(_Part(name, runs), f"{len(self._plugins)} {name}")
            wrap = ("wrapper", "hookwrapper")
            alone = any(not any(map(made.options.get, wrap)) for made in runs)
            self.takes_runs |= alone and not runner
            self._takers = _takers(self.manager.hook.run_subagent.get_hookimpls())
        self._plugins[id(plugin)] = plugin
        for made in found:
            hook, function, options = made.hook, made.function, made.options
            if hook not in _SEQUENTIAL:
                continue
            priority = -1 if options.get("tryfirst") else 1 if options.get("trylast") else 0
            call = function if made.takes else _without_argument(function)
            entries = self._ranked[hook]
            entries.append((priority, rank, Hook(name, call)))
            entries.sort(key=lambda entry: entry[:2])
            setattr(self, hook, tuple(entry[2] for entry in entries))
        implemented = {made.hook for made in found}
        return tuple(hook for hook in HOOKS if hook in implemented)


def _takers(
    implementations: list[pluggy.HookImpl],
) -> list[Callable[[SubagentSpec, Run], Any]] | None:
    """Return what pluggy would call, in its order; None where a wrapper needs its call."""
    if any(each.wrapper or each.hookwrapper for each in implementations):
        return None
    return [
        each.function if each.argnames == ("spec", "run") else _by_name(each)
        for each in reversed(implementations)
    ]


def _by_name(each: pluggy.HookImpl) -> Callable[[SubagentSpec, Run], Any]:
    def take(spec: SubagentSpec, run: Run) -> Any:
        given = {"spec": spec, "run": run}
        return each.function(*(given[name] for name in each.argnames))

    return take


def _without_argument(function: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda _: function()
