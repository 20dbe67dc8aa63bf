"""The commands, gofer's own and those that other packages add: loaded when they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ._cli_output import complain, exit_code
from .errors import ConfigError, GoferError, PluginNotSupportedError

if TYPE_CHECKING:
    from ._discovery import Found

__all__ = ["Group", "installed", "load_command"]

_OWN = {
    "run": "_cli_run:run",
    "plugins": "_cli_plugins:plugins",
    "agents": "_cli_agents:agents",
    "new-runner": "_cli_new_runner:new_runner",
    "certify": "_cli_certify:certify",
    "config": "_cli_config:app",
}
"""gofer's own commands, in the order of the help: where each is, a function or a typer app."""

_COMPLETION = ("install_completion", "show_completion")


class Group(TyperGroup):
    """gofer's own commands, then those of other packages; tells gofer's errors in a line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands: Mapping[str, Any] = _Own()  # type: ignore[assignment]
        self._added: dict[str, _Added] | None = None

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands that can be called."""
        added = (name for name, command in self._all().items() if not command.hidden)
        return [*super().list_commands(ctx), *sorted(added)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return gofer's own command, else the added one of that name."""
        return super().get_command(ctx, cmd_name) or self._all().get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupted one has the exit code that shells expect."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; an error of gofer's is told in a line, without a traceback."""
        try:
            return super().main(*args, **kwargs)
        except GoferError as error:
            complain(error)
            raise SystemExit(exit_code(error)) from None

    def _all(self) -> dict[str, _Added]:
        if self._added is None:
            self._added = {
                entry.info.name: _Added(entry)
                for entry in reversed(installed(self.commands))
                if entry.info.name not in self.commands
            }
        return self._added


class _Own(Mapping[str, Any]):
    """gofer's own commands, each made when it is asked for: all of them would take long."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, _, attribute = _OWN[name].partition(":")
            app = getattr(import_module(f".{module}", __package__), attribute)
            if not isinstance(app, typer.Typer):
                function, app = app, typer.Typer(add_completion=False)
                app.command()(function)
            self._made[name] = typer.main.get_command(app)
            self._made[name].name = name
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _OWN

    def __iter__(self) -> Iterator[str]:
        return iter(_OWN)

    def __len__(self) -> int:
        return len(_OWN)


class _Added(TyperCommand):
    """Stands for a command until it is called."""

    def __init__(self, entry: Found) -> None:
        super().__init__(
            entry.info.name,
            callback=None,
            help=f"Comes with {_package(entry)}.",
            hidden=entry.info.status != "available",
            rich_help_panel="Commands of plugins",
        )
        self._entry = entry

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Load the command that is meant; it does the rest."""
        from .config import load_config

        command = load_command(self._entry)
        # What is run must not depend on settings that could not be read.
        load_config()
        return command.make_context(info_name, args, parent=parent, **extra)


def installed(own: Iterable[str] = ()) -> list[Found]:
    """Return the added commands, from metadata alone; blocked and clashing ones are marked.

    :param own: the names that are gofer's own.
    """
    from ._discovery import COMMANDS, find
    from .config import load_config

    try:
        config = load_config()
        disable, allow = config.disable, config.allow
    except ConfigError:
        disable, allow = [], None
    found = find(disable, allow, groups=(COMMANDS,), taken=own)
    return [entry for entry in found if entry.info.group == COMMANDS]


def load_command(entry: Found) -> Any:
    """Return the command that *entry* points to, ready to be called.

    :raises PluginNotSupportedError: it is disabled, set aside or broken; says what to do.
    """
    from ._discovery import why_disabled
    from .config import load_config

    info = entry.info
    command = _loaded(entry) if info.status == "available" else None
    if command is None:
        why = f"{info.error}. {info.remedy}" if info.error else why_disabled(load_config())
        raise PluginNotSupportedError(
            f"the command {info.name!r} of {_package(entry)} cannot be used: {why}"
        )
    info.status = "loaded"
    return command


def _loaded(entry: Found) -> Any:
    from ._discovery import leave_out, load, told

    loaded = load(entry)
    if loaded is None:
        return None
    try:
        if not isinstance(loaded, typer.Typer):
            raise TypeError(f"it is a {type(loaded).__name__} and no typer.Typer")
        command = typer.main.get_command(loaded)
        # They would install the completion of a program of this name, which there is not.
        command.params = [param for param in command.params if param.name not in _COMPLETION]
        return command
    except Exception as error:
        entry.fail(
            f"{entry.value} is no command: {told(error)}",
            f"Report it to the authors of {entry.info.distribution}, or {leave_out(entry)}",
        )
        return None


def _package(entry: Found) -> str:
    return f"{entry.info.distribution} {entry.info.version or ''}".rstrip()
