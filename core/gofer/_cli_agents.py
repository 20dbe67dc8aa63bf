"""``gofer agents``: which there are, which are installed, and how to install the others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._cli_output import write

if TYPE_CHECKING:
    from .agents import Found

__all__ = ["agents"]

_COLUMNS = ("name", "installed", "version", "runner", "command")


def agents(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    no_version: Annotated[
        bool, typer.Option("--no-version", help="Run no program to ask for its version.")
    ] = False,
) -> None:
    """List the agents: is each installed, in which version, and if not, how to install it."""
    from .agents import find_all
    from .config import load_config

    found = find_all(load_config())
    told: dict[str, str] = {}
    if not no_version:
        import anyio

        from ._versions import versions

        told = anyio.run(versions, found)
    rows = [_row(entry, told) for entry in found]
    if as_json:
        write(json.dumps(rows, indent=2))
    else:
        _print(rows)


def _row(entry: Found, told: dict[str, str]) -> dict[str, Any]:
    return {
        "name": entry.agent.name,
        # Of another runner's agent gofer does not know.
        "installed": None if entry.command == () else entry.installed,
        # Some tell theirs at the end of a sentence.
        "version": told.get(entry.agent.name, "").rstrip(".+-") or None,
        "runner": entry.agent.runner,
        "command": " ".join(entry.command) if entry.command else None,
        "missing": list(entry.missing),
        "install": entry.agent.install,
        "configured": entry.configured,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    said = {True: "yes", False: "no", None: "-"}
    table = [_COLUMNS]
    table += [
        (
            row["name"],
            said[row["installed"]],
            row["version"] or "-",
            row["runner"],
            row["command"] or "-",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells, row in zip(table, [None, *rows], strict=True):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        write("  ".join(padded).rstrip())
        if row is not None and row["installed"] is False:
            write(f"    needs {', '.join(row['missing'])}: {row['install']}")
