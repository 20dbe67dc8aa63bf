"""The final message: one rule for every runner."""

from __future__ import annotations

from collections import OrderedDict

from ._pieces import Pieces
from .blocks import Block, Text, ToolCall, ToolResult, Update

__all__ = ["FinalMessage"]

_SEEN_CALLS = 65_536


class FinalMessage:
    """Finds the final message of a turn in its blocks, as they come.

    The turn's text is cut where the message id changes, and where a tool call first shows
    itself: in a call, in a result of an unknown id, or in a permission request. The last piece
    that is not only white space is the final message. Memory: the current piece and the last
    one that counted; of call ids the last 65,536 (an older one would cut again).
    """

    __slots__ = ("_blank", "_call_since", "_kept", "_message_id", "_piece", "_seen")

    def __init__(self) -> None:
        self._piece = Pieces()
        self._blank = True
        self._message_id: str | None = None
        self._kept = ""
        self._call_since = False
        self._seen: OrderedDict[str, None] = OrderedDict()

    def add(self, block: Block) -> None:
        """Take the next block of the turn."""
        if isinstance(block, Text):
            text = block.text
            if not text:
                return
            if block.message_id != self._message_id:
                self.cut()
                self._message_id = block.message_id
            self._piece.add(text)
            if self._blank and not text.isspace():
                self._blank = False
        elif isinstance(block, ToolCall):
            self._call(block.id)
        elif isinstance(block, ToolResult):
            self._call(block.tool_call_id)
        elif isinstance(block, Update) and block.kind == "permission":
            data = block.data if isinstance(block.data, dict) else {}
            self._call(data.get("tool_call_id"))

    def next_response(self) -> None:
        """Begin another response of a model: another message, whose calls may reuse old ids."""
        self.cut()
        self._seen.clear()

    def cut(self) -> None:
        """End the current piece: what follows is another message."""
        if not self._blank:
            self._kept = self._piece.text
            self._call_since = False
            self._blank = True
        if self._piece:
            self._piece = Pieces()

    @property
    def text(self) -> str:
        """The final message so far; empty where no text came."""
        return self._kept if self._blank else self._piece.text

    @property
    def fallback(self) -> bool:
        """Whether a tool call came after the final message."""
        return self._blank and self._call_since and bool(self._kept)

    def _call(self, call_id: object) -> None:
        if isinstance(call_id, str):
            if call_id in self._seen:
                return
            self._seen[call_id] = None
            if len(self._seen) > _SEEN_CALLS:
                self._seen.popitem(last=False)
        self.cut()
        self._call_since = True
