"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from .events import event, identifier, text_of
from .scripts import Conversation, Reply, Said
from .tools import Offered

__all__ = ["error", "read", "stream", "whole"]

USAGE = {
    "input_tokens": 11,
    "output_tokens": 7,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}
STOPS = {"done": "end_turn", "length": "max_tokens", "refusal": "refusal"}
ERRORS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
SIGNATURE = "c2lnbmVk"


def read(body: dict[str, Any]) -> Conversation:
    """Return what is asked."""
    messages = []
    for message in body.get("messages") or ():
        content = message.get("content")
        # A new task may come in the same message as the results of the one before.
        for part in content if isinstance(content, list) else [content]:
            result = isinstance(part, dict) and part.get("type") == "tool_result"
            role = "tool" if result else message["role"]
            text = part if isinstance(part, str) else text_of([part])
            messages.append(Said(role, text, result))
    listed = body.get("tools") or ()
    tools = [Offered(tool["name"], tool.get("input_schema") or {}) for tool in listed]
    form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return Conversation(messages, tools, form.get("schema"))


def stream(reply: Reply, words: Iterable[str], model: str) -> Iterator[str]:
    """Go through the events of *reply*."""

    def said(kind: str, **data: Any) -> str:
        return event({"type": kind, **data}, kind)

    index = 0

    def start(block: dict[str, Any]) -> str:
        return said("content_block_start", index=index, content_block=block)

    def delta(kind: str, **data: Any) -> str:
        return said("content_block_delta", index=index, delta={"type": kind, **data})

    def stop() -> str:
        return said("content_block_stop", index=index)

    yield said("message_start", message=_message(model))
    if reply.thought:
        yield start({"type": "thinking", "thinking": "", "signature": ""})
        for thought in reply.thought:
            yield delta("thinking_delta", thinking=thought)
        yield delta("signature_delta", signature=SIGNATURE)
        yield stop()
        index += 1
    begun = False
    for word in words:
        if not begun:
            begun = True
            yield start({"type": "text", "text": ""})
        yield delta("text_delta", text=word)
    if begun:
        yield stop()
        index += 1
    if reply.call is not None:
        call = _call(reply)
        yield start({**call, "input": {}})
        yield delta("input_json_delta", partial_json=json.dumps(call["input"]))
        yield stop()
    end = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield said("message_delta", delta=end, usage={"output_tokens": USAGE["output_tokens"]})
    yield said("message_stop")


def whole(reply: Reply, text: str, model: str) -> dict[str, Any]:
    """Return *reply* in one piece."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    if reply.thought:
        thinking = "".join(reply.thought)
        content.insert(0, {"type": "thinking", "thinking": thinking, "signature": SIGNATURE})
    if reply.call is not None:
        content.append(_call(reply))
    return {**_message(model), "content": content, "stop_reason": _stop_reason(reply)}


def error(status: int) -> dict[str, Any]:
    """Return the body that goes with an HTTP status."""
    kind = ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": f"scripted error {status}"}}


def _message(model: str) -> dict[str, Any]:
    head = {"id": identifier("msg"), "type": "message", "role": "assistant", "model": model}
    return {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": USAGE}


def _stop_reason(reply: Reply) -> str:
    return "tool_use" if reply.call is not None else STOPS[reply.stop]


def _call(reply: Reply) -> dict[str, Any]:
    assert reply.call is not None
    return {
        "type": "tool_use",
        "id": identifier("toolu"),
        "name": reply.call.tool.name,
        "input": reply.call.arguments,
    }
