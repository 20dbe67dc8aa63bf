"""The command line: ``gofer run``, ``agents``, ``plugins``, ``certify``, and what is added."""

from __future__ import annotations

from typing import Annotated

import typer

from ._cli_commands import Group
from ._cli_output import show_log

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    # Its tracebacks show the values of variables, keys among them.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    show_log(verbose)


def main() -> None:
    """Run the command line that the process was started with."""
    typer.main.get_command(app).main(prog_name="gofer")
