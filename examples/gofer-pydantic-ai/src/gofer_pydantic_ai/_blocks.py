"""What an agent's events are in blocks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from gofer import Block, Image, Text, Thinking, ToolCall, ToolResult
from pydantic_ai.messages import (
    AgentStreamEvent,
    BaseToolCallPart,
    BaseToolReturnPart,
    FilePart,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)

__all__ = ["Blocks"]


class Blocks:
    """Turns the events of one run into blocks, as they come.

    Each response of the model is a message of its own. An id that the model uses again, as some
    do, is made different from the first.
    """

    def __init__(self) -> None:
        self._said: list[str] = []
        self._response = 0
        self._ids: dict[str, str] = {}
        self._calls = 0
        self._open: dict[str, None] = {}

    def of(self, event: AgentStreamEvent) -> Iterator[Block]:
        """Return the blocks that *event* is; most events are one, or none."""
        match event:
            case PartStartEvent(index=index, part=part):
                if index == 0:
                    self._next_message()
                if isinstance(part, TextPart):
                    yield from self.say(part.content)
                elif isinstance(part, ThinkingPart) and part.content:
                    yield Thinking(text=part.content, message_id=self._message)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                yield from self.say(text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)) if text:
                yield Thinking(text=text, message_id=self._message)
            case PartEndEvent(part=FilePart(content=file)) if file.media_type.startswith("image/"):
                data = base64.b64encode(file.data).decode()
                yield Image(data=data, media_type=file.media_type)
            case PartEndEvent(part=NativeToolCallPart() as call):
                yield self._call(call)
            case PartEndEvent(part=NativeToolReturnPart() as returned):
                yield self._result(returned)
            case FunctionToolCallEvent(part=call):
                yield self._call(call)
            case FunctionToolResultEvent(part=returned):
                yield self._result(returned)

    def say(self, text: str, *, anew: bool = False) -> Iterator[Block]:
        """Return *text* as a block; *anew*: as a message of its own."""
        if anew:
            self._next_message()
        if text:
            self._said.append(text)
            yield Text(text=text, message_id=self._message)

    def unfinished(self) -> Iterator[Block]:
        """Return a result for each call that has none, since the run ended before it came."""
        for call in self._open:
            yield ToolResult(
                tool_call_id=call, output="the run ended before this call did", is_error=True
            )
        self._open.clear()

    @property
    def text(self) -> str:
        """The text of the last message so far."""
        return "".join(self._said)

    @property
    def _message(self) -> str:
        return str(self._response)

    def _next_message(self) -> None:
        self._response += 1
        self._said.clear()

    def _call(self, call: BaseToolCallPart) -> Block:
        given = call.tool_call_id
        self._calls += 1
        own = f"{given}#{self._calls}" if given in self._ids else given
        self._ids[given] = own
        self._open[own] = None
        return ToolCall(id=own, name=call.tool_name, arguments=_arguments(call.args))

    def _result(self, returned: BaseToolReturnPart) -> Block:
        own = self._ids.get(returned.tool_call_id, returned.tool_call_id)
        self._open.pop(own, None)
        return ToolResult(
            tool_call_id=own,
            output=returned.model_response_str(),
            is_error=returned.outcome != "success",
        )


def _arguments(given: str | dict[str, Any] | None) -> Any:
    if not isinstance(given, str):
        return given or {}
    try:
        return json.loads(given)
    except ValueError:
        return given
