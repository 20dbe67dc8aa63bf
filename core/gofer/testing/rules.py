"""All rules of the conformance kit, in the order in which they are checked and reported."""

from __future__ import annotations

from . import (
    _rules_advice,
    _rules_blocks,
    _rules_cancel,
    _rules_capabilities,
    _rules_children,
    _rules_process,
    _rules_results,
)
from ._rule import Rule, Tier

__all__ = ["RULES", "Rule", "Tier"]

RULES: tuple[Rule, ...] = (
    *_rules_results.RULES,
    *_rules_blocks.RULES,
    *_rules_cancel.RULES,
    *_rules_children.RULES,
    *_rules_process.RULES,
    *_rules_capabilities.RULES,
    *_rules_advice.RULES,
)
