"""How a wrong setting is told: where it stands, what it is, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ._config_sources import Key, did_you_mean, dotted
from .errors import ConfigError

__all__ = ["config_error", "reason", "with_key"]

# The validator's words, where a person who writes TOML would say it otherwise.
_WORDS = {
    "Value error, ": "",
    "Input should": "should",
    "input was not a valid JSON value": "should be a value that JSON can hold",
    "dictionary": "table",
    "a valid boolean": "true or false",
    ", unable to interpret input": "",
    ", unable to parse string as a number": "",
}
# A class is what Python has for a table.
_CLASS = re.compile(r"a valid table or instance of \w+")


def config_error(
    error: ValidationError,
    model: type[BaseModel],
    place: Callable[[Key], str],
    table: Key = (),
    more: Collection[str] = (),
) -> ConfigError:
    """Say in one line for each problem what does not fit *model*, at the *place* of its key.

    :param table: where the model's own keys begin.
    :param more: keys that are allowed beside the model's own.
    """
    return ConfigError(
        "\n".join(
            f"{with_key(place(problem['loc']), (*table, *problem['loc']))}: "
            f"{reason(problem, model, table, more)}"
            for problem in error.errors(include_url=False)
        )
    )


def with_key(origin: str, key: Key) -> str:
    """Return where a setting stands, with its key, which files and variables name already."""
    return f"argument {dotted(key)}" if origin == "argument" else origin


def reason(
    problem: ErrorDetails, model: type[BaseModel], table: Key = (), more: Collection[str] = ()
) -> str:
    """Say what is wrong with a value, which value, and what is allowed."""
    loc = problem["loc"]
    fields = model.model_fields
    if problem["type"] == "extra_forbidden":
        owner = _owner(model, loc)
        if owner is None:
            return "there is no such key"
        known = [field.alias or name for name, field in owner.model_fields.items()]
        known += more if owner is model else ()
        guess = did_you_mean(str(loc[-1]), known)
        if loc == ("tool",):
            guess = "; in gofer.toml they stand at the top, without [tool.gofer]"
        return f"there is no such key{guess}; allowed: {', '.join(sorted(known)) or 'none'}"
    message = problem["msg"]
    for word, better in _WORDS.items():
        message = message.replace(word, better)
    message = _CLASS.sub("a table", message)
    if problem["type"] == "missing":
        return f"{dotted(loc)} is missing"
    field = fields.get(str(loc[0])) if loc else None
    allowed = (
        f" (allowed: {field.description})" if field and field.description and len(loc) < 3 else ""
    )
    return f"{message}, not {_shown((*table, *loc), problem['input'])}{allowed}"


def _owner(model: type[BaseModel], loc: Key) -> type[BaseModel] | None:
    """Return the model that the last part of *loc* should be a key of, where that is plain."""
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        types = [field.annotation, *get_args(field.annotation)] if field is not None else []
        inner = [kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(inner) != 1:
            return None
        (model,) = inner
    return model


def _shown(key: Key, value: object) -> str:
    from ._masked import masked

    value = masked(key, value)
    if value is None or isinstance(value, str | int | float):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    return f"a {type(value).__name__}"
