"""Each rule of the conformance kit: it lets a right runner pass, and only what breaks it fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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


def test_a_right_runner_breaks_none() -> None:
    for rule in RULES:
        for backend in ("asyncio", "trio"):
            assert judge(rule, RightSubject(), backend).status is Status.passed
