"""Whose request, chunk or response it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .blocks import Block

if TYPE_CHECKING:
    from .host import Host

__all__ = ["StreamChunk", "Turn"]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One model request, or one prompt of an agent, from ``on_request`` to its completion.

    ``id`` is new for each. ``depth`` is 0 for the parent's own turns, and one more for each
    generation of children. ``subagent_id`` groups the turns of one child. ``probe``: nobody
    speaks, the plugins are only asked for their tools. ``observed``: the child executes its own
    tools, so its calls are news, not work: nobody else may execute them.
    """

    id: str
    host: Host
    session: str
    depth: int = 0
    subagent_id: str | None = None
    runner: str | None = None
    agent: str | None = None
    probe: bool = False
    observed: bool = False


class StreamChunk:
    """One block on its way through the hooks: assign ``block`` to replace it.

    ``original`` is the block as the model or agent sent it.
    """

    __slots__ = ("block", "original", "turn")

    def __init__(self, block: Block, turn: Turn) -> None:
        self.block = block
        self.original = block
        self.turn = turn

    def __repr__(self) -> str:
        return f"StreamChunk(block={self.block!r}, turn={self.turn.id!r})"
