"""The tools that run a program: find, search, shell."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from pydantic import Field

from gofer import Run
from gofer.roots import Roots, RootsError

from ._commands import Outcome, own_environment, run_command
from ._tool import Arguments, HarnessTool, ToolFailure

__all__ = ["program_tools"]

_OUTPUT = 32 * 1024
_SEARCH_SECONDS = 30.0
_SHELL_SECONDS = 120.0
_MOST_SECONDS = 3600.0
_COMMAND = 30_000  # the system takes no more than 128 KiB in one argument


class Find(Arguments):
    pattern: str = Field(min_length=1, description="A glob, such as **/*.py or test_*.txt.")
    path: str = Field(default=".", description="The directory to look below.")


class Search(Arguments):
    pattern: str = Field(min_length=1, description="A regular expression (Python's).")
    path: str = Field(default=".", description="The directory to look below.")
    glob: str = Field(default="**", description="Only in files that this glob matches.")


class Shell(Arguments):
    command: str = Field(min_length=1, max_length=_COMMAND, description="The command line, for sh.")
    seconds: float = Field(
        default=_SHELL_SECONDS,
        gt=0,
        le=_MOST_SECONDS,
        allow_inf_nan=False,
        description="How long it may take.",
    )


def program_tools(run: Run, roots: Roots, *, shell: bool) -> list[HarnessTool]:
    """Return the tools; *shell*: with the one that runs commands."""
    tools = [
        HarnessTool(
            "find_files", "Find files by their names.", partial(_find, run, roots), Find, reads=True
        ),
        HarnessTool(
            "search_files",
            "Find the lines of files that a regular expression matches.",
            partial(_search, run, roots),
            Search,
            reads=True,
        ),
    ]
    if shell:
        tools.append(
            HarnessTool(
                "run_shell",
                "Run a command in the working directory, and get its output and exit code. What it "
                "leaves running is ended with it.",
                partial(_shell, run),
                Shell,
            )
        )
    return tools


async def _find(run: Run, roots: Roots, asked: Find) -> str:
    found = await _look(run, roots, asked.path, {"glob": asked.pattern})
    return found or f"(no file matches {asked.pattern!r})"


async def _search(run: Run, roots: Roots, asked: Search) -> str:
    try:
        re.compile(asked.pattern)
    except re.error as error:
        raise ToolFailure(f"{asked.pattern!r} is no regular expression: {error}") from None
    order = {"glob": asked.glob, "pattern": asked.pattern}
    found = await _look(run, roots, asked.path, order)
    return found or f"(nothing matches {asked.pattern!r})"


async def _look(run: Run, roots: Roots, path: str, order: dict[str, Any]) -> str:
    try:
        root = await run_sync(roots.directory, path)
    except RootsError as error:
        raise ToolFailure(str(error)) from None
    program = Path(__file__).with_name("_search.py")
    outcome = await run_command(
        run.host,
        [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(program)],
        cwd=run.cwd,
        environment=own_environment(),
        stdin=json.dumps({"root": str(root), **order}).encode(),
        seconds=_SEARCH_SECONDS,
        limit=_OUTPUT,
    )
    if outcome.returncode is None:
        raise ToolFailure(
            f"the search took over {_SEARCH_SECONDS:g} s: use a simpler pattern, or a narrower path"
        )
    if outcome.returncode:
        raise ToolFailure(f"the search failed: {outcome.output.strip()[-500:]}")
    return outcome.output.rstrip("\n")


async def _shell(run: Run, asked: Shell) -> str:
    shell = ["cmd", "/d", "/s", "/c"] if os.name == "nt" else ["/bin/sh", "-c"]
    outcome = await run_command(
        run.host,
        [*shell, asked.command],
        cwd=run.cwd,
        environment={**own_environment(), **run.environment},
        seconds=asked.seconds,
        limit=_OUTPUT,
    )
    said = _ended(outcome, asked)
    output = outcome.output
    if output and not output.endswith("\n"):
        output += "\n"
    if outcome.returncode != 0:
        raise ToolFailure(f"{output}[{said}]")
    return output or f"[{said}, no output]"


def _ended(outcome: Outcome, asked: Shell) -> str:
    code = outcome.returncode
    if code is None:
        return f"ended after {asked.seconds:g} s: raise seconds, or run less at once"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
