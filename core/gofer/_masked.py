"""Settings as they may be shown: without what is secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, SecretStr

__all__ = ["MASK", "masked", "without_secrets"]

MASK = "********"
_WORDS = "api_?key|key|token|secret|passw(or)?d|passphrase|credentials?|auth(orization)?|cookie"
_SECRET = re.compile(
    rf"(?i:(^|[_-])({_WORDS})$)|[a-z](Key|Token|Secret|Passw(or)?d|Credentials?|Cookie)$"
)
# A shorter value is more likely a word than a secret.
_SHORTEST = 6
# Tables whose values often are secrets, whatever their names.
_SECRET_TABLES = frozenset({"env", "headers"})
_NAMED_TABLES = frozenset({"agents", "runners", "plugins"})
_USER_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/@\s]+@")
_QUERY_OF_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^?#\s]*\?)[^#\s]+")
_OPTION = re.compile(r"(--?[\w-]+)(=.*)?", re.S)


def masked(key: Sequence[str | int], value: Any) -> Any:
    """Return *value*, which stands at *key*, as JSON, with what may be secret in it replaced."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {name: masked((*key, str(name)), item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return _masked_list(key, value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, SecretStr) or _is_secret(key):
        return MASK
    if isinstance(value, str):
        return _QUERY_OF_URL.sub(rf"\1{MASK}", _USER_IN_URL.sub(rf"\1{MASK}@", value))
    return value


def without_secrets(text: str) -> str:
    """Return *text* without the values of variables of the environment that may be secret."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET.search(name):
            text = text.replace(value, MASK)
    return text


def _masked_list(key: Sequence[str | int], values: Sequence[Any]) -> list[Any]:
    """Mask also what an option of a command says is secret: ``--token=x``, ``--token x``."""
    shown: list[Any] = []
    follows = False
    for index, item in enumerate(values):
        option = _OPTION.fullmatch(item) if isinstance(item, str) else None
        secret = option is not None and _SECRET.search(option[1])
        if follows and option is None and item is not None:
            shown.append(MASK)
        elif secret and option is not None and option[2]:
            shown.append(f"{option[1]}={MASK}")
        else:
            shown.append(masked((*key, index), item))
        follows = bool(secret and option is not None and not option[2])
    return shown


def _is_secret(key: Sequence[str | int]) -> bool:
    match key:
        case ("agents", _, "env", "inherit" | "unset", int()):
            return False  # the name of a variable
    for index, part in enumerate(key):
        if isinstance(part, int) or _is_users_name(key, index):
            continue
        if part in _SECRET_TABLES or _SECRET.search(part):
            return True
    return False


def _is_users_name(key: Sequence[str | int], index: int) -> bool:
    """Whether users name a table of settings as they like there, such as an agent."""
    if index == len(key) - 1 or key[0] not in _NAMED_TABLES:
        return False
    return index == 1 or (index == 3 and key[2] == "mcp_servers")
