"""What ends a loop that gets nowhere."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from gofer import ToolCall

__all__ = ["Guards"]

_WINDOW = 10
_REPEATS = 5
_FAILURES = 10


class Guards:
    """Watches the calls of a run: the same one over and over, or nothing but failures.

    The same call with the same result more than five times in the last ten calls, or ten
    failures in a row.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[str, str, str]] = deque(maxlen=_WINDOW)
        self._failures = 0

    def saw(self, call: ToolCall, output: str, *, failed: bool) -> str | None:
        """Take a call and what came of it; return why the run should end, or None."""
        key = (call.name, _canonical(call.arguments), output)
        self._last.append(key)
        if self._last.count(key) > _REPEATS:
            return (
                f"the model made the same call of {call.name} more than {_REPEATS} times in "
                f"{_WINDOW}, each with the same result"
            )
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= _FAILURES:
            return f"{_FAILURES} tool calls in a row failed; the last: {output[:500]}"
        return None


def _canonical(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True, default=str)
