"""What gofer asks of a language model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .blocks import Block
from .messages import Request, Usage

__all__ = ["Finish", "Model"]


@dataclass(frozen=True, slots=True)
class Finish:
    """The last item of a model's stream: why it ended. It is shown to nobody."""

    stop_reason: str = "end_turn"
    usage: Usage | None = None
    model: str | None = None


@runtime_checkable
class Model(Protocol):
    """Anything that answers a request with a stream of blocks.

    A model with a method ``bind(host)`` is given the Host before each request of its.
    """

    def stream(self, request: Request) -> AsyncIterator[Block | Finish]:
        """Answer *request*, block by block; the last item is a :class:`Finish`.

        :raises ModelError: the server refused, failed, or broke off.
        """
        ...
