"""The page on the conformance kit tells of each rule what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gofer.testing.rules import RULES, Rule

PAGE = Path(__file__).parents[3] / "docs" / "conformance.md"


def rows(tier: str) -> list[list[str]]:
    part = PAGE.read_text(encoding="utf-8").partition(f"### {tier.capitalize()}\n")[2]
    lines = part.partition("\n#")[0].splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_told_with_what_it_asks_and_why(rule: Rule) -> None:
    [row] = [row for row in rows(rule.tier) if row[0] == f"`{rule.name}`"]
    needs = [] if rule.needs is None else [f"`{rule.needs}`"]
    assert row[1:-1] == [*needs, rule.text]
    assert row[-1].endswith(".")


def test_no_rule_is_told_that_there_is_not() -> None:
    told = [row[0].strip("`") for tier in ("must", "capability", "advice") for row in rows(tier)]
    assert told == [rule.name for rule in RULES]
