"""``gofer plugins``: what is installed, whether it works, and what to do if it does not."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._cli_commands import installed, load_command
from ._cli_output import write
from .errors import GoferError, PluginNotSupportedError

if TYPE_CHECKING:
    from ._discovery import PluginInfo

__all__ = ["plugins"]

_COLUMNS = ("name", "group", "distribution", "version", "status")


def plugins(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    no_load: Annotated[
        bool, typer.Option("--no-load", help="Read the metadata alone: run no code of theirs.")
    ] = False,
) -> None:
    """List the plugins, runners and commands that are installed here."""
    import anyio

    from ._discovery import find
    from .config import load_config

    own: Any = getattr(context.find_root().command, "commands", ())
    commands = installed(own)
    if no_load:
        config = load_config()
        found = [entry.info for entry in find(config.disable, config.allow)]
    else:
        # Each failure is in the list; it need not be told twice.
        logging.getLogger("gofer").setLevel(logging.ERROR)
        found = anyio.run(_loaded)
        for entry in commands:
            if entry.info.status == "available":
                try:
                    load_command(entry)
                except PluginNotSupportedError:
                    continue  # the entry says it
    found += [entry.info for entry in commands]
    if as_json:
        write(json.dumps([_row(info) for info in found], indent=2))
    else:
        _print(found)


async def _loaded() -> list[PluginInfo]:
    from ._discovery import RUNNERS
    from .host import Host

    async with Host(strict=False) as host:
        infos = host.plugins
        for info in infos:
            if info.group == RUNNERS and info.status == "available":
                try:
                    host.runner(info.name)
                except GoferError as error:
                    if info.error is None:
                        info.error = str(error)
        return infos


def _row(info: PluginInfo) -> dict[str, Any]:
    row = asdict(info)
    return {key: row[key] for key in (*_COLUMNS, "error", "remedy", "hooks")}


def _print(found: list[PluginInfo]) -> None:
    rows = [_COLUMNS] + [tuple(str(_row(info)[key] or "-") for key in _COLUMNS) for info in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, info in zip(rows, [None, *found], strict=True):
        write(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
        for told in (info.error, info.remedy) if info is not None else ():
            if told:
                write("    " + " ".join(told.split()))
