"""A request, as the chat-completions API wants it written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gofer import (
    Block,
    Image,
    Message,
    PluginValidationError,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Tools,
)

__all__ = ["encode", "to_body", "to_messages"]


def encode(request: Request, model: str | None) -> bytes:
    """Return the JSON body of *request*, asked of *model*.

    :raises PluginValidationError: it holds what JSON cannot hold.
    """
    try:
        text = json.dumps(to_body(request, model), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise PluginValidationError("request", f"it cannot be written as JSON: {error}") from None
    return text.encode(errors="replace")


def to_body(request: Request, model: str | None) -> dict[str, Any]:
    """Return the body of *request*; what its ``extra`` says comes last and wins."""
    body: dict[str, Any] = {
        "messages": to_messages(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    given = {
        "model": model,
        "tools": Tools(request.tools).to_openai() or None,
        "tool_choice": request.tool_choice,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
    }
    body.update({key: value for key, value in given.items() if value is not None})
    body.update(request.extra)
    return body


def to_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages; each tool result becomes a ``tool`` message of its own.

    Results stand where they belong: after an assistant's calls, before a user's words.
    """
    written: list[dict[str, Any]] = []
    for message in messages:
        results = [
            {"role": "tool", "tool_call_id": block.tool_call_id, "content": block.output}
            for block in message.content
            if isinstance(block, ToolResult)
        ]
        others = [block for block in message.content if not isinstance(block, ToolResult)]
        if message.role == "assistant":
            written += [_assistant(others), *results] if others or not results else results
        else:
            written += results
            if others or not results:
                role = "user" if message.role == "tool" else message.role
                written.append({"role": role, "content": _content(others)})
    return written


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": _content(blocks)}
    thoughts = "".join(block.text for block in blocks if isinstance(block, Thinking))
    if thoughts:
        said["reasoning_content"] = thoughts
    calls = [_call(block) for block in blocks if isinstance(block, ToolCall)]
    if calls:
        said["tool_calls"] = calls
        said["content"] = said["content"] or None
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    # Always JSON: chat templates parse it, and one broken call would spoil the conversation.
    arguments = "{}" if call.arguments in ("", None) else json.dumps(call.arguments)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _content(blocks: Sequence[Block]) -> str | list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Text):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, Image):
            url = f"data:{block.media_type};base64,{block.data}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts
