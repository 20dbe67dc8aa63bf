"""What came of checking a runner: a verdict for each rule and event loop, and the report of all."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ._kit import Kit, shown
from ._rule import Broken, NotChecked, Rule, Tier
from ._subject import Subject

__all__ = ["Report", "Status", "Verdict", "judge"]


class Status(StrEnum):
    """What came of a rule."""

    passed = "passed"
    failed = "failed"
    advised = "advised"
    """The rule is advice, and does not hold."""
    not_declared = "not declared"
    """The rule is about a capability that the runner does not declare."""
    not_checked = "not checked"
    """The kit lacks something for it; the message says what."""


@dataclass(frozen=True)
class Verdict:
    """What came of one rule on one event loop.

    :param case: the smallest case found for which the rule does not hold, where cases are drawn.
    """

    rule: str
    tier: str
    backend: str
    status: Status
    message: str = ""
    case: str | None = None
    seconds: float = 0.0

    def words(self) -> str:
        """Return the message, and the case that it is about."""
        return self.message if self.case is None else f"{self.message}\n    case: {self.case}"


def judge(rule: Rule, subject: Subject, backend: str, examples: int | None = None) -> Verdict:
    """Check one rule on one event loop.

    :param examples: how many cases to try where they are drawn; None: what the subject says.
    :raises PluginNotSupportedError: there is no such event loop here.
    """
    started = time.monotonic()

    def verdict(status: Status, message: str = "", case: str | None = None) -> Verdict:
        seconds = round(time.monotonic() - started, 3)
        return Verdict(rule.name, rule.tier, backend, status, message, case, seconds)

    kit = Kit(subject, backend, examples)
    if rule.needs is not None and not getattr(kit.capabilities, rule.needs, False):
        return verdict(Status.not_declared, f"{rule.needs} is not declared")
    bad = Status.advised if rule.tier is Tier.advice else Status.failed
    try:
        rule.check(kit)
    except NotChecked as error:
        return verdict(Status.not_checked, str(error))
    except Broken as error:
        return verdict(bad, str(error), error.case)
    except (Exception, BaseExceptionGroup) as error:
        return verdict(bad, f"out of the Host came {shown(error)}")
    return verdict(Status.passed)


@dataclass
class Report:
    """The verdicts on one runner, and whether it is fit to be used."""

    runner: str
    verdicts: list[Verdict] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every rule holds that must."""
        return not any(verdict.status is Status.failed for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "runner": self.runner,
            "ok": self.ok,
            **self.about,
            "rules": [asdict(verdict) for verdict in self.verdicts],
        }
