"""The blocks of a stream: what a model or an agent says and does, piece by piece.

Blocks are values: replace them, do not change them. Each goes through JSON and comes back equal,
whatever text or numbers a model sent.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from ._clean import JsonValue, Lazy, Str

__all__ = ["BLOCK_TYPES", "Block", "Image", "Text", "Thinking", "ToolCall", "ToolResult", "Update"]


class _Block(Lazy):
    model_config = ConfigDict(frozen=True)


class Text(_Block):
    """Words of the answer; ``message_id`` where the agent names its messages."""

    type: Literal["text"] = "text"
    text: Str
    message_id: Str | None = None


class Thinking(_Block):
    """Words that the model thought and did not say."""

    type: Literal["thinking"] = "thinking"
    text: Str
    message_id: Str | None = None
    signature: Str | None = None


class Image(_Block):
    """A picture, as base64 text."""

    type: Literal["image"] = "image"
    data: Str
    media_type: Str


class ToolCall(_Block):
    """A call of a tool.

    ``arguments`` is any JSON value, or the raw string where the model sent no JSON. ``title``,
    ``kind`` and ``status`` are what an agent says of a call that it makes itself.
    """

    type: Literal["tool_call"] = "tool_call"
    id: Str
    name: Str
    arguments: JsonValue = Field(default_factory=dict)
    title: Str | None = None
    kind: Str | None = None
    status: Str | None = None


class ToolResult(_Block):
    """What a tool call gave: text for the model, and whether it failed."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: Str
    output: Str
    is_error: bool = False


class Update(_Block):
    """What else an agent reports: ``plan``, ``usage``, ``permission``, ``mode``, and so on."""

    type: Literal["update"] = "update"
    kind: Str
    data: JsonValue = None


BLOCK_TYPES = (Text, Thinking, Image, ToolCall, ToolResult, Update)

Block = Annotated[
    Text | Thinking | Image | ToolCall | ToolResult | Update, Field(discriminator="type")
]
