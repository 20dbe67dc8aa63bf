"""The conformance kit in pytest: what its tests are called, and what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent

import pytest

from gofer.testing.rules import RULES

TEST = """
    from gofer import Capabilities, Runner, Text
    from gofer.testing import RunnerConformance

    class Shout(Runner):
        name = "shout"

        async def run(self, spec, run):
            <<<BODY>>>
            await run.emit(Text(text=run.prompt.upper()))
            return run.result()

    class TestShout(RunnerConformance):
        <<<CLASS>>>

        def make_runner(self):
            return Shout()
"""
INSTALLED = any(point.name == "gofer" for point in entry_points(group="pytest11"))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return tmp_path


def write(suite: Path, body: str = "pass", attributes: str = "leeway = 5.0") -> None:
    text = dedent(TEST).replace("<<<BODY>>>", body).replace("<<<CLASS>>>", attributes)
    (suite / "test_shout.py").write_text(text)


def run(suite: Path, *arguments: str, plugin: bool = True) -> tuple[int, str]:
    ours = [] if INSTALLED else ["-p", "gofer.testing.pytest_plugin"]
    given = ours if plugin else ["-p", "no:gofer"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *given, *arguments],
        capture_output=True, text=True, check=False, timeout=300, cwd=suite,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_each_rule_is_a_test_on_each_event_loop(suite: Path) -> None:
    write(suite)
    code, out = run(suite, "--collect-only")
    assert code == 0
    found = [line.partition("::")[2] for line in out.splitlines() if "::" in line]
    assert found == [
        f"TestShout::test_{rule.name}[{backend}]"
        for rule in RULES
        for backend in ("asyncio", "trio")
    ]


def test_a_right_runner_passes_and_the_summary_tells_the_rest(suite: Path) -> None:
    write(suite)
    code, out = run(suite, "--gofer-examples", "2")
    assert code == 0, out
    head, _, summary = out.partition("= gofer conformance =")
    assert "xfailed" in summary
    assert "TestShout:\n  not declared: streams_its_text: streams is not declared\n" in summary
    assert "  advised: declares_its_capabilities: it declares no capability" in summary
    assert summary.count("streams_its_text") == 1
    assert "Traceback" not in head


def test_a_wrong_runner_fails_with_the_rule_and_the_smallest_case(suite: Path) -> None:
    write(suite, 'assert "ab" not in run.prompt')
    (suite / "test_shout.py").write_text(
        (suite / "test_shout.py").read_text().replace('"ab"', '"\\0"')
    )
    code, out = run(suite, "-k", "answers_any_task and asyncio")
    assert code == 1
    assert "Any task, of any text and length, gives a result or a GoferError" in out
    assert "it raised AssertionError: " in out
    assert "test_shout.py:9, in run)" in out
    assert r"case: '\x00'" in out
    assert "judge" not in out


def test_a_smaller_case_is_looked_for(suite: Path) -> None:
    write(suite, "assert not spec.tool_scope")
    code, out = run(suite, "-k", "answers_any_spec and asyncio")
    assert code == 1
    assert "case: {'tool_scope': ['']}" in out


def test_what_blocks_the_event_loop_for_ever_is_broken_and_named(suite: Path) -> None:
    write(suite, "__import__('threading').Event().wait()", "deadline = leeway = 0.5")
    code, out = run(suite, "-k", "ordinary")
    assert code == 1
    assert "it blocks the event loop at " in out
    assert "test_shout.py:9, in run" in out
    assert "2 failed" in out


def test_an_event_loop_that_is_not_declared_is_skipped(suite: Path) -> None:
    write(suite, attributes='backends = ("asyncio",)')
    code, out = run(suite, "-k", "ordinary", "-rs")
    assert code == 0
    assert "1 passed, 1 skipped" in out
    assert "not declared: backends does not have trio" in out


def test_it_works_without_the_plugin(suite: Path) -> None:
    write(suite)
    code, out = run(suite, "-k", "ordinary", plugin=False)
    assert (code, "2 passed" in out, "gofer conformance" in out) == (0, True, False)


def test_the_number_of_cases_is_checked(suite: Path) -> None:
    code, out = run(suite, "--gofer-examples", "0")
    assert code == 4
    assert "--gofer-examples" in out


def test_in_other_projects_it_costs_nothing_and_says_nothing(suite: Path) -> None:
    (suite / "test_other.py").write_text("def test(): pass\n")
    code, out = run(suite)
    assert code == 0
    assert "gofer" not in out
    program = (
        "import sys, json, pytest; before = set(sys.modules)\n"
        "import gofer.testing.pytest_plugin\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert set(json.loads(done.stdout)) == {
        "gofer", "gofer.testing", "gofer.testing.pytest_plugin",
    }  # fmt: skip
