"""Chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .events import event, identifier, text_of
from .scripts import Conversation, Reply, Said
from .tools import Call, Offered

__all__ = ["error", "read", "stream", "whole"]

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
STOPS = {"done": "stop", "length": "length", "refusal": "content_filter"}


def read(body: dict[str, Any]) -> Conversation:
    """Return what is asked."""
    functions = [tool.get("function") or tool for tool in body.get("tools") or ()]
    form = (body.get("response_format") or {}).get("json_schema") or {}
    return Conversation(
        messages=[
            Said(message["role"], text_of(message.get("content")), message["role"] == "tool")
            for message in body.get("messages") or ()
        ],
        tools=[Offered(tool["name"], tool.get("parameters") or {}) for tool in functions],
        schema=form.get("schema"),
    )


def stream(reply: Reply, words: Iterable[str], model: str) -> Iterator[str]:
    """Go through the chunks of *reply*."""
    head = _head("chat.completion.chunk", model)

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for thought in reply.thought:
        yield chunk({"reasoning_content": thought})
    for word in words:
        yield chunk({"content": word})
    if reply.call is not None:
        call = _call(reply.call)
        function, arguments = call["function"], call["function"]["arguments"]
        yield chunk(
            {"tool_calls": [{**call, "index": 0, "function": {**function, "arguments": ""}}]}
        )
        # In two pieces, as the real ones do.
        half = len(arguments) // 2
        for piece in (arguments[:half], arguments[half:]):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(reply))
    yield event({**head, "choices": [], "usage": USAGE})
    yield event("[DONE]")


def whole(reply: Reply, text: str, model: str) -> dict[str, Any]:
    """Return *reply* in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reply.thought:
        message["reasoning_content"] = "".join(reply.thought)
    if reply.call is not None:
        message["tool_calls"] = [_call(reply.call)]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return {**_head("chat.completion", model), "choices": [choice], "usage": USAGE}


def error(status: int) -> dict[str, Any]:
    """Return the body that goes with an HTTP status."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": f"scripted error {status}", "type": kind, "code": None}}


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": identifier("chat"), "object": kind, "created": int(time.time()), "model": model}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.call is not None else STOPS[reply.stop]


def _call(call: Call) -> dict[str, Any]:
    function = {"name": call.tool.name, "arguments": json.dumps(call.arguments)}
    return {"id": identifier("call"), "type": "function", "function": function}
