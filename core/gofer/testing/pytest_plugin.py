"""What pytest loads of gofer: the option of the conformance kit, and its part of the summary.

It is loaded wherever gofer is installed, so it imports nothing of gofer's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__: list[str] = []

_QUIET = {"passed", "failed"}
_ORDER = ("not declared", "not checked", "advised")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the conformance kit."""
    parser.getgroup("gofer", "gofer's conformance kit").addoption(
        "--gofer-examples",
        dest="gofer_examples",
        metavar="N",
        type=_count,
        default=None,
        help="try N cases for each rule that draws its cases (by default, what the class says)",
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("a number from 1 on")
    return number


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what was not declared, not checked, and advised."""
    said: dict[str, dict[str, dict[str, str]]] = {}
    for found in _properties(terminalreporter):
        if found["status"] not in _QUIET:
            said.setdefault(found["subject"], {}).setdefault(found["status"], {})[found["rule"]] = (
                found["message"]
            )
    if not said:
        return
    terminalreporter.section("gofer conformance")
    for subject, statuses in said.items():
        terminalreporter.write_line(f"{subject}:")
        for status in _ORDER:
            for rule, message in statuses.get(status, {}).items():
                terminalreporter.write_line(f"  {status}: {rule}: {message}")


def _properties(reporter: pytest.TerminalReporter) -> Iterable[dict[str, Any]]:
    for reports in reporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "gofer" and getattr(report, "when", "call") == "call":
                    yield value
