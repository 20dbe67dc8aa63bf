"""What an agent sent, as text for messages: whatever it is, and in few words."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_json", "cut"]

_MOST = 2000


def as_json(value: Any) -> str:
    """Return the JSON text of *value*; never raises."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "what is nested too deeply"


def cut(text: str) -> str:
    """Return *text*, cut after 2000 characters."""
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"
