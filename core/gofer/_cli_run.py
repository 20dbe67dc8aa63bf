"""``gofer run``: one child from the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ._cli_begin import OptionError, begin
from ._cli_output import Format

__all__ = ["run"]


def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What to do; - reads it from stdin.")],
    agent: Annotated[str | None, typer.Option(help="The agent that does it.")] = None,
    runner: Annotated[str | None, typer.Option(help="The runner it runs on.")] = None,
    cwd: Annotated[
        Path | None, typer.Option(help="The directory to work in, and whose settings hold.")
    ] = None,
    worktree: Annotated[
        str | None, typer.Option(metavar="PATH", help="Make this Git worktree, and work there.")
    ] = None,
    branch: Annotated[str | None, typer.Option(help="The new branch of the worktree.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the whole run.")] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(help="Seconds without a sign of life.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="SESSION", help="Go on with this session of the agent.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(help="Only allow this tool; may be repeated.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="The model server; an agent has its own.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model, by its name there.")] = None,
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="text: the final message, and progress for who watches; "
            "json: the result, nothing else; quiet: the final message alone.",
        ),
    ] = Format.text,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Have a child do TASK, and print its final message.

    Exit codes: 0 the child did it; 1 it failed; 2 it could not be started: usage, settings, or
    something not installed; 130 interrupted, 143 terminated, 129 hung up: the child was stopped.
    """
    asked = {name: _redecoded(name, value) for name, value in locals().items()}
    try:
        code = begin(**asked).code
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    raise typer.Exit(code)


def _redecoded(name: str, value: Any) -> Any:
    """Return a text as it was meant where the locale is not UTF-8 and read its bytes otherwise.

    :raises typer.BadParameter: an option's are no UTF-8 at all; in a task they are replaced.
    """
    if isinstance(value, list):
        return [_redecoded(name, item) for item in value]
    if not isinstance(value, str) or isinstance(value, Format):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        as_bytes = os.fsencode(value)
    else:
        return value
    try:
        return as_bytes.decode("utf-8", "replace" if name == "task" else "strict")
    except UnicodeDecodeError:
        option = f"--{name.replace('_', '-')}"
        raise typer.BadParameter(f"{as_bytes!r} is no UTF-8", param_hint=option) from None
