"""OpenAI's responses."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from . import chat
from .events import event, identifier, text_of
from .scripts import Conversation, Reply, Said
from .tools import Call, Offered

__all__ = ["error", "read", "stream", "whole"]

USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 18,
}
REASONS = {"length": "max_output_tokens", "refusal": "content_filter"}

error = chat.error


def read(body: dict[str, Any]) -> Conversation:
    """Return what is asked."""
    items = body.get("input") or ()
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages, tools = [], list(_tools(body.get("tools")))
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(Said(item["role"], text_of(item.get("content"))))
        elif kind.endswith("_output"):
            messages.append(Said("tool", str(item.get("output")), result=True))
        elif kind == "additional_tools":
            tools += _tools(item.get("tools"))
    form = (body.get("text") or {}).get("format") or {}
    return Conversation(messages, tools, form.get("schema"))


def _tools(listed: Any, namespace: str | None = None) -> Iterator[Offered]:
    for tool in listed or ():
        kind, name = tool.get("type", "function"), tool.get("name")
        if kind == "namespace":
            yield from _tools(tool.get("tools"), name)
        else:
            yield Offered(name or kind, tool.get("parameters") or {}, kind, namespace)


def stream(reply: Reply, words: Iterable[str], model: str) -> Iterator[str]:
    """Go through the events of *reply*."""
    numbers = itertools.count()
    output: list[dict[str, Any]] = []
    response = _response(model)

    def said(kind: str, **data: Any) -> str:
        return event({"type": kind, "sequence_number": next(numbers), **data}, kind)

    def item(kind: str, value: dict[str, Any]) -> str:
        return said(f"response.output_item.{kind}", output_index=len(output), item=value)

    def part(kind: str, value: dict[str, Any], **data: Any) -> str:
        return said(f"response.{kind}", item_id=value["id"], output_index=len(output), **data)

    yield said("response.created", response=response)
    yield said("response.in_progress", response=response)
    if reply.thought:
        done = _reasoning(reply)
        yield item("added", {**done, "summary": []})
        empty = {"type": "summary_text", "text": ""}
        yield part("reasoning_summary_part.added", done, summary_index=0, part=empty)
        for thought in reply.thought:
            yield part("reasoning_summary_text.delta", done, summary_index=0, delta=thought)
        yield item("done", done)
        output.append(done)
    begun = _message("")
    yield item("added", {**begun, "status": "in_progress", "content": []})
    yield part("content_part.added", begun, content_index=0, part=begun["content"][0])
    text = ""
    for word in words:
        text += word
        yield part("output_text.delta", begun, content_index=0, delta=word)
    done = {**_message(text), "id": begun["id"]}
    yield part("output_text.done", done, content_index=0, text=text)
    yield part("content_part.done", done, content_index=0, part=done["content"][0])
    yield item("done", done)
    output.append(done)
    if reply.call is not None:
        done = _call(reply.call)
        yield item("added", {**done, "status": "in_progress"})
        if "arguments" in done:
            yield part("function_call_arguments.delta", done, delta=done["arguments"])
            yield part("function_call_arguments.done", done, arguments=done["arguments"])
        yield item("done", done)
        output.append(done)
    last = _finished(reply, response, output)
    yield said(f"response.{last['status']}", response=last)


def whole(reply: Reply, text: str, model: str) -> dict[str, Any]:
    """Return *reply* in one piece."""
    output = [_reasoning(reply)] if reply.thought else []
    output.append(_message(text))
    if reply.call is not None:
        output.append(_call(reply.call))
    return _finished(reply, _response(model), output)


def _response(model: str) -> dict[str, Any]:
    return {
        "id": identifier("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": model,
        "output": [],
        "usage": None,
        "error": None,
    }


def _finished(
    reply: Reply, response: dict[str, Any], output: list[dict[str, Any]]
) -> dict[str, Any]:
    response = {**response, "output": output, "usage": USAGE}
    if reply.stop == "done":
        return {**response, "status": "completed"}
    details = {"reason": REASONS[reply.stop]}
    return {**response, "status": "incomplete", "incomplete_details": details}


def _reasoning(reply: Reply) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": "".join(reply.thought)}]
    return {"id": identifier("rs"), "type": "reasoning", "summary": summary}


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    head = {"id": identifier("msg"), "type": "message", "role": "assistant"}
    return {**head, "status": "completed", "content": content}


def _call(call: Call) -> dict[str, Any]:
    head = {"status": "completed", "call_id": identifier("call"), "name": call.tool.name}
    if call.tool.kind == "custom":
        return {
            **head,
            "id": identifier("ctc"),
            "type": "custom_tool_call",
            "input": call.arguments,
        }
    arguments = json.dumps(call.arguments)
    item = {**head, "id": identifier("fc"), "type": "function_call", "arguments": arguments}
    return item | ({"namespace": call.tool.namespace} if call.tool.namespace else {})
