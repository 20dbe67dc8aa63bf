"""Pieces of one message that came together, made one: an agent that writes fast costs less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["joined"]

_CHUNKS = frozenset({"agent_message_chunk", "agent_thought_chunk"})

Message = dict[str, Any]


def joined(messages: Iterable[Message]) -> Iterator[Message]:
    """Give *messages* in their order, neighbouring text of one message joined."""
    held: Message | None = None
    held_key: object = None
    parts: list[str] = []
    for message in messages:
        key, text = _chunk(message)
        if key is not None and key == held_key:
            parts.append(text)
            continue
        if held is not None:
            yield _with_text(held, parts)
        held, held_key, parts = (message, key, [text]) if key is not None else (None, None, [])
        if held is None:
            yield message
    if held is not None:
        yield _with_text(held, parts)


def _chunk(message: Message) -> tuple[object, str]:
    """Return whose text *message* is a piece of, and the text; None where it is none."""
    try:
        params = message["params"]
        update = params["update"]
        content = update["content"]
        text = content["text"]
        if (
            type(text) is str
            and text
            and update["sessionUpdate"] in _CHUNKS
            and content["type"] == "text"
            and message["method"] == "session/update"
            and "id" not in message
        ):
            return (params["sessionId"], update["sessionUpdate"], update.get("messageId")), text
    except (KeyError, TypeError, AttributeError):
        pass
    return None, ""


def _with_text(message: Message, parts: list[str]) -> Message:
    if len(parts) > 1:
        message["params"]["update"]["content"]["text"] = "".join(parts)
    return message
