"""The base class of a runner's conformance test."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from ._rule import Rule
from ._subject import Subject
from .report import Status, Verdict, judge
from .rules import RULES

__all__ = ["RunnerConformance"]


class RunnerConformance(Subject):
    """Tests a runner against all that users of gofer rely on: subclass it in a test module.

    ::

        class TestShout(RunnerConformance):
            def make_runner(self) -> Runner:
                return Shout()

    There is a test for each rule, on asyncio and on trio. A rule about a capability that the
    runner does not declare, and one that the kit cannot check, is skipped; advice is an expected
    failure. Each says why; with pytest's option ``-rsx`` one sees it, and gofer's part of the
    summary has it anyway.
    """

    def _test(self, rule: Rule, backend: str, request: pytest.FixtureRequest) -> None:
        if backend not in self.backends:
            pytest.skip(f"not declared: backends does not have {backend}")
        if backend == "trio" and importlib.util.find_spec("trio") is None:
            pytest.skip("trio is not installed: pip install 'gofer[testing]'")
        examples = request.config.getoption("gofer_examples", None)
        verdict = judge(rule, self, backend, examples)
        request.node.user_properties.append(("gofer", _property(type(self), verdict)))
        if verdict.status is Status.failed:
            pytest.fail(f"{rule.text}\n{verdict.words()}", pytrace=False)
        elif verdict.status is Status.advised:
            pytest.xfail(verdict.words())
        elif verdict.status is not Status.passed:
            pytest.skip(f"{verdict.status}: {verdict.message}")


def _property(subject: type, verdict: Verdict) -> dict[str, Any]:
    return {
        "subject": subject.__name__,
        "rule": verdict.rule,
        "status": str(verdict.status),
        "message": verdict.message,
    }


def _test_of(rule: Rule) -> Callable[..., None]:
    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test(self: RunnerConformance, backend: str, request: pytest.FixtureRequest) -> None:
        self._test(rule, backend, request)

    test.__name__ = test.__qualname__ = f"test_{rule.name}"
    test.__doc__ = rule.text
    return test


for _rule in RULES:
    setattr(RunnerConformance, f"test_{_rule.name}", _test_of(_rule))
