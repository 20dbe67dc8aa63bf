"""The table of the documentation keeps what a session did not try."""

from __future__ import annotations

import pytest

from .table import BEGIN, END, Rows, written

PAGE = f"# Agents\n\n{BEGIN}\n{END}\n\nMore.\n"
CODEX: Rows = {("codex", "1.0"): {"answer": "yes", "cancel": "cancelled"}}
GEMINI: Rows = {("gemini", "2.0"): {"answer": "yes", "resume": "no"}}


def test_a_row_for_each_agent() -> None:
    page = written(PAGE, CODEX)
    assert page.startswith("# Agents\n")
    assert page.endswith(f"{END}\n\nMore.\n")
    assert "| agent | version | answer | cancel |" in page
    assert "| `codex` | 1.0 | yes | cancelled |" in page


def test_other_agents_keep_theirs() -> None:
    page = written(written(PAGE, CODEX), GEMINI)
    assert "| `codex` | 1.0 | yes | cancelled |  |" in page
    assert "| `gemini` | 2.0 | yes |  | no |" in page


def test_a_new_version_takes_the_place_of_the_old() -> None:
    page = written(written(PAGE, CODEX), {("codex", "1.1"): {"answer": "no"}})
    assert "1.0" not in page
    assert "| `codex` | 1.1 | no |" in page


def test_other_cases_keep_theirs() -> None:
    page = written(written(PAGE, CODEX), {("codex", "1.0"): {"answer": "no"}})
    assert "| `codex` | 1.0 | no | cancelled |" in page


def test_the_same_again_changes_nothing() -> None:
    page = written(written(PAGE, CODEX), GEMINI)
    assert written(page, CODEX) == page


def test_a_page_without_a_place_for_it() -> None:
    with pytest.raises(ValueError, match="lacks the line"):
        written("# Agents\n", CODEX)
