"""What a child is asked to do, and what comes of it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ._clean import JsonValue, Lazy, Str, no_items
from .messages import Usage

__all__ = [
    "SessionInfo",
    "SubagentCallInput",
    "SubagentCallOutput",
    "SubagentResult",
    "SubagentSpec",
    "WorktreeConfig",
    "WorktreeReport",
]


class WorktreeConfig(Lazy, extra="forbid"):
    """A Git worktree to be made for a child: where, and on which new branch.

    Without ``branch``, Git makes one named after the last part of ``path``.
    """

    path: Str
    branch: Str | None = None


class SubagentSpec(Lazy, extra="forbid"):
    """What a child is to do, on which runner, and within which limits.

    :param task: the prompt. Any text is accepted here; a blank one is refused where it is used.
    :param name: a label for people and logs.
    :param agent: the agent that does it, by its name in the registry of agents.
    :param runner: the runner, by name; by default the agent's, else the configured default.
    :param tool_scope: the tools that the child may use; empty: unrestricted.
    :param worktree: a Git worktree to make for the child; it works there.
    :param session_id: the parent's session, for the log.
    :param resume: an agent's session to go on with.
    :param cwd: the child's directory; by default the Host's.
    :param timeout: seconds for the whole run; None: no limit.
    :param idle_timeout: seconds without any sign of life; None: no limit.
    :param options: whatever else the runner understands.
    """

    task: Str
    name: Str = ""
    agent: Str | None = None
    runner: Str | None = None
    tool_scope: list[Str] = Field(default_factory=no_items)
    worktree: WorktreeConfig | None = None
    session_id: Str | None = None
    resume: Str | None = None
    cwd: Path | None = None
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    idle_timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    options: dict[Str, JsonValue] = Field(default_factory=dict)


class SessionInfo(Lazy):
    """The agent's own session: its id, whether it was resumed, and if it was not, why."""

    id: Str
    resumed: bool = False
    reason: Str | None = None


class WorktreeReport(Lazy):
    """What became of a child's worktree, against the commit it was made from.

    ``changed_files`` are relative to the worktree, committed or not. ``missing_files`` are the
    uncommitted files of the parent's checkout that the child did not have.
    """

    path: Str
    base_commit: Str
    branch: Str | None = None
    changed_files: list[Str] = Field(default_factory=no_items)
    missing_files: list[Str] = Field(default_factory=no_items)


class SubagentResult(Lazy):
    """What came of a child.

    ``exit_ok`` exactly if it ended with ``end_turn`` and there is text. ``summary`` is its final
    message; ``fallback`` says that a tool call came after it. ``error`` says what went wrong.
    """

    subagent_id: Str
    summary: Str = ""
    worktree_path: Str | None = None
    exit_ok: bool = False
    stop_reason: Str = "end_turn"
    usage: Usage | None = None
    error: Str | None = None
    permissions_denied: list[JsonValue] = Field(default_factory=no_items)
    fallback: bool = False
    session: SessionInfo | None = None
    worktree: WorktreeReport | None = None


class SubagentCallInput(Lazy):
    """The arguments of ``subagent_call``: both may be left out, each means something then."""

    agent: Str | None = None
    input: Str | None = None


class SubagentCallOutput(Lazy):
    """The result of ``subagent_call``: the child's report, and why its turn ended."""

    output: Str
    stop_reason: Str
