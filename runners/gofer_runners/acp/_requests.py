"""What the agent was asked and has not answered yet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anyio

from gofer import RunnerError

from ._errors import AgentError, Lost
from ._messages import Unreadable

__all__ = ["Pending", "Requests", "fail_unless_answered"]

_UNCLEAR_SECONDS = 1.0
"""How long answers may take after an error that does not say what it is of."""


class Pending:
    """One request; ``end`` is how many bytes the agent has to read for it, once all are sent.

    :param stop: called where its end comes before that: nobody need wait until it is sent.
    """

    __slots__ = ("_stop", "answer", "done", "end", "error", "method", "number")

    def __init__(self, number: int, method: str, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.number = number
        self.method = method
        self.done = anyio.Event()
        self.answer: Any = None
        self.error: RunnerError | None = None
        self.end: int | None = None

    def fail(self, error: RunnerError) -> None:
        """Have it fail with *error*, if it has not been answered."""
        if not self.done.is_set():
            self.finish(None, error)

    def finish(self, answer: Any, error: RunnerError | None = None) -> None:
        """Give its outcome to who waits for it."""
        self.answer, self.error = answer, error
        self.done.set()
        if self.end is None:
            self._stop()

    async def outcome(self) -> Any:
        """Wait for the answer, and return it.

        :raises RunnerError: it is an error, or none will come.
        """
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.answer


class Requests:
    """The requests that wait for their answers, by number.

    :param stop: has what is being sent fail.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._ids = itertools.count()
        self._pending: dict[int, Pending] = {}

    @contextmanager
    def new(self, method: str) -> Iterator[Pending]:
        """Have a new one; when the block is left nobody waits for it any more."""
        number = next(self._ids)
        pending = self._pending[number] = Pending(number, method, self._stop)
        try:
            yield pending
        finally:
            del self._pending[number]

    @property
    def waiting(self) -> list[Pending]:
        """Those that have no answer yet."""
        return [pending for pending in self._pending.values() if not pending.done.is_set()]

    def wait_for(self, method: str) -> bool:
        """Say whether an answer to *method* is waited for."""
        return any(pending.method == method for pending in self._pending.values())

    def answer(self, message: dict[str, Any]) -> bool:
        """Give an answer to who waits for it; return whether somebody does."""
        number = message.get("id")
        if isinstance(number, str) and number.strip().isdecimal():
            with suppress(ValueError):  # it has too many digits
                number = int(number)  # some agents send every id back as a string
        known = type(number) is int or type(number) is float
        pending = self._pending.get(number) if known else None  # type: ignore[arg-type]
        if pending is None or pending.done.is_set():
            return False
        said = message.get("error")
        error: RunnerError | None = None
        if isinstance(message, Unreadable):
            method = pending.method
            error = RunnerError(f"the agent's answer to {method} cannot be read: {message.reason}")
        elif said is not None:
            error = AgentError(pending.method, said)
        pending.finish(message.get("result"), error)
        return True

    def fail(self, error: Lost) -> None:
        """Have all that wait fail with *error*."""
        for pending in self._pending.values():
            pending.fail(error)

    def fail_unread(self, read: int, error: Lost) -> None:
        """Have those fail that were not whole in the first *read* bytes the agent was sent."""
        for pending in self._pending.values():
            if pending.end is not None and pending.end > read:
                pending.fail(error)


async def fail_unless_answered(waiting: Sequence[Pending], error: dict[str, Any]) -> None:
    """End what waits, for nobody may wait for an answer that does not come.

    Which of it the agent could not read is not known: what is answered soon was none of it.
    """
    with anyio.move_on_after(_UNCLEAR_SECONDS):
        for pending in waiting:
            await pending.done.wait()
    for pending in waiting:
        pending.fail(AgentError(pending.method, error))
