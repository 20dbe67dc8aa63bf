"""What a stream brought, kept as small as its text."""

from __future__ import annotations

from collections import deque

from ._clean import built, copied
from ._pieces import Pieces
from .blocks import Block, Image, Text, Thinking, ToolCall, ToolResult, Update
from .messages import Message

__all__ = ["Transcript"]


_MOST_ENTRIES = 4096
_MOST_TEXT = 64 * 1024 * 1024


class Transcript:
    """Collects the blocks of one response; neighbouring pieces of text become one block.

    :param last: keep no more than the last 4096 blocks and 64 MiB of their text. A model's
        response has a bound of its own; an agent may work for days.
    """

    def __init__(self, *, last: bool = False) -> None:
        self._entries: deque[tuple[Block, ToolCall | None]] = deque()
        self._last = last
        self._sizes: deque[int] = deque()
        self._size = 0
        self._open: Text | Thinking | None = None
        self._text = Pieces()
        self._signature: str | None = None

    def add(self, original: Block, block: Block) -> None:
        """Take *block*, which the hooks made of *original*."""
        kind = type(block)
        if kind is Text or kind is Thinking:
            opened = self._open
            if (
                type(opened) is not kind or opened.message_id != block.message_id  # type: ignore[union-attr]
            ):
                self._close()
                self._open = block  # type: ignore[assignment]
            self._text.add(block.text)  # type: ignore[union-attr]
            if kind is Thinking and block.signature:  # type: ignore[union-attr]
                self._signature = block.signature  # type: ignore[union-attr]
            return
        self._close()
        called = isinstance(original, ToolCall) and isinstance(block, ToolCall | ToolResult)
        self._keep(block, original if called else None)  # type: ignore[arg-type]

    def blocks(self) -> list[Block]:
        """Return the blocks as the hooks left them."""
        self._close()
        return [block for block, _ in self._entries]

    def messages(self) -> list[Message]:
        """Return the assistant's message with its calls as made, then a message per result."""
        self._close()
        said: list[Block] = []
        results: list[Message] = []
        for block, call in self._entries:
            if isinstance(block, ToolResult):
                results.append(_message("tool", [block]))
            if call is not None:
                said.append(call)
            elif not isinstance(block, ToolResult | Update):
                said.append(block)
        return [*([_message("assistant", said)] if said else ()), *results]

    def _close(self) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        update: dict[str, object] = {"text": self._text.text}
        if self._signature is not None:
            update["signature"] = self._signature
        self._keep(copied(opened, **update), None)
        self._text, self._signature = Pieces(), None

    def _keep(self, block: Block, call: ToolCall | None) -> None:
        self._entries.append((block, call))
        if not self._last:
            return
        self._sizes.append(_size(block))
        self._size += self._sizes[-1]
        while len(self._entries) > _MOST_ENTRIES or self._size > _MOST_TEXT:
            self._entries.popleft()
            self._size -= self._sizes.popleft()


def _message(role: str, content: list[Block]) -> Message:
    return built(Message, {"role": role, "content": content}, {"role", "content"})


def _size(block: Block) -> int:
    match block:
        case Text() | Thinking():
            return len(block.text)
        case ToolResult():
            return len(block.output)
        case ToolCall():
            return len(repr(block.arguments))
        case Image():
            return len(block.data)
    return len(repr(block.data))
