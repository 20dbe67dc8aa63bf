"""Tool calls, put together from the pieces in which a stream brings them."""

from __future__ import annotations

import json
import re
import secrets
from collections import deque
from typing import Any

from pydantic import ValidationError

from gofer import ToolCall

__all__ = ["CALL_LIMIT", "HELD_LIMIT", "ToolCalls", "parse_arguments"]

HELD_LIMIT = 64 * 1024 * 1024
"""How many characters of arguments may wait for their end."""

CALL_LIMIT = 4096
"""How many calls one response may have."""

_TOKEN = re.compile(r'["\\{}\[\]]')


def parse_arguments(text: str) -> Any:
    """Return the value that *text* spells: ``{}`` for nothing, *text* itself if it is no JSON."""
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class _Call:
    """One call: its pieces so far, and whether they make a whole JSON object or array."""

    __slots__ = (
        "_depth",
        "_escaped",
        "_in_string",
        "_value",
        "given",
        "id",
        "index",
        "name",
        "texts",
        "whole",
    )

    def __init__(self, index: object) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.texts: list[str] = []
        self.whole = False
        self.given = False
        self._value: Any = None
        self._depth: int | None = None
        self._in_string = False
        self._escaped = False

    def add(self, arguments: Any) -> None:
        if isinstance(arguments, str):
            self.texts.append(arguments)
            self._scan(arguments)
        elif arguments is not None:
            self._value = arguments
            self.whole = True

    def _scan(self, text: str) -> None:
        """Follow strings and brackets, so that the end is seen without parsing again and again."""
        if self._depth is None:
            text = text.lstrip()
            if not text:
                return
            self._depth = 0 if text[0] in "{[" else -1
        if self._depth < 0:  # neither object nor array: nothing in it tells where it ends
            return
        start = 0
        if self._escaped and text:
            self._escaped = False
            start = 1
        for found in _TOKEN.finditer(text, start):
            if found.start() < start:
                continue
            token = found[0]
            if token == '"':
                self._in_string = not self._in_string
            elif token == "\\":
                start = found.end() + 1
                self._escaped = start > len(text)
            elif not self._in_string:
                self._depth += 1 if token in "{[" else -1
                self.whole = self._depth == 0
                if self._depth < 0:
                    return

    def block(self) -> ToolCall:
        text = "".join(self.texts)
        value = parse_arguments(text) if text.strip() or self._value is None else self._value
        call_id = self.id or f"call_{secrets.token_hex(12)}"
        try:
            return ToolCall(id=call_id, name=self.name, arguments=value)
        except ValidationError:  # nested too deeply
            return ToolCall(id=call_id, name=self.name, arguments=text)


class ToolCalls:
    """The calls of one response. Each is given away, in order, as soon as it is complete.

    A piece belongs to the call of its id, else to that of its index, else to the last one. A
    piece with a name begins a call where the one it would belong to has another name, another
    id, or all its arguments.
    """

    def __init__(self) -> None:
        self._open: deque[_Call] = deque()
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[object, _Call] = {}
        self._last: _Call | None = None
        self._count = 0
        self._held = 0

    @property
    def count(self) -> int:
        """How many calls there were."""
        return self._count

    @property
    def waiting(self) -> bool:
        """Whether a call has begun that was not given away yet."""
        return bool(self._open)

    def add(self, piece: Any) -> list[ToolCall]:
        """Take one entry of a delta's ``tool_calls``; return the calls that are complete by it.

        :raises OverflowError: more arguments wait, or more calls came, than can be meant.
        """
        if not isinstance(piece, dict):
            return []
        function = piece.get("function")
        if not isinstance(function, dict):
            function = piece
        call_id, name = _text(piece.get("id")), _text(function.get("name"))
        arguments, index = function.get("arguments"), piece.get("index")
        if not isinstance(index, int | float | str):
            index = None
        complete: list[ToolCall] = []
        call = self._find(call_id, index, name)
        if call is None:
            if not (call_id or name or arguments):
                return []
            complete = self.settled()
            call = self._begin(index)
        if call_id and not call.id:
            # One id for several calls would make their results ambiguous.
            call.id = "" if call_id in self._by_id else call_id
            self._by_id[call_id] = call
        call.name = call.name or name
        if not call.given and arguments is not None:
            call.add(arguments)
            if isinstance(arguments, str):
                self._held += len(arguments)
            if self._held > HELD_LIMIT:
                raise OverflowError(f"the arguments of a tool call exceed {HELD_LIMIT} characters")
        return complete

    def _begin(self, index: object) -> _Call:
        if self._count >= CALL_LIMIT:
            raise OverflowError(f"more than {CALL_LIMIT} tool calls came in one response")
        self._count += 1
        call = self._last = _Call(index)
        self._open.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _find(self, call_id: str, index: object, name: str) -> _Call | None:
        call = self._by_id.get(call_id) if call_id else None
        if call is not None:
            # Some servers give every call the same id.
            if name and call.name and (name != call.name or (call.whole and index != call.index)):
                return None
            return call
        call = self._last if index is None else self._by_index.get(index)
        if call is None:
            return None if call_id or name else self._last
        if name and call.name and (name != call.name or call.whole or (call_id and call.id)):
            return None
        return call

    def settled(self) -> list[ToolCall]:
        """Give away the calls at the front whose arguments are whole."""
        complete = []
        while self._open and self._open[0].whole:
            complete.append(self._give(self._open.popleft()))
        return complete

    def rest(self) -> list[ToolCall]:
        """Give away all that wait: the response is over."""
        complete = [self._give(call) for call in self._open]
        self._open.clear()
        return complete

    def salvaged(self) -> tuple[list[ToolCall], list[str]]:
        """Give away those that are whole, and name those that the end of the stream cut."""
        cut = [call.name for call in self._open if not call.whole]
        complete = [self._give(call) for call in self._open if call.whole]
        self._open.clear()
        return complete, cut

    def _give(self, call: _Call) -> ToolCall:
        call.given = True
        self._held -= sum(map(len, call.texts))
        block = call.block()
        call.texts.clear()
        return block


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
