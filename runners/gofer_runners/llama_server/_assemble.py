"""A streamed chat completion: from its frames to blocks.

The frames are those of OpenAI's ``chat.completion.chunk``, with ``reasoning_content`` or
``reasoning`` beside ``content``, as llama-server, vLLM and others send them. What is missing, null
or of the wrong type is passed over; nothing that was said is dropped because of what stands
beside it.
"""

from __future__ import annotations

import json
from typing import Any

from gofer import Block, Text, Thinking, Usage

from ._tool_calls import ToolCalls

__all__ = ["STOP_REASONS", "Assembler"]

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

_raw_decode = json.JSONDecoder().raw_decode


class Assembler:
    """Takes the data of each event, gives the blocks that it completes.

    ``finished`` is true once a finish reason came, ``done`` once ``[DONE]`` did. ``error`` is
    what the server said went wrong: no more will come then.
    """

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.done = False
        self.error: Any = None
        self.frames = 0
        self.usage: Usage | None = None
        self.model: str | None = None
        self.cut_calls: list[str] = []
        self._calls = ToolCalls()
        self._choice_index: Any = None
        self._spoke = False
        self._refused = False
        self._halves: dict[type[Text | Thinking], str] = {}

    @property
    def finished(self) -> bool:
        """Whether the server said that the response is whole."""
        return self.done or self.finish_reason is not None

    @property
    def stop_reason(self) -> str:
        """Why the response ended, in gofer's words."""
        if self._refused:
            return "refusal"
        if self.finish_reason is None:
            return "tool_use" if self._calls.count else "end_turn"
        return STOP_REASONS.get(self.finish_reason, self.finish_reason)

    def feed(self, data: bytes, *, last: bool = False) -> list[Block]:
        """Take the data of one event. *last*: the stream ended with it, so it may be cut."""
        if self.done:
            return []
        try:
            # Not json.loads: half of its time for a small frame goes to finding the encoding.
            text = str(data, "utf-8")
            frame, end = _raw_decode(text)
            if end != len(text):
                frame = json.loads(text)
        except (ValueError, RecursionError) as error:
            return self._odd(data, error, last)
        return self.take(frame) if type(frame) is dict else []

    def _odd(self, data: bytes, error: Exception, last: bool) -> list[Block]:
        data = data.strip()
        if not data:
            return []
        if data == b"[DONE]":
            self.done = True
            return self._flush()
        if b"\n" in data:  # events without the blank line between them
            return [block for line in data.split(b"\n") for block in self.feed(line, last=last)]
        if isinstance(error, UnicodeDecodeError):
            return self.feed(data.decode(errors="replace").encode(), last=last)
        if not last:
            self.error = f"an event that is no JSON: {data[:200].decode(errors='replace')}"
        return []

    def take(self, frame: dict[str, Any]) -> list[Block]:
        """Take one frame, or a whole ``chat.completion`` in the place of all frames."""
        self.frames += 1
        blocks: list[Block] = []
        choices = frame.get("choices")
        if choices and type(choices) is list:
            for choice in choices:
                if type(choice) is not dict:
                    continue
                # Where a request asked for several choices, the first one is the response.
                index = choice.get("index")
                if self._choice_index is None:
                    self._choice_index = index
                if index is None or index == self._choice_index:
                    self._choice(choice, blocks)
        if self.model is None:
            model = frame.get("model")
            self.model = model if model and isinstance(model, str) else None
        if "usage" in frame:
            self.usage = _usage(frame["usage"]) or self.usage
        error = frame.get("error")
        if error:
            self.error = error
        elif choices is None and self._is_error(frame):
            self.error = frame
        return blocks

    @staticmethod
    def _is_error(frame: dict[str, Any]) -> bool:
        # Some servers send the error as the frame itself.
        said = frame.get("object") == "error" or "code" in frame or "detail" in frame
        return said and ("message" in frame or "detail" in frame)

    def _choice(self, choice: dict[str, Any], blocks: list[Block]) -> None:
        delta = choice.get("delta")
        if type(delta) is not dict:
            # A whole message stands for the deltas; after them it would only repeat them.
            message = choice.get("message")
            delta = message if type(message) is dict and not self._spoke else {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought:
            self._say(Thinking, thought, blocks)
        content = delta.get("content")
        if content:
            if (
                type(content) is str
                and content.isascii()
                and not self._calls.waiting
                and not self._halves
            ):
                self._spoke = True
                blocks.append(Text(text=content))
            else:
                self._say(Text, content, blocks)
        if len(delta) > 1 or not (content or thought):
            self._others(delta, blocks)
        reason = choice.get("finish_reason")
        if reason and self.finish_reason is None and isinstance(reason, str):
            self.finish_reason = reason
            blocks += self._flush()

    def _others(self, delta: dict[str, Any], blocks: list[Block]) -> None:
        refusal = delta.get("refusal")
        if refusal:
            self._refused = True
            self._say(Text, refusal, blocks)
        pieces = delta.get("tool_calls")
        if isinstance(pieces, dict):
            pieces = [pieces]
        elif not isinstance(pieces, list):
            pieces = []
        if delta.get("function_call"):
            pieces = [*pieces, delta["function_call"]]
        try:
            for piece in pieces:
                self._spoke = True
                blocks += self._calls.add(piece)
        except OverflowError as error:
            self.error = str(error)

    def _say(self, kind: type[Text | Thinking], said: Any, blocks: list[Block]) -> None:
        """Add what was said: a text, or parts with texts in them."""
        if isinstance(said, list):
            for part in said:
                if isinstance(part, str):
                    self._say(kind, part, blocks)
                elif isinstance(part, dict):
                    self._say(kind, part.get("text"), blocks)
                    self._say(Thinking, part.get("thinking"), blocks)
            return
        if not isinstance(said, str) or not said:
            return
        self._spoke = True
        # Words after a call mean that the call is complete.
        blocks += self._calls.settled()
        # JavaScript servers may cut a character between the two halves of its UTF-16 form.
        text = self._halves.pop(kind, "") + said
        if "\ud800" <= text[-1] <= "\udbff":
            self._halves[kind] = text[-1]
            text = text[:-1]
        if text:
            blocks.append(kind(text=text))

    def _flush(self) -> list[Block]:
        return [*self._half_said(), *self._calls.rest()]

    def _half_said(self) -> list[Block]:
        halves, self._halves = self._halves, {}
        return [kind(text=half) for kind, half in halves.items()]

    def end(self) -> list[Block]:
        """Give what is still to be given when the stream has ended.

        Without a finish reason that is what is surely whole; ``cut_calls`` names the rest.
        """
        if self.finished:
            return self._flush()
        whole, self.cut_calls = self._calls.salvaged()
        return [*self._half_said(), *whole]


def _usage(data: Any) -> Usage | None:
    if not isinstance(data, dict):
        return None
    counts = {
        "input_tokens": _count(data.get("prompt_tokens")),
        "output_tokens": _count(data.get("completion_tokens")),
        "cached_tokens": _detail(data, "prompt_tokens_details", "cached_tokens"),
        "reasoning_tokens": _detail(data, "completion_tokens_details", "reasoning_tokens"),
    }
    return None if set(counts.values()) == {None} else Usage(**counts)


def _detail(data: dict[str, Any], table: str, key: str) -> int | None:
    details = data.get(table)
    return _count(details.get(key)) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str | float):
        try:
            value = int(value)
        except (ValueError, OverflowError):
            return None
    return value if isinstance(value, int) and value >= 0 else None
