"""``gofer run``: one child from the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ._cli_output import Format
from ._launch import early

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
    base_url: Annotated[str | None, typer.Option(help="The model server.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name there.")] = None,
    output: Annotated[
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
    something not installed; 130 interrupted, 143 terminated: the child was stopped.
    """
    if branch is not None and worktree is None:
        raise typer.BadParameter("needs --worktree too", param_hint="--branch")
    task = _from_stdin() if task == "-" else _redecoded(task)
    shown = Format.json if as_json else output
    settings = {
        key: value for key, value in {"base_url": base_url, "model": model}.items() if value
    }
    with early(agent is not None) as launched:
        # All that runs a child: nothing else of the command line is to wait for it.
        from pydantic import ValidationError

        from ._cli_child import Job
        from .subagents import SubagentSpec, WorktreeConfig

        try:
            spec = SubagentSpec(
                task=task,
                agent=agent,
                runner=runner,
                worktree=None if worktree is None else WorktreeConfig(path=worktree, branch=branch),
                resume=resume,
                tool_scope=tool or [],
                timeout=timeout,
                idle_timeout=idle_timeout,
            )
        except ValidationError as error:
            problem = error.errors()[0]
            option = f"--{str(problem['loc'][0]).replace('_', '-')}"
            raise typer.BadParameter(problem["msg"], param_hint=option) from None
        code = Job(spec, settings, cwd, shown, launched).main()
    raise typer.Exit(code)


def _from_stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _redecoded(argument: str) -> str:
    # Where the locale is not UTF-8, its bytes were read as something else.
    try:
        argument.encode()
    except UnicodeEncodeError:
        return os.fsencode(argument).decode("utf-8", "replace")
    return argument
