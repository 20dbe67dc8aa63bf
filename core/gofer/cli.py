"""The command line: ``gofer run``, ``agents``, ``plugins``, ``certify``, and what is added."""

from __future__ import annotations

import gc
import logging
from typing import Annotated

import typer

from ._cli_commands import Group
from ._cli_output import note

__all__ = ["app", "main"]

_OBJECTS = 100_000
"""How many more objects there have to be before garbage is looked for."""

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    # Its tracebacks show the values of variables, keys among them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Notes(logging.Handler):
    """Writes log messages as lines for people."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"gofer: {record.getMessage()}")


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"gofer {version('gofer')}")
        raise typer.Exit


@app.callback()
def gofer(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell on stderr what goes on.")
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Delegate work to subagents."""
    logger = logging.getLogger("gofer")
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    if not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes())


def main() -> None:
    """Run the command line that the process was started with."""
    # What is loaded stays, and searching it for garbage, again and at the end, would take a sixth
    # of the time of a short run.
    gc.set_threshold(_OBJECTS)
    try:
        typer.main.get_command(app).main(prog_name="gofer")
    finally:
        gc.freeze()
