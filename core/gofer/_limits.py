"""Limits of a Host: how deep, how many at once, and for how long."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from ._steps import same
from .errors import ConfigError
from .subagents import SubagentSpec

if TYPE_CHECKING:
    from .children import Child
    from .config import Config

__all__ = ["DEPTH", "DEPTH_LIMIT", "Places", "inherited_depth", "time_limits", "watch"]

DEPTH = "GOFER_DEPTH"
DEPTH_LIMIT = "GOFER_DEPTH_LIMIT"

_TURN = 0.001
"""How many seconds children that never wait may follow each other before others get their turn."""


def inherited_depth(environ: Mapping[str, str] = os.environ) -> tuple[int, int | None]:
    """Return the depth this process runs at, and the limit a gofer above it set, if any.

    :raises ConfigError: a variable is no whole number.
    """
    numbers: list[int | None] = []
    for name in (DEPTH, DEPTH_LIMIT):
        text = environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{name} is {text!r}: a whole number is needed; unset it")
        numbers.append(int(text) if text else None)
    return numbers[0] or 0, numbers[1]


Who = TypeVar("Who", bound=Hashable)


class Places(Generic[Who]):
    """A number of places; who finds none waits, first come, first served.

    :param begin: called with who has a place now: at once, or when another's is free, and then
        with the context variables of who asked. What waits costs no task.
    """

    def __init__(self, total: int, begin: Callable[[Who], object]) -> None:
        self.total = total
        self.taken = 0
        self._begin = begin
        self._yielded = 0.0
        self._queue: OrderedDict[Who, Context] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def ask(self, who: Who) -> None:
        """Have *who* begin, or stand in the queue."""
        if self.taken < self.total:
            self.taken += 1
            self._begin(who)
        else:
            self._queue[who] = copy_context()

    def withdraw(self, who: Who) -> bool:
        """Take *who* out of the queue; False: it has begun."""
        return self._queue.pop(who, None) is not None

    def free(self) -> None:
        """Give up one place: it goes straight to the next in the queue, nobody slips in between."""
        if self._queue:
            who, context = self._queue.popitem(last=False)
            context.run(self._begin, who)
        else:
            self.taken -= 1

    async def follow(self) -> Who | None:
        """Give up one place; return who goes on in it in the caller's task, None where nobody.

        That spares a task where the next one could not tell the difference: it has the context
        variables that the task has now.
        """
        if self._queue and await self._go_on():
            who = next(iter(self._queue), None)
            if who is not None and same(self._queue[who], copy_context()):
                del self._queue[who]
                return who
        self.free()
        return None

    async def _go_on(self) -> bool:
        """Give other tasks their turn where they had none for long; False: better in another."""
        now = time.monotonic()
        if now - self._yielded >= _TURN:
            self._yielded = now
            try:
                await checkpoint()
            except anyio.get_cancelled_exc_class():
                return False  # it was meant for who was here before
        return True


def time_limits(spec: SubagentSpec, config: Config) -> tuple[float | None, float | None]:
    """Return the limits of a run, total and idle: its own, else its agent's, else the Host's."""
    agent = config.agents.get(spec.agent) if spec.agent else None
    # None of them is ever 0.
    total = spec.timeout or (agent and agent.timeout) or config.timeout
    idle = spec.idle_timeout or (agent and agent.idle_timeout) or config.idle_timeout
    return total, idle


async def watch(child: Child, timeout: float | None, idle: float | None) -> None:
    """End *child* when its time is over; return when it has ended."""
    started = anyio.current_time()
    while child.result is None:
        ends = started + timeout if timeout is not None else float("inf")
        silent = child.last_sign + idle if idle is not None else float("inf")
        with anyio.move_on_after(min(ends, silent) - anyio.current_time()):
            await child.wait()
            return
        now = anyio.current_time()
        if now >= ends:
            child.end(f"timed out after {timeout:g} s: raise timeout, or ask for less")
            return
        if idle is not None and now >= child.last_sign + idle:
            child.end(f"timed out after {idle:g} s without a sign of life: raise idle_timeout")
            return
