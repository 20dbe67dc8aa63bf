"""What makes any text or JSON value of a model fit to be written as JSON again."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator

__all__ = ["JsonValue", "Str", "clean_json", "clean_text"]


def clean_text(text: str) -> str:
    """Return *text* with every lone surrogate replaced by U+FFFD; surrogate pairs are joined."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any) -> Any:
    """Return *value* with texts cleaned, non-finite numbers as None, and keys as strings.

    Tuples become lists. Raises ValueError for what JSON cannot hold.
    """
    match value:
        case str():
            return clean_text(value)
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
        case list() | tuple():
            return [clean_json(item) for item in value]
        case _:
            raise ValueError(f"a JSON value is needed, not {type(value).__name__}")


def _before_text(value: object) -> object:
    return clean_text(value) if isinstance(value, str) else value


def _before_json(value: object) -> Any:
    try:
        return clean_json(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


Str = Annotated[str, BeforeValidator(_before_text)]
JsonValue = Annotated[Any, BeforeValidator(_before_json)]
