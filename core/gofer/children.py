"""A child as others see it: what it is, whether it has ended, and how it is made to end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from .final import FinalMessage
from .messages import Usage
from .subagents import SubagentResult, SubagentSpec

if TYPE_CHECKING:
    from ._family import Family
    from ._limits import Places
    from .worktree import Worktree

__all__ = ["Child"]

log = logging.getLogger("gofer")


class Child:
    """A child agent of a Host.

    ``state`` is ``waiting`` (for a free place), ``running`` or ``ended``; ``parent`` is the
    child that spawned it, None for the parent's own.
    """

    # Thousands may await collection: what only a run needs is in its ``Life``.
    __slots__ = (
        "_cancel_event",
        "_cancel_grace",
        "_cancelled",
        "_done",
        "_family",
        "_final",
        "_on_cancel",
        "_result",
        "_scope",
        "children",
        "cwd",
        "depth",
        "ending",
        "id",
        "last_sign",
        "observed",
        "parent",
        "parent_session",
        "places",
        "signs",
        "spec",
        "state",
        "timed_out",
        "usage",
        "worktree",
    )

    def __init__(
        self,
        family: Family,
        child_id: str,
        spec: SubagentSpec,
        *,
        session: str,
        parent: Child | None,
        depth: int,
        cwd: Path,
        cancel_grace: float,
        observed: bool,
        places: Places[Child],
        worktree: Worktree | None = None,
    ) -> None:
        self.id = child_id
        self.spec = spec
        self.parent = parent
        self.parent_session = session
        self.depth = depth
        self.cwd = cwd
        self.worktree = worktree
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self.usage: Usage | None = None
        self.signs = 0
        self.last_sign = 0.0
        self.children: dict[str, Child] = {}
        self.ending = False
        self.timed_out: str | None = None
        self.observed = observed
        self.places = places
        self._family = family
        self._cancel_grace = cancel_grace
        self._cancel_event: anyio.Event | None = None
        self._on_cancel: Callable[[], None] | None = None
        self._cancelled = False
        self._scope: anyio.CancelScope | None = None
        self._done: anyio.Event | None = None
        self._result: SubagentResult | None = None
        self._final: FinalMessage | None = None

    def __repr__(self) -> str:
        return f"<Child {self.id} on {self.runner!r}, {self.state}>"

    @property
    def runner(self) -> str:
        """The name of its runner."""
        return self.spec.runner or ""

    @property
    def agent(self) -> str | None:
        """The name of its agent, where one was asked for."""
        return self.spec.agent

    @property
    def session(self) -> str:
        """The conversation that it is itself."""
        return f"{self.parent_session}/{self.id}"

    @property
    def final(self) -> FinalMessage:
        """The final message so far; its result has it once there is one."""
        if self._final is None:
            self._final = FinalMessage()
        return self._final

    @property
    def result(self) -> SubagentResult | None:
        """Its result; None until it ended."""
        return self._result

    async def wait(self) -> SubagentResult:
        """Wait for the child's end; a caller that is cancelled leaves the child as it was."""
        if self._result is None:
            if self._done is None:
                self._done = anyio.Event()
            await self._done.wait()
        assert self._result is not None
        return self._result

    @property
    def cancel_requested(self) -> anyio.Event:
        """Set when the child should end."""
        if self._cancel_event is None:
            self._cancel_event = anyio.Event()
            if self._cancelled:
                self._cancel_event.set()
        return self._cancel_event

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Have *callback* called when the child should end, at once if it should already."""
        if not self.ending:
            self._on_cancel = callback
        if self._cancelled:
            self._tell_of_cancel(callback)

    def _tell_of_cancel(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except (Exception, SystemExit):  # it must not keep the others from being ended
            log.exception("%s: the on_cancel of runner %r failed", self.id, self.runner)

    @property
    def cancelled(self) -> bool:
        """Whether its end was asked for, of it or of a child above it. It stays so."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask it and all below it to end, and end them after their runners' grace."""
        self.end("cancelled")

    def end(self, reason: str) -> None:
        """Ask it to end: it was cancelled, or a limit in time ended it, and *reason* says which."""
        for below in tuple(self.children.values()):
            below.end("cancelled")
        if self._cancelled or self.ending:
            return
        self._cancelled = True
        if reason != "cancelled":
            self.timed_out = reason
        if self._cancel_event is not None:
            self._cancel_event.set()
        if self._on_cancel is not None:
            self._tell_of_cancel(self._on_cancel)
        if self.places.withdraw(self):
            self._family.begin(self, False)
        elif self._scope is None:  # it has not begun, and ends as soon as it does
            return
        elif self._cancel_grace <= 0:
            self._scope.cancel()
        else:
            self._family.start(self._cancel_after_grace)

    async def _cancel_after_grace(self) -> None:
        with anyio.move_on_after(self._cancel_grace):
            await self.wait()
        if self._scope is not None:
            self._scope.cancel()

    def _begun(self, scope: anyio.CancelScope) -> None:
        self.state = "running"
        self._scope = scope

    def _ended(self, result: SubagentResult) -> None:
        self._result = result
        self.state = "ended"
        # What only the run needed must not stay as long as the result does.
        self._scope = self._final = self._on_cancel = self._cancel_event = None
        self._family.ended(self)
        if self._done is not None:
            self._done.set()
