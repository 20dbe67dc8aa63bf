"""The driver of the conformance kit: it has a runner do things, and nothing can make it hang."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from .._masked import without_secrets
from ..errors import GoferError
from ..host import Host
from ..runner import Capabilities, Runner
from ..subagents import SubagentSpec
from ._guard import Guard, quietly
from ._places import place
from ._process_state import ProcessState
from ._rule import Broken, NotChecked
from ._subject import Subject
from ._watch import Record, Watcher

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["RULE_RUNS", "Kit", "Scene", "cut", "shown"]

T = TypeVar("T")

RULE_RUNS = 6
"""How many times as long as one run a rule may take."""

_SLACK = 5.0

_WIDTH = 300


class Scene:
    """An open Host with the runner, and a plugin that watches it."""

    def __init__(
        self, kit: Kit, guard: Guard, host: Host, runner: Runner, watcher: Watcher
    ) -> None:
        self.kit, self.host, self.runner, self.watcher = kit, host, runner, watcher
        self._guard = guard

    async def spawn(self, spec: SubagentSpec) -> Record:
        """Start a child; one that the Host or the runner refuses raises its GoferError.

        :raises Broken: the runner raised something else when it was asked.
        """
        self.allow()
        if spec.runner is None:
            spec = spec.model_copy(update={"runner": self.runner.name})
        try:
            child = await self.host.spawn(spec)
        except GoferError:
            raise
        except Exception as error:
            raise Broken(
                f"check() raised {shown(error)}: refuse with a gofer.PluginError"
            ) from error
        record = self.watcher.of(child.id)
        record.child = child
        return record

    async def end(self, record: Record) -> Record:
        """Wait for the end of a child.

        :raises Broken: it did not end in time.
        """
        assert record.child is not None
        self.allow()
        with anyio.move_on_after(self.kit.subject.deadline) as scope:
            record.result = await record.child.wait()
        if scope.cancelled_caught:
            record.child.cancel()
            self.allow()
            await record.child.wait()
            raise Broken(f"a run did not end within {self.kit.subject.deadline:g} s")
        return record

    async def run(self, spec: SubagentSpec) -> Record:
        """Have one child run to its end; see :meth:`spawn` and :meth:`end`."""
        return await self.end(await self.spawn(spec))

    async def say(self, text: str) -> Record:
        """Have one child say *text*."""
        return await self.run(self.kit.subject.spec(self.kit.subject.task_that_says(text)))

    def allow(self) -> None:
        """Let the next step take as long as one may."""
        subject = self.kit.subject
        grace = min(max(self.runner.cancel_grace, 0.0), 3600.0)
        self._guard.allow(subject.deadline + grace + subject.leeway + self.kit.slack)


class Kit:
    """Has the runner of a *subject* do things, on one event loop.

    :param examples: how many cases to try where they are drawn; None: what the subject says.
    """

    def __init__(self, subject: Subject, backend: str, examples: int | None = None) -> None:
        self.subject = subject
        self.backend = backend
        self.examples = examples or subject.max_examples
        self.runner = subject.make_runner()
        declared = subject.capabilities
        if declared is None:
            declared = getattr(self.runner, "capabilities", Capabilities())
        self.capabilities = declared
        self.held: str | None = None
        """Where the event loop stood still, the last time."""
        # For what is not the runner's: opening and closing a Host, ending what was left.
        self.slack = min(subject.deadline, _SLACK)
        self._guard = Guard()

    def defines(self, method: str) -> bool:
        """Say whether the subject has its own version of one of the methods that give a task."""
        return getattr(type(self.subject), method) is not getattr(Subject, method)

    def once(self, body: Callable[[], Awaitable[T]]) -> T:
        """Run *body* in a new event loop, and put back what it changed in the process.

        :raises Broken: it did not end, or the Host could not bear the runner.
        """
        state = ProcessState.now()
        outcome: list[T] = []
        raised: list[BaseException] = []
        with Guard() as self._guard:
            self._guard.allow(self.subject.deadline + self.slack)
            try:
                anyio.run(self._main, body, outcome, raised, backend=self.backend)
            except BaseException as error:
                if self._guard.broken is None:
                    raise
                raised[:] = [error]
        self.held = self._guard.held
        state.restore()
        if self._guard.broken is not None:
            # What was torn apart in the middle must not be heard of in another test.
            quietly(raised.clear)
            where = self._guard.broken or (
                "What cancels it is an exception: let it pass, or raise it again where it is caught"
            )
            raise Broken(f"a run did not end, nor did it let itself be cancelled. {where}")
        if raised:
            raise raised[0]
        return outcome[0]

    def in_loop(self, body: Callable[[T], Awaitable[None]]) -> Callable[[T], None]:
        """Return a plain function that runs *body* by :meth:`once`."""

        def run(case: T) -> None:
            self.once(partial(body, case))

        return run

    async def _main(
        self, body: Callable[[], Awaitable[T]], outcome: list[T], raised: list[BaseException]
    ) -> None:
        async with anyio.create_task_group() as tasks:
            # Its first beat comes before anything that could hold it up, in whatever order an event
            # loop begins its tasks.
            await tasks.start(self._guard.pulse)
            try:
                outcome.append(await body())
            except Exception as error:
                raised.append(error)
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def scene(
        self,
        *plugins: object,
        runner: Runner | None = None,
        at_each_step: Callable[[], None] | None = None,
    ) -> AsyncIterator[Scene]:
        """Open a Host with a new runner, or *runner*, in an empty directory."""
        runner = self.subject.make_runner() if runner is None else runner
        watcher = Watcher(at_each_step)
        given = [*self.subject.plugins(), *plugins, runner, watcher]
        with tempfile.TemporaryDirectory(prefix="gofer-conformance-") as directory:
            cwd = os.path.realpath(directory)  # noqa: ASYNC240 - it is in memory or as good as
            host = Host(given, self.subject.config(), discover=self.subject.discover, cwd=cwd)
            try:
                async with host:
                    scene = Scene(self, self._guard, host, runner, watcher)
                    try:
                        yield scene
                    finally:
                        scene.allow()
            finally:
                watcher.close()

    def explore(self, cases: SearchStrategy[T], check: Callable[[T], None]) -> None:
        """Check one case after another.

        :raises Broken: with the smallest case found for which the rule does not hold.
        :raises NotChecked: it could be checked for none.
        """
        from hypothesis import HealthCheck, Phase, Verbosity, given, settings

        known: dict[str, Broken] = {}
        unchecked: list[NotChecked] = []
        checked = 0
        ends = time.monotonic() + self.subject.deadline * RULE_RUNS / 2

        def test(case: T) -> None:
            nonlocal checked, ends
            key = repr(case)
            if key not in known:
                if time.monotonic() > ends:
                    return
                try:
                    check(case)
                except NotChecked as error:
                    unchecked.append(error)
                except Broken as error:
                    if not known:
                        ends = time.monotonic() + self.subject.deadline
                    known[key] = error.of_case(cut(key))
                else:
                    checked += 1
            # A runner need not do the same thing each time; what was seen once was seen.
            if key in known:
                raise known[key]

        run = settings(
            max_examples=self.examples,
            derandomize=True,
            database=None,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )(given(cases)(test))
        run()
        if not checked and unchecked:
            raise unchecked[-1]

    def each(self, cases: Sequence[T], check: Callable[[T], None]) -> None:
        """Check the given cases, one after another."""
        for case in cases:
            try:
                check(case)
            except Broken as error:
                raise error.of_case(cut(repr(case))) from error.__cause__


def cut(text: str, width: int = _WIDTH) -> str:
    """Return *text* as a report may show it: without secrets, its middle left out if it is long."""
    text = without_secrets(text)
    if len(text) <= width:
        return text
    return f"{text[: width // 2]} … {text[-width // 4 :]} ({len(text)} characters)"


def shown(error: BaseException) -> str:
    """Return what *error* is, what it says, and where it was raised."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    where = place(traceback.extract_tb(error.__traceback__))
    return f"{type(error).__name__}: {cut(str(error))}" + (f" (at {where})" if where else "")
