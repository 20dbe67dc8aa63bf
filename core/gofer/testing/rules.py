"""All rules of the conformance kit, in the order in which they are checked and reported."""

from __future__ import annotations

from ._rule import Rule, Tier

__all__ = ["RULES", "Rule", "Tier"]

RULES: tuple[Rule, ...] = ()
