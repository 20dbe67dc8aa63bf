"""``gofer run`` once it is known what is asked: from that to the exit code."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._cli_output import Format, complain, exit_code, show_log
from ._launch import early
from .errors import GoferError

__all__ = ["Ended", "OptionError", "begin", "begin_plain"]


class OptionError(Exception):
    """An option cannot have the value that it was given."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option


class Ended(NamedTuple):
    """How a run ended: the exit code, and whether only gofer's own plugins were part of it."""

    code: int
    alone: bool


def begin_plain(asked: dict[str, Any]) -> None:
    """Have a child do what is *asked*, the arguments of :func:`begin`, and exit.

    Return, before anything was done, if an option is wrong: who reads all command lines tells.
    """
    show_log()
    try:
        ended = begin(**asked)
        if ended.alone:
            # The end of the interpreter would search all that was loaded for garbage. Who catches
            # the exit and goes on is not to be kept from looking for it until then.
            atexit.unregister(gc.freeze)
            atexit.register(gc.freeze)
        sys.exit(ended.code)
    except OptionError:
        return
    except GoferError as error:
        complain(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


def begin(
    task: str,
    agent: str | None = None,
    runner: str | None = None,
    cwd: Path | None = None,
    worktree: str | None = None,
    branch: str | None = None,
    timeout: float | None = None,
    idle_timeout: float | None = None,
    resume: str | None = None,
    tool: Sequence[str] | None = None,
    base_url: str | None = None,
    model: str | None = None,
    format: Format = Format.text,
    as_json: bool = False,
) -> Ended:
    """Have a child do *task*, print its final message, and return how it ended.

    The arguments are those of ``_cli_run``.

    :raises OptionError: one of them is wrong.
    :raises GoferError: the child could not be started.
    """
    said = [
        ("--agent", agent), ("--runner", runner), ("--resume", resume), ("--base-url", base_url),
        ("--model", model), *(("--tool", name) for name in tool or ()),
    ]  # fmt: skip
    for option, value in said:
        if value is not None and not value.strip():
            raise OptionError(option, f"is {value!r}: leave it out, or say which")
    if branch is not None and worktree is None:
        raise OptionError("--branch", "needs --worktree too")
    task = _from_stdin() if task == "-" else task
    if not task.strip():
        raise OptionError("TASK", "is blank: say what to do")
    given = {"base_url": base_url, "model": model}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value}
    if agent is not None and model:
        settings["agents"] = {
            agent: {"model": model}
        }  # a process is told so, others read the above
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
                tool_scope=[*(tool or ())],
                timeout=timeout,
                idle_timeout=idle_timeout,
            )
        except ValidationError as error:
            problem = error.errors()[0]
            option = f"--{str(problem['loc'][0]).replace('_', '-')}"
            raise OptionError(option, problem["msg"]) from None
        job = Job(spec, settings, cwd, Format.json if as_json else format, launched)
        return Ended(job.main(), job.alone)


def _from_stdin() -> str:
    if sys.stdin is None:
        raise OptionError("TASK", "- reads the task from stdin, which is closed")
    return sys.stdin.buffer.read().decode("utf-8", "replace")
