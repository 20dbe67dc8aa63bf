"""A message as a line, and a line as a message."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from pydantic_core import from_json, to_json

from ._text import cut

__all__ = ["Unreadable", "decode", "encode"]

_VERSION = rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_ID = rb'"id"\s*:\s*"?\s*(\d{1,18})\s*"?\s*'
_ANSWER = re.compile(
    rb"\s*\{\s*" + _VERSION + rb"(?:" + _ID + rb",\s*" + _VERSION + rb')?"(?:result|error)"\s*:'
)
_ID_AT_END = re.compile(rb",\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
_LONE_SURROGATE = re.compile(r"\\ud[89a-f]")


class Unreadable(dict[str, Any]):
    """An answer of which no more is known than its id, and why."""

    reason = ""


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as a line."""
    # In ASCII: some agents take other separators of lines than a newline for one too.
    with suppress(ValueError):
        line = to_json(message, inf_nan_mode="null")
        if line.isascii():
            return line + b"\n"
    with suppress(ValueError):
        text = json.dumps(message, separators=(",", ":"), allow_nan=False)
        if not _LONE_SURROGATE.search(text):
            return text.encode() + b"\n"
    # Half of a pair is no character, and NaN no number: some agents refuse a whole message for it.
    whole = json.dumps(message, ensure_ascii=False).encode("utf-16", "surrogatepass")
    clean = json.loads(whole.decode("utf-16", "replace"), parse_constant=lambda _: None)
    return json.dumps(clean, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Return what a line says; an :class:`Unreadable` answer, or None, where it is no JSON."""
    try:
        return _parsed(line)
    except ValueError as error:
        return _unreadable(line, str(error))
    except RecursionError:
        return _unreadable(line, "it is nested too deeply")


def _parsed(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        pass  # which the following understands all the same, perhaps
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        # An answer counts also where a character in it was cut in two.
        return json.loads(line.decode(errors="replace"))


def _unreadable(line: bytes, reason: str) -> Unreadable | None:
    """Return what can be told of a line that is no JSON, or none that can be read.

    Who waits for it would wait for ever: that it answers something is seen at its ends.
    """
    begun = _ANSWER.match(line)
    found = begun and (begun if begun[1] else _ID_AT_END.search(line, len(line) - 100))
    if not found:
        return None
    message = Unreadable(id=int(found[1]))
    message.reason = cut(reason)
    return message
