"""Server-sent events, and what the formats share."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from .scripts import Conversation, Reply

__all__ = ["Format", "event", "identifier", "text_of"]


class Format(Protocol):
    """An API's way to put a conversation and a reply: a module with these functions."""

    def read(self, body: dict[str, Any]) -> Conversation:
        """Return what is asked."""

    def stream(self, reply: Reply, words: Iterable[str], model: str) -> Iterator[str]:
        """Go through the events of *reply*, whose text is *words*, each as it comes."""

    def whole(self, reply: Reply, text: str, model: str) -> dict[str, Any]:
        """Return *reply* in one piece."""

    def error(self, status: int) -> dict[str, Any]:
        """Return the body that goes with an HTTP status."""


def event(data: object, name: str | None = None) -> str:
    """Return one event; what is no text becomes JSON."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


def identifier(prefix: str) -> str:
    """Return a new id."""
    return f"{prefix}_{uuid.uuid4().hex[:16]}"


def text_of(content: object) -> str:
    """Return the text of a message, which may be a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
