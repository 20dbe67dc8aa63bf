"""What an agent reports (``session/update``), as gofer's blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic import ValidationError

from gofer import Block, Image, Text, Thinking, ToolCall, ToolResult, Update

from ._text import as_json

__all__ = ["Updates", "update_of"]

_KINDS = {
    "plan": "plan",
    "usage_update": "usage",
    "current_mode_update": "mode",
    "session_info_update": "session_info",
    "available_commands_update": "commands",
    "config_option_update": "config_options",
    "user_message_chunk": "user_message",
}
_ENDED = {"completed": False, "failed": True, "cancelled": True}
_CALLS = 65_536
"""How many tool calls of a turn are remembered; an older one would be taken for a new one."""


class Updates:
    """Maps the updates of one turn; a tool call is announced once, and ended once.

    Agents differ in how they tell of a call: with ``tool_call`` first or not at all, with a
    permission request before it, without a status, with the whole call in one update.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[str, bool] = OrderedDict()
        self._open = 0

    def blocks(self, update: dict[str, Any]) -> Iterator[Block]:
        """Return the blocks of one update, whatever its kind."""
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            yield self._content(update, Text)
        elif kind == "agent_thought_chunk":
            yield self._content(update, Thinking)
        elif kind == "tool_call" or kind == "tool_call_update":
            yield from self._call(update)
        else:
            data = {key: value for key, value in update.items() if key != "sessionUpdate"}
            yield update_of(_KINDS.get(str(kind), str(kind or "unknown")), data)

    def permission(self, params: dict[str, Any]) -> Iterator[Block]:
        """Return the blocks of a permission request; the call it is about comes first."""
        call = params.get("toolCall")
        call = call if isinstance(call, dict) else {}
        yield from self._call(call, told=False)
        yield update_of(
            "permission",
            {
                "tool_call_id": call.get("toolCallId"),
                "title": call.get("title"),
                "kind": call.get("kind"),
                "options": params.get("options"),
            },
        )

    @property
    def open(self) -> bool:
        """Whether a call has not ended yet."""
        return self._open > 0

    def end(self, *, failed: bool) -> Iterator[Block]:
        """Return a result for each call that the agent left open."""
        for call_id, ended in self._calls.items():
            if not ended:
                self._calls[call_id] = True
                self._open -= 1
                yield ToolResult(tool_call_id=call_id, output="", is_error=failed)

    def _content(self, update: dict[str, Any], block: type[Text] | type[Thinking]) -> Block:
        content = update.get("content")
        if type(content) is not dict:
            return update_of("content", content)
        kind = content.get("type")
        text = content.get("text")
        if kind == "text" and type(text) is str:
            message_id = update.get("messageId")
            return block(text=text, message_id=message_id if type(message_id) is str else None)
        data, media_type = content.get("data"), content.get("mimeType")
        if kind == "image" and isinstance(data, str) and isinstance(media_type, str):
            return Image(data=data, media_type=media_type)
        return update_of("content", content)

    def _call(self, update: dict[str, Any], *, told: bool = True) -> Iterator[Block]:
        call_id = update.get("toolCallId")
        if not isinstance(call_id, str):
            if told:
                yield update_of("tool_call_update", update)
            return
        status = _text(update, "status")
        ends = _ENDED.get(status or "")
        if call_id not in self._calls:
            self._calls[call_id] = False
            self._open += 1
            if len(self._calls) > _CALLS:
                _, ended = self._calls.popitem(last=False)
                self._open -= not ended
            called = partial(
                ToolCall,
                id=call_id,
                # The protocol names no tools: the kind is what comes nearest.
                name=_text(update, "kind") or "tool",
                title=_text(update, "title"),
                kind=_text(update, "kind"),
                status=status,
            )
            arguments = update.get("rawInput", {})
            try:
                yield called(arguments=arguments)
            except ValidationError:
                yield called(arguments=_fitting(arguments))
        elif told and (ends is None or self._calls[call_id]):
            data = {key: value for key, value in update.items() if key != "sessionUpdate"}
            yield update_of("tool_call_update", data)
        if ends is not None and not self._calls[call_id]:
            self._calls[call_id] = True
            self._open -= 1
            yield ToolResult(tool_call_id=call_id, output=_output(update), is_error=ends)


def update_of(kind: str, data: Any) -> Update:
    """Return an update of *data*, whatever an agent sent: what no block can hold is its text."""
    try:
        return Update(kind=kind, data=data)
    except ValidationError:
        return Update(kind=kind, data=_fitting(data))


def _fitting(value: Any) -> Any:
    """Return *value* with what is nested too deeply, or a number too long, as its JSON text."""
    if isinstance(value, dict):
        return {key: item if _fits(item) else as_json(item) for key, item in value.items()}
    return as_json(value)


def _fits(item: Any) -> bool:
    try:
        Update(kind="", data=[item])
    except ValidationError:
        return False
    return True


def _text(update: dict[str, Any], key: str) -> str | None:
    value = update.get(key)
    return value if isinstance(value, str) else None


def _output(update: dict[str, Any]) -> str:
    """Return what a call gave: its content as text, else its raw output."""
    parts: list[str] = []
    content = update.get("content")
    for item in content if isinstance(content, list) else []:
        if not isinstance(item, dict):
            continue
        inner = item.get("content")
        if item.get("type") == "diff":
            parts.append(f"changed {item.get('path')}")
        elif isinstance(inner, dict) and isinstance(inner.get("text"), str):
            parts.append(inner["text"])
        elif isinstance(inner, dict):
            parts.append(f"[{inner.get('type')}]")
    if parts:
        return "\n".join(parts)
    raw = update.get("rawOutput")
    if isinstance(raw, dict):
        raw = next((raw[key] for key in ("output", "stdout", "text") if key in raw), raw)
    if raw is None or isinstance(raw, str):
        return raw or ""
    return as_json(raw)
