"""Gemini's ``generateContent`` and ``streamGenerateContent``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .events import event, identifier, text_of
from .scripts import Conversation, Reply, Said
from .tools import Offered

__all__ = ["error", "read", "stream", "whole"]

USAGE = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
STOPS = {"done": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}


def read(body: dict[str, Any]) -> Conversation:
    """Return what is asked."""
    messages = []
    for content in body.get("contents") or ():
        parts = content.get("parts") or []
        result = any("functionResponse" in part for part in parts)
        role = "tool" if result else content.get("role", "user")
        messages.append(Said(role, text_of(parts), result))
    declared = [
        Offered(tool["name"], tool.get("parametersJsonSchema") or tool.get("parameters") or {})
        for group in body.get("tools") or ()
        for tool in group.get("functionDeclarations") or ()
    ]
    config = body.get("generationConfig") or {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    return Conversation(messages, declared, schema)


def stream(reply: Reply, words: Iterable[str], model: str) -> Iterator[str]:
    """Go through the events of *reply*."""
    for thought in reply.thought:
        yield event(_answer([{"text": thought, "thought": True}], model))
    for word in words:
        yield event(_answer([{"text": word}], model))
    if reply.call is not None:
        yield event(_answer([_call(reply)], model))
    yield event(_answer([{"text": ""}], model, STOPS[reply.stop]))


def whole(reply: Reply, text: str, model: str) -> dict[str, Any]:
    """Return *reply* in one piece."""
    parts: list[dict[str, Any]] = [{"text": text}]
    if reply.thought:
        parts.insert(0, {"text": "".join(reply.thought), "thought": True})
    if reply.call is not None:
        parts.append(_call(reply))
    return _answer(parts, model, STOPS[reply.stop])


def error(status: int) -> dict[str, Any]:
    """Return the body that goes with an HTTP status."""
    text, name = f"scripted error {status}", STATUSES.get(status, "INTERNAL")
    return {"error": {"code": status, "message": text, "status": name}}


def _answer(parts: list[dict[str, Any]], model: str, finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    head = {"modelVersion": model, "responseId": identifier("gemini")}
    return {"candidates": [candidate], "usageMetadata": USAGE, **head}


def _call(reply: Reply) -> dict[str, Any]:
    assert reply.call is not None
    call = {"name": reply.call.tool.name, "args": reply.call.arguments, "id": identifier("fc")}
    return {"functionCall": call}
