"""``gofer plugins``: what is installed, whether it works, and what to do if it does not."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._cli_output import is_terminal, write

if TYPE_CHECKING:
    from ._discovery import Found

__all__ = ["plugins"]

_COLUMNS = ("name", "kind", "package", "version", "state")
_INDENT = "    "
_NARROW = 80


def plugins(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    no_load: Annotated[
        bool, typer.Option("--no-load", help="Read the metadata alone: run no code of theirs.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long each may take to load.")
    ] = 30.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if one of them is broken.")
    ] = False,
) -> None:
    """List the plugins, runners and commands that are installed here, and what is broken.

    Each is loaded in a process of its own, so that one that hangs or crashes is found. Exit codes:
    0, whatever is found; with --strict 1, if one is broken; 2 if the settings cannot be read.
    """
    own: Any = getattr(context.find_root().command, "commands", ())
    rows = _rows(own, None if no_load else timeout)
    if as_json:
        write(json.dumps([row.data() for row in rows], indent=2))
    else:
        _print(rows)
    if strict and any(row.entry.broken for row in rows):
        raise typer.Exit(1)


@dataclass
class _Row:
    entry: Found
    printed: str = ""

    def data(self) -> dict[str, Any]:
        from ._discovery import kind_of

        info = self.entry.info
        return {
            "name": info.name,
            "kind": kind_of(info),
            "group": info.group or None,
            "distribution": info.distribution,
            "version": info.version,
            "status": info.status,
            "error": info.error,
            "remedy": info.remedy,
            "warning": self.warning,
            "hooks": list(info.hooks),
        }

    @property
    def warning(self) -> str | None:
        """What is no error, but should not be."""
        if not self.printed:
            return None
        return (
            f"It writes to stdout while it is loaded: {self.printed[:80]!r}. Who reads gofer's "
            f"output stumbles over that; report it to the authors of {self.entry.info.distribution}"
        )


def _rows(own: Any, seconds: float | None) -> list[_Row]:
    from ._discovery import COMMANDS, GROUPS, find, tell_of_names_for_nobody
    from .config import load_config

    config = load_config()
    found = find(config.disable, config.allow, groups=(*GROUPS, COMMANDS), taken=own)
    tell_of_names_for_nobody(config, found)
    rows = [_Row(entry) for entry in found]
    if seconds is not None:
        import anyio

        from ._probing import probe

        tried = [row for row in rows if row.entry.info.status == "available"]
        printed = anyio.run(probe, [row.entry for row in tried], seconds)
        for position, text in printed.items():
            tried[position].printed = text
    return rows


def _print(rows: list[_Row]) -> None:
    # In a pipe a line is a line, so that what looks for words finds all of it.
    wraps = is_terminal(sys.stdout)
    width = shutil.get_terminal_size((_NARROW, 24)).columns if wraps else _NARROW
    table = [_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells, row in zip(table, [None, *rows], strict=True):
        padded = (cell.ljust(size) for cell, size in zip(cells, widths, strict=True))
        line = "  ".join(padded).rstrip()
        hooks = ", ".join(row.entry.info.hooks) if row is not None else "hooks"
        full = sum(widths) + 2 * len(widths)
        if row is None or full + len(hooks) <= width:
            write(f"{line:<{full}}{hooks}".rstrip())
            hooks = ""
        else:
            write(line)
        for told in (hooks, *_told(row)):
            if told:
                write(_indented(told, width if wraps else None))


def _cells(row: _Row) -> tuple[str, ...]:
    data = row.data()
    keys = ("name", "kind", "distribution", "version", "status")
    return tuple(" ".join(str(data[key] or "-").split()) for key in keys)


def _told(row: _Row | None) -> tuple[str | None, ...]:
    if row is None:
        return ()
    return (row.entry.info.error, row.entry.info.remedy, row.warning)


def _indented(text: str, width: int | None) -> str:
    line = " ".join(text.split())
    if width is None:
        return _INDENT + line
    return textwrap.fill(
        line, max(width, 40), initial_indent=_INDENT, subsequent_indent=_INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
