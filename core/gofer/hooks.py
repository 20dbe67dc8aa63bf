"""The four hooks: everything else is built on them.

Mark an implementation with :data:`hookimpl`. The first three may be plain or ``async def`` and
are called one after another: built-ins, then discovered plugins by (distribution, name), then
``Host(plugins=[...])`` in list order, with ``tryfirst`` and ``trylast`` inside that.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import pluggy

from .messages import Request, Response
from .subagents import SubagentResult, SubagentSpec
from .turn import StreamChunk

if TYPE_CHECKING:
    from .runner import Run

__all__ = ["HOOKS", "HookSpecs", "hookimpl"]

PROJECT = "gofer"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """What a plugin may implement: at least one of these."""

    @hookspec
    def on_request(self, request: Request) -> Awaitable[None] | None:
        """See a model request before it leaves; change it in place.

        An error aborts the turn: nothing is sent.
        """

    @hookspec
    def on_stream_chunk(self, chunk: StreamChunk) -> Awaitable[None] | None:
        """See each block of a stream; assign ``chunk.block`` to replace it.

        A tool is executed by replacing its ``ToolCall`` by a ``ToolResult`` of the same id. An
        error ends the stream with it.
        """

    @hookspec
    def on_response_complete(self, response: Response) -> Awaitable[None] | None:
        """See the whole response, once, after its stream ended: well, badly or cancelled.

        It runs for every plugin even if one fails.
        """

    @hookspec(firstresult=True)
    def run_subagent(self, spec: SubagentSpec, run: Run) -> Awaitable[SubagentResult] | None:
        """Return an awaitable that runs the child, or None: not mine.

        A plain function, so that it can decline; pluggy's wrappers may watch or bound the
        awaitable.
        """


HOOKS: dict[str, tuple[str, ...]] = {
    "on_request": ("request",),
    "on_stream_chunk": ("chunk",),
    "on_response_complete": ("response",),
    "run_subagent": ("spec", "run"),
}
