"""The two tools, and what their arguments mean."""

from __future__ import annotations

from typing import Any

from gofer import PluginValidationError, SubagentSpec, Tool, WorktreeConfig

__all__ = ["COLLECT", "SPAWN", "TOOLS", "collect_id", "spawn_spec"]

SPAWN = "spawn_subagent"
COLLECT = "collect_subagent"

_TEXT = {"type": "string"}

TOOLS = (
    Tool(
        name=SPAWN,
        description=(
            "Start a subagent on a task of its own and go on at once; the result is its id. "
            "It knows nothing of this conversation: put all it needs into the task. Start "
            f"several for work in parallel, and get each report with {COLLECT}."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "task": {**_TEXT, "description": "What the subagent is to do and to report."},
                "name": {**_TEXT, "description": "A short label for people and logs."},
                "agent": {
                    **_TEXT,
                    "description": "The agent that does it; leave it out for the default.",
                },
                "tool_scope": {
                    "type": "array",
                    "items": _TEXT,
                    "description": "The only tools it may use; leave it out for all.",
                },
                "worktree": {
                    "type": "object",
                    "properties": {
                        "path": {**_TEXT, "description": "Where to make it."},
                        "branch": {**_TEXT, "description": "The new branch to make in it."},
                    },
                    "required": ["path"],
                    "description": "A Git worktree to make for it, so that it works apart.",
                },
                "session_id": {**_TEXT, "description": "This session's id, for the log."},
            },
            "required": ["task"],
        },
    ),
    Tool(
        name=COLLECT,
        description=(
            f"Wait for a subagent that {SPAWN} started, and get its report. It can be asked "
            "again for the same one."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "subagent_id": {**_TEXT, "description": f"The id that {SPAWN} gave, like sub-0."}
            },
            "required": ["subagent_id"],
        },
    ),
)


def spawn_spec(arguments: Any) -> SubagentSpec:
    """Return what the arguments of ``spawn_subagent`` ask for.

    :raises PluginValidationError: they are no object, the task is missing or blank, or the
        worktree is not as it should be.
    """
    given = _object(arguments, SPAWN)
    task = given.get("task")
    if not isinstance(task, str) or not task.strip():
        raise PluginValidationError(
            f"{SPAWN}.task", f"{task!r:.100} is no task: a text that is not blank is needed"
        )
    scope = given.get("tool_scope")
    return SubagentSpec(
        task=task,
        name=_text(given, "name") or "",
        agent=(_text(given, "agent") or "").strip() or None,
        tool_scope=[tool for tool in scope if isinstance(tool, str)]
        if isinstance(scope, list)
        else [],
        worktree=_worktree(given.get("worktree")),
        session_id=_text(given, "session_id"),
    )


def collect_id(arguments: Any) -> str:
    """Return the id that the arguments of ``collect_subagent`` name.

    :raises PluginValidationError: there is no string ``subagent_id``.
    """
    given = _object(arguments, COLLECT)
    subagent_id = given.get("subagent_id")
    if not isinstance(subagent_id, str):
        raise PluginValidationError(
            f"{COLLECT}.arguments",
            f"subagent_id is {subagent_id!r:.100}: the id that {SPAWN} gave is needed, a string",
        )
    return subagent_id


def _object(arguments: Any, tool: str) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        raise PluginValidationError(
            f"{tool}.arguments", f"a JSON object is needed, not {arguments!r:.100}"
        )
    return arguments


def _text(given: dict[str, Any], key: str) -> str | None:
    value = given.get(key)
    return value if isinstance(value, str) else None


def _worktree(given: Any) -> WorktreeConfig | None:
    if given is None:
        return None
    where = f"{SPAWN}.worktree"
    if not isinstance(given, dict):
        raise PluginValidationError(
            where, f"an object with a path is needed, not {given!r:.100}; or leave it out"
        )
    path, branch = given.get("path"), given.get("branch")
    if not isinstance(path, str):
        raise PluginValidationError(f"{where}.path", f"a string is needed, not {path!r:.100}")
    if branch is not None and not isinstance(branch, str):
        raise PluginValidationError(f"{where}.branch", f"a string is needed, not {branch!r:.100}")
    return WorktreeConfig(path=path, branch=branch)
