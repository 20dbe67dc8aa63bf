"""Settings as they may be shown: without what is secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, SecretStr

__all__ = ["MASK", "masked"]

MASK = "********"
_SECRET = re.compile(
    r"(?i)(^|[_-])(api_?key|key|token|secret|passw(or)?d|auth(orization)?|cookie)$"
)
# Tables whose values often are secrets, whatever their names.
_SECRET_TABLES = frozenset({"env", "headers"})
_USER_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/@\s]+@")


def masked(key: Sequence[str | int], value: Any) -> Any:
    """Return *value*, which stands at *key*, as JSON, with what may be secret in it replaced."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {name: masked((*key, str(name)), item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked((*key, index), item) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, SecretStr) or _is_secret(key):
        return MASK
    if isinstance(value, str):
        return _USER_IN_URL.sub(rf"\1{MASK}@", value)
    return value


def _is_secret(key: Sequence[str | int]) -> bool:
    return any(
        part in _SECRET_TABLES or (isinstance(part, str) and _SECRET.search(part)) for part in key
    )
