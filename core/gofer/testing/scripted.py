"""A model and a runner that play a script, for tests of what is built on gofer.

A script is a list of items, played in order: a block, or a string for a :class:`gofer.Text`; an
exception, which is raised; a callable, plain or async, which is given the request (of a model) or
the :class:`gofer.Run` (of a runner), and returns an item, a list of items, or None. A script of
one item may be given as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from ..blocks import BLOCK_TYPES, Block, Text, ToolCall
from ..errors import PluginValidationError
from ..messages import Request
from ..model import Finish
from ..runner import Run, Runner
from ..subagents import SubagentResult, SubagentSpec

__all__ = ["Item", "Script", "ScriptedModel", "ScriptedRunner"]

Item: TypeAlias = Block | Finish | SubagentResult | str | BaseException | Callable[[Any], Any]
Script: TypeAlias = Item | Sequence[Item]


class ScriptedModel:
    """A :class:`gofer.Model` that plays one script for each request.

    Where a script has no :class:`gofer.Finish`, it ends with ``tool_use`` after a tool call and
    with ``end_turn`` otherwise. A request beyond the last script raises ``AssertionError``.

    :param turns: the scripts, the first request's first.
    """

    def __init__(self, turns: Iterable[Script]) -> None:
        self.turns = list(turns)
        self.requests: list[Request] = []
        """The requests it was sent, as the plugins left them."""

    async def stream(self, request: Request) -> AsyncGenerator[Block | Finish, None]:
        """Play the next script."""
        number = len(self.requests)
        self.requests.append(request)
        if number >= len(self.turns):
            raise AssertionError(
                f"the script of this ScriptedModel has {len(self.turns)} turns, and a request "
                f"more came: {request.messages[-1:]!r:.200}"
            )
        called = False
        waiting: list[Any] = [self.turns[number]]
        while (item := await _next(waiting, request)) is not None:
            yield item
            if isinstance(item, Finish):
                return
            called = called or isinstance(item, ToolCall)
        yield Finish("tool_use" if called else "end_turn")


class ScriptedRunner(Runner):
    """A runner that plays a script for each child: its blocks go through ``run.emit``.

    A :class:`gofer.SubagentResult` in the script is the child's result; without one it is
    ``run.result()``.

    :param script: the script; a callable in it can tell children apart by its argument ``run``.
    :param name: what ``spec.runner`` and ``default_runner`` call it.
    :param cancel_grace: how many seconds a cancelled child has to end by itself.
    """

    def __init__(
        self, script: Script = "Done.", *, name: str = "scripted", cancel_grace: float = 0.0
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.cancel_grace = cancel_grace
        self.script = script
        self.runs: list[Run] = []
        """Every run so far; ``run.spec`` is what was asked for."""
        self.running: set[str] = set()
        """The ids of the children that run now."""

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Play the script."""
        self.runs.append(run)
        self.running.add(run.id)
        try:
            waiting: list[Any] = [self.script]
            while (item := await _next(waiting, run)) is not None:
                if isinstance(item, SubagentResult):
                    return item
                await run.emit(item)
            return run.result()
        finally:
            self.running.discard(run.id)


async def _next(waiting: list[Any], argument: object) -> Any:
    """Take the next block or end off what waits of a script, the last first; None: it is over."""
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            return Text(text=item)
        if isinstance(item, (*BLOCK_TYPES, Finish, SubagentResult)):
            return item
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, list | tuple):
            waiting.extend(reversed(item))
        elif callable(item):
            answer = item(argument)
            waiting.append(await answer if inspect.isawaitable(answer) else answer)
        elif item is not None:
            raise PluginValidationError("script", f"{item!r:.100} is no item of a script")
    return None
