"""A rule of the conformance kit, and what can come of checking one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._kit import Kit

__all__ = ["Broken", "NotChecked", "Rule", "Tier"]


class Tier(StrEnum):
    """How much a rule counts."""

    must = "must"
    """For every runner."""
    capability = "capability"
    """For a runner that declares the capability."""
    advice = "advice"
    """Worth knowing; no failure."""


class Broken(AssertionError):
    """The runner broke the rule; the message says how, ``case`` for what."""

    case: str | None = None

    def of_case(self, case: str) -> Broken:
        """Say for which case, unless it is said; returns itself."""
        self.case = self.case or case
        return self


class NotChecked(Exception):
    """The rule could not be checked; the message says what the kit lacks for it."""


@dataclass(frozen=True)
class Rule:
    """One thing that users of a runner rely on.

    :param name: what its test is called, without ``test_``.
    :param text: the rule, in a sentence.
    :param check: raises :class:`Broken` or :class:`NotChecked`; returns where the rule holds.
    :param needs: the capability that it is about, by its name.
    """

    name: str
    tier: Tier
    text: str
    check: Callable[[Kit], None]
    needs: str | None = None
