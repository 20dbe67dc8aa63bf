"""What makes any text or JSON value of a model fit to be written as JSON again."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from . import _pydantic as _pydantic

__all__ = [
    "JsonValue",
    "Lazy",
    "Str",
    "built",
    "clean_json",
    "clean_text",
    "copied",
    "fresh",
    "no_items",
]

LEVELS = 100
"""How deep a value may be nested: readers of JSON stop at 200, and it lies inside other models."""

_BITS = 14_280  # below 4300 characters with a sign: readers of JSON take no longer ones


def clean_text(text: str) -> str:
    """Return *text* with every lone surrogate replaced by U+FFFD; surrogate pairs are joined."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any, _levels: int = LEVELS) -> Any:
    """Return *value* with texts cleaned, non-finite numbers as None, and keys as strings.

    Tuples become lists. Raises ValueError for what JSON cannot hold, or its readers not take.
    """
    match value:
        case str():
            return clean_text(value)
        case None | bool():
            return value
        case int():
            if value.bit_length() > _BITS:
                raise ValueError("a whole number of 4300 digits or more is too long")
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict() | list() | tuple() if _levels == 0:
            raise ValueError(f"nested too deeply: {LEVELS} levels at most")
        case dict():
            return {clean_text(str(k)): clean_json(v, _levels - 1) for k, v in value.items()}
        case list() | tuple():
            return [clean_json(item, _levels - 1) for item in value]
        case _:
            raise ValueError(f"a JSON value is needed, not {type(value).__name__}")


def _before_text(value: object) -> object:
    return clean_text(value) if isinstance(value, str) else value


def _before_json(value: object) -> Any:
    return clean_json(value)


Str = Annotated[str, BeforeValidator(_before_text)]


Model = TypeVar("Model", bound=BaseModel)


def built(kind: type[Model], fields: dict[str, Any], fields_set: set[str]) -> Model:
    """Return a model of *fields*, all there are, which are good: ``model_construct``, but fast."""
    model = kind.__new__(kind)
    _set(model, "__dict__", fields)
    _set(model, "__pydantic_fields_set__", fields_set)
    _set(model, "__pydantic_extra__", None)
    _set(model, "__pydantic_private__", None)
    return model


def copied(model: Model, **update: Any) -> Model:
    """Return a shallow copy of *model* with *update*, unchecked: ``model_copy``, but fast."""
    if model.__pydantic_extra__ is not None or model.__pydantic_private__ is not None:
        return model.model_copy(update=update)
    fields_set = model.__pydantic_fields_set__ | update.keys()
    return built(type(model), {**vars(model), **update}, fields_set)


def fresh(value: Any) -> Any:
    """Return a JSON value anew: what can be changed in it is nobody else's. Others stay."""
    kind = type(value)
    if kind is dict:
        return {key: fresh(item) for key, item in value.items()}
    return [fresh(item) for item in value] if kind is list else value


_set = object.__setattr__  # a model's own takes names of fields only


def no_items() -> list[Any]:
    """Return a new list, as a default: the signature of ``list`` itself is long to find out."""
    return []


class Lazy(BaseModel):
    """A model whose validator is built at its first use: most programs use few of them."""

    model_config = ConfigDict(defer_build=True)


JsonValue = Annotated[Any, BeforeValidator(_before_json)]
