"""A conversation with a model: messages, tools, the request and its response."""

from __future__ import annotations

import copy
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from ._clean import JsonValue, Lazy, Str, built, clean_text, copied, no_items
from .blocks import Block, Text
from .errors import GoferError
from .turn import Turn

__all__ = ["Message", "Request", "Response", "Tool", "Tools", "Usage"]


class Message(Lazy):
    """One message: ``content`` may be given as a string for a single text block."""

    role: Literal["system", "user", "assistant", "tool"]
    content: list[Block]

    def __init__(self, role: Any = ..., content: Any = ..., **data: Any) -> None:
        if isinstance(content, str):
            content = [Text(text=content)]
        given = {"role": role, "content": content}
        data.update({key: value for key, value in given.items() if value is not ...})
        super().__init__(**data)

    @property
    def text(self) -> str:
        """The message's text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, Text))


class Tool(Lazy):
    """What a model is told of a tool; ``input_schema`` is a JSON Schema of its arguments."""

    name: Str
    description: Str = ""
    input_schema: dict[Str, JsonValue] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class Tools(list[Tool]):
    """Tools, as each kind of model API wants them written."""

    def to_openai(self) -> list[dict[str, Any]]:
        """Return the ``tools`` of a chat-completions request."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                },
            }
            for tool in self
        ]

    def to_anthropic(self) -> list[dict[str, Any]]:
        """Return the ``tools`` of an Anthropic messages request."""
        return [tool.model_dump() for tool in self]

    def to_mcp(self) -> list[dict[str, Any]]:
        """Return the ``tools`` of an MCP ``tools/list`` result."""
        return [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in self
        ]


class Usage(Lazy):
    """Tokens of one response or one child; None where nobody said."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __add__(self, other: Usage) -> Usage:
        def add(mine: int | None, theirs: int | None) -> int | None:
            return theirs if mine is None else mine if theirs is None else mine + theirs

        return Usage(**{key: add(value, getattr(other, key)) for key, value in self})


class _WithTurn(Lazy):
    _turn: Turn | None = PrivateAttr(default=None)

    @property
    def turn(self) -> Turn:
        """Whose it is. Raises GoferError where no Host has taken it up yet."""
        if self._turn is None:
            raise GoferError(f"this {type(self).__name__} belongs to no turn: it passed no Host")
        return self._turn


class Request(_WithTurn):
    """What is asked of a model.

    ``max_tokens`` counts tokens; ``extra`` holds further fields of the model's API, which are
    sent as they are. None: the model's own default.
    """

    messages: list[Message] = Field(default_factory=no_items)
    model: Str | None = None
    tools: list[Tool] = Field(default_factory=no_items)
    tool_choice: JsonValue = None
    temperature: float | None = Field(default=None, allow_inf_nan=False)
    max_tokens: int | None = None
    extra: dict[Str, JsonValue] = Field(default_factory=dict)

    @classmethod
    def of_task(cls, task: str) -> Request:
        """Return the request of a child whose agent asks its model itself."""
        # What checks a request is long to build, and a process with one child needs it for nothing.
        text = {"type": "text", "text": clean_text(task), "message_id": None}
        said = built(Text, text, {"text"})
        message = built(Message, {"role": "user", "content": [said]}, {"role", "content"})
        fields: dict[str, Any] = {
            "messages": [message],
            "model": None,
            "tools": [],
            "tool_choice": None,
            "temperature": None,
            "max_tokens": None,
            "extra": {},
        }
        return built(cls, fields, {"messages"})

    def for_turn(self, turn: Turn) -> Request:
        """Return a copy that belongs to *turn*; changes to it do not reach the original."""
        taken = self.model_copy(
            update={
                "messages": [
                    copied(message, content=list(message.content)) for message in self.messages
                ],
                "tools": copy.deepcopy(self.tools) if self.tools else [],
                "tool_choice": copy.deepcopy(self.tool_choice),
                "extra": copy.deepcopy(self.extra) if self.extra else {},
            }
        )
        taken._turn = turn
        return taken


class Response(_WithTurn):
    """What a model answered.

    ``blocks`` are the blocks as the hooks left them, neighbouring pieces of text joined.
    ``messages`` is what to append to the conversation: the assistant's message with its calls as
    the model made them, then a tool message for each result. ``stop_reason`` is one of
    ``end_turn``, ``max_tokens``, ``max_turn_requests``, ``tool_use``, ``refusal``, ``cancelled``,
    ``error``, or whatever else the other side said. ``duration`` is in seconds.
    """

    blocks: list[Block] = Field(default_factory=no_items)
    messages: list[Message] = Field(default_factory=no_items)
    stop_reason: Str = "end_turn"
    usage: Usage | None = None
    model: Str | None = None
    duration: float = 0.0

    @property
    def text(self) -> str:
        """The response's text blocks, joined."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))
