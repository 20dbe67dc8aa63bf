"""What a model is told of ``subagent_call``."""

from __future__ import annotations

from collections.abc import Sequence

from gofer import Tool
from gofer.agents import Found

__all__ = ["TOOL", "tool"]

TOOL = "subagent_call"

_FIRST = (
    "Have another agent do a task, and wait for its report: the last message it writes. It knows "
    "nothing of this conversation. Leave out `agent`, and an internal agent does it: it starts "
    "with an empty context, asks nobody for permission, and keeps nothing."
)
_REST = (
    "Leave out `input`, and the last message sent to an agent in this session is sent again. "
    "Several calls in one response run one after another; for work in parallel use "
    "spawn_subagent and collect_subagent."
)


def tool(found: Sequence[Found], note: str) -> Tool:
    """Return the tool, for the agents that are *found*; *note* ends the first paragraph."""
    installed = [entry for entry in found if entry.installed]
    if installed:
        listed = [
            f"- {entry.agent.name}" + (f": {' '.join(entry.command)}" if entry.command else "")
            for entry in installed
        ]
        agents = "The agents that are installed here:\n" + "\n".join(listed)
    else:
        names = ", ".join(entry.agent.name for entry in found)
        agents = (
            "No other agent was found here, so leave out `agent`. These are supported once they "
            f"are installed: {names}; the command `gofer agents` says how."
        )
    first = f"{_FIRST} {note}" if note else _FIRST
    return Tool(
        name=TOOL,
        description=f"{first}\n\n{_REST}\n\n{agents}",
        input_schema={
            "type": "object",
            "properties": {
                "agent": {
                    "type": "string",
                    "enum": [entry.agent.name for entry in installed or found],
                    "description": "Which agent does it; left out: the internal one.",
                },
                "input": {"type": "string", "description": "The message to send."},
            },
            "required": [],
        },
    )
