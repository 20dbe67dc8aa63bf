"""What is written of each thing that happens: sizes, and the content where it is asked for."""

from __future__ import annotations

import json
from typing import Any

from gofer import (
    Block,
    Image,
    Request,
    Response,
    Run,
    SubagentResult,
    SubagentSpec,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Update,
)

__all__ = ["Entry", "block", "ended", "request", "response", "started"]

Entry = dict[str, Any]


def started(spec: SubagentSpec, run: Run, content: bool) -> Entry:
    """A child begins its run."""
    entry: Entry = {
        "depth": run.depth,
        "runner": spec.runner,
        "agent": spec.agent,
        "name": spec.name or None,
        "cwd": str(run.cwd),
        "worktree": spec.worktree.path if spec.worktree else None,
        "resume": spec.resume,
    }
    return _with(entry, "task", spec.task, content)


def request(request: Request, content: bool) -> Entry:
    """A request leaves, of the child's or, where its own are not seen, for the whole prompt."""
    entry: Entry = {
        "turn": request.turn.id,
        "model": request.model,
        "messages": len(request.messages),
        "tools": len(request.tools),
    }
    last = request.messages[-1].text if request.messages else ""
    return _with(entry, "last", last, content)


def block(block: Block, content: bool) -> Entry:
    """A block passed the hooks, as they left it."""
    entry: Entry = {"kind": block.type}
    match block:
        case Text() | Thinking():
            return _with(entry, "text", block.text, content)
        case Image():
            # Its data is no reading matter.
            return {**entry, "media_type": block.media_type, "size": len(block.data)}
        case ToolCall():
            entry |= {"id": block.id, "name": block.name, "status": block.status}
            return _with(entry, "arguments", json.dumps(block.arguments), content)
        case ToolResult():
            entry |= {"id": block.tool_call_id, "is_error": block.is_error}
            return _with(entry, "output", block.output, content)
        case Update():
            entry |= {"update": block.kind}
            return _with(entry, "data", json.dumps(block.data), content)


def response(response: Response) -> Entry:
    """A request was answered."""
    usage = response.usage
    return {
        "turn": response.turn.id,
        "stop_reason": response.stop_reason,
        "usage": None if usage is None else usage.model_dump(exclude_none=True),
        "duration": round(response.duration, 6),
    }


def ended(result: SubagentResult | BaseException | None, seconds: float, content: bool) -> Entry:
    """A child's runner gave its result, or failed, or was cancelled."""
    entry: Entry = {"duration": round(seconds, 6)}
    if isinstance(result, Exception):
        return entry | {"stop_reason": "error", "error": _said(result)}
    if not isinstance(result, SubagentResult):
        return entry | {"stop_reason": "cancelled"}
    entry |= {"stop_reason": result.stop_reason, "error": result.error}
    entry |= {"agent_session": result.session.id if result.session else None}
    return _with(entry, "summary", result.summary, content)


def _said(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # whatever an error of somebody's does when it is to be shown
        return type(error).__name__


def _with(entry: Entry, key: str, text: str, content: bool) -> Entry:
    size = {"size": len(text)}
    return {**entry, **size, key: text} if content else {**entry, **size}
