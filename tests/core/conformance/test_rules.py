"""Each rule of the conformance kit: it lets a right runner pass, and only what breaks it fail."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest

from gofer import Run, Runner, SubagentResult, SubagentSpec, Text
from gofer.testing._subject import Subject
from gofer.testing.report import Status, judge
from gofer.testing.rules import RULES, Tier

from .right import Right, RightSubject
from .wrong import HANGS, WRONG, clean_up

BAD = (Status.failed, Status.advised)
BY_NAME = {rule.name: rule for rule in RULES}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    clean_up()


def subject_of(runner: type[Right]) -> RightSubject:
    subject = RightSubject()
    subject.runner = runner
    return subject


def test_each_rule_has_a_runner_that_breaks_it() -> None:
    assert set(WRONG.values()) == set(BY_NAME)
    assert len(BY_NAME) == len(RULES)


@pytest.mark.parametrize("runner", WRONG, ids=lambda runner: f"{WRONG[runner]}-{runner.__name__}")
def test_a_wrong_runner_breaks_its_rule_and_no_other(runner: type[Right]) -> None:
    found = {}
    own, subject = BY_NAME[WRONG[runner]], subject_of(runner)
    for rule in RULES:
        if rule is own:
            continue
        verdict = judge(rule, subject, "asyncio", examples=1)
        if verdict.status in BAD:
            found[rule.name] = verdict.words()
    assert found == {}
    if runner in HANGS:
        subject.deadline = 0.5
    for backend in ("asyncio", "trio"):
        verdict = judge(own, subject, backend)
        assert verdict.status is (Status.advised if own.tier is Tier.advice else Status.failed)
        assert verdict.message


class Forgets(Runner):
    name = "right"

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        run.emit(Text(text=run.prompt))  # type: ignore[unused-coroutine]
        return run.result()


class Emits(Runner):
    """In a task of its own, and several at once: all of it is awaited."""

    name = "right"

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        async with anyio.create_task_group() as tasks:
            for word in run.prompt.split():
                tasks.start_soon(run.emit, Text(text=word))
        return run.result()


class IsSilent(Runner):
    name = "right"

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        return run.result()


class Blocks(Runner):
    name = "right"

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        time.sleep(0.8)  # noqa: ASYNC251 - it is what is wrong with it
        return run.result(run.prompt)


class Spins(Runner):
    name = "right"

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        while True:
            pass


class Swallows(Runner):
    name = "right"

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        while True:
            with suppress(anyio.get_cancelled_exc_class()):
                await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("runner", "rule", "status", "words"),
    [
        (
            Forgets,
            "does_an_ordinary_task",
            Status.failed,
            r"without await at .*, in run.*write await",
        ),
        (Forgets, "refuses_unknown_options", Status.not_checked, "it does no ordinary task"),
        (Emits, "does_an_ordinary_task", Status.passed, ""),
        (
            IsSilent,
            "does_an_ordinary_task",
            Status.failed,
            r"no report\. Give its text to await run",
        ),
        (
            Spins,
            "does_an_ordinary_task",
            Status.failed,
            r"it blocks the event loop at .*test_rules",
        ),
        (Swallows, "does_an_ordinary_task", Status.failed, "is an exception: let it pass"),
        (Blocks, "leaves_the_event_loop_free", Status.failed, r"let a thread do"),
    ],
)
def test_a_beginners_mistake_is_told_with_what_to_do(
    runner: type[Runner], rule: str, status: Status, words: str
) -> None:
    class Given(Subject):
        deadline = 1.0 if runner in (Spins, Swallows) else 10.0

        def make_runner(self) -> Runner:
            return runner()

    for backend in ("asyncio", "trio"):
        verdict = judge(BY_NAME[rule], Given(), backend)
        assert verdict.status is status, verdict.message
        assert re.search(words, verdict.message)


def test_a_right_runner_breaks_none() -> None:
    for rule in RULES:
        for backend in ("asyncio", "trio"):
            assert judge(rule, RightSubject(), backend).status is Status.passed
