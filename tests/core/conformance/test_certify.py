"""``gofer certify``, as a program and as a function, on runners that are installed in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import psutil
import pytest

from gofer import PluginNotSupportedError
from gofer.testing import _certify
from gofer.testing.report import Status

SHOUT = """
    from gofer import Capabilities, PluginValidationError, Runner, Text

    class Shout(Runner):
        name = "shout"
        capabilities = Capabilities(streams=True)

        async def run(self, spec, run):
            if not run.prompt.strip() or spec.options:
                raise PluginValidationError("shout", f"blank, or has options: {[*spec.options]}")
            self.before(run)
            for word in run.prompt.split(" "):
                await run.emit(Text(text=word.upper() + " "))
            return run.result()

        def before(self, run):
            if "\\0" in run.prompt:
                <<<AT_NUL>>>
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site"
    path.mkdir()
    return path


def install(site: Path, at_nul: str = "pass", name: str = "shout") -> None:
    source = dedent(SHOUT).replace("<<<AT_NUL>>>", at_nul)
    (site / "shouting.py").write_text(source, encoding="utf-8")
    metadata = site / "gofer_shout-1.2.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gofer-shout\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[gofer.runners]\n{name} = shouting:Shout\n")


def certify(site: Path, *arguments: str, runner: str = "shout") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gofer", "certify", runner, *arguments],
        capture_output=True, text=True, check=False, timeout=300, cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_runner_that_is_fit(site: Path) -> None:
    install(site)
    rules = ("answers_any_task", "streams_its_text", "resumes_a_session", "tells_its_usage")
    chosen = [word for rule in reversed(rules) for word in ("--rule", rule)]
    code, out, error = certify(site, "--json", "--examples", "2", *chosen)
    report = json.loads(out)
    assert (code, error, report["ok"]) == (0, "", True), out
    assert (report["runner"], report["distribution"], report["version"]) == (
        "shout", "gofer-shout", "1.2",
    )  # fmt: skip
    assert report["capabilities"]["streams"]
    statuses = ("passed", "not checked", "not declared", "advised")
    assert [(v["rule"], v["backend"], v["status"]) for v in report["rules"]] == [
        (rule, backend, status)
        for rule, status in zip(rules, statuses, strict=True)
        for backend in ("asyncio", "trio")
    ]


def test_a_runner_that_is_not_with_the_smallest_example(site: Path) -> None:
    install(site, "raise KeyError('no NUL, please')")
    code, out, _ = certify(
        site, "--rule", "answers_any_task", "--rule", "names_its_child", "--backend", "trio"
    )
    assert code == 1
    assert "FAILED  answers_any_task" in out
    assert "KeyError: 'no NUL, please' (at " in out
    assert "shouting.py:18, in before)" in " ".join(out.split())
    assert r"case: '\x00'" in out
    assert "ok      names_its_child" in out
    assert "shout (gofer-shout 1.2): NOT fit to be used. Rules: 1 hold, 1 failed" in out


def test_what_was_not_checked_fails_when_that_is_asked_for(site: Path) -> None:
    install(site)
    (site / "tasks.py").write_text(
        dedent("""
        from gofer.testing import RunnerConformance

        class Tasks(RunnerConformance):
            backends = ("asyncio",)

            def make_runner(self):
                raise AssertionError("the installed one is meant")

            def task_that_is_long(self):
                return "long " * 100
        """)
    )
    rule = ("--rule", "streams_its_text", "--strict")
    code, out, _ = certify(site, *rule)
    assert code == 1
    assert "?       streams_its_text" in out
    assert "define task_that_is_long" in out
    code, out, _ = certify(site, *rule, "--tasks", "tasks.py:Tasks", "--json")
    assert code == 0
    assert [verdict["backend"] for verdict in json.loads(out)["rules"]] == ["asyncio"]
    code, _, error = certify(site, "--tasks", "tasks.py:Task")
    assert code == 2
    assert "gofer: --tasks tasks.py:Task: AttributeError: " in error


def test_a_runner_for_asyncio_alone_is_told_how_to_be_one(site: Path) -> None:
    install(site, "import asyncio; asyncio.get_running_loop()")
    rules = ("--rule", "answers_any_task", "--examples", "1")
    code, out, _ = certify(site, *rules)
    assert code == 1
    assert "FAILED  answers_any_task on trio" in out
    assert "certify it with --backend asyncio." in " ".join(out.split())
    code, out, _ = certify(site, *rules, "--backend", "asyncio")
    assert code == 0
    assert "Nothing failed on asyncio" not in out


def test_what_is_not_there_is_told(site: Path) -> None:
    install(site)
    code, out, error = certify(site, runner="whisper")
    assert (code, out) == (2, "")
    assert "there is no runner 'whisper'; installed: acp, internal, llama-server, shout" in error
    code, _, error = certify(site, "--rule", "is_nice")
    assert code == 2
    assert "there is no rule 'is_nice'; the rules are: is_a_runner, " in error
    code, _, error = certify(site, "--option", "temperature")
    assert code == 2
    assert "KEY=VALUE" in error
    code, _, error = certify(site, "--backend", "curio")
    assert (code, error) == (2, "gofer: there is no event loop 'curio': asyncio or trio\n")
    install(site, name="loud")
    code, _, error = certify(site, runner="loud")
    assert code == 2
    assert "its class says name = 'shout': both names must be the same" in " ".join(error.split())


def test_without_the_extra_one_line_says_what_to_install(site: Path) -> None:
    program = "import sys; sys.modules['hypothesis'] = None; from gofer.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "certify", "shout"],
        capture_output=True, text=True, check=False, timeout=60, cwd=site,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gofer: the conformance kit is not installed: pip install 'gofer[testing]'\n"
    )


@pytest.fixture
def path(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, on the path of this process, for the kit's own processes to be given."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(site)
    return site


def verdict(**fields: Any) -> _certify.Verdict:
    order = _certify.Order("shout", rules=["answers_any_task"], backends=["asyncio"], **fields)
    (found,) = anyio.run(_certify.certify, order).verdicts
    return found


@pytest.mark.parametrize(
    "supervised",
    [
        pytest.param(
            True, marks=pytest.mark.skipif(sys.platform != "linux", reason="it is not Linux")
        ),
        False,
    ],
)
def test_a_runner_that_ends_the_interpreter_fails_and_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, supervised: bool
) -> None:
    monkeypatch.setattr(_certify, "SUPERVISED", supervised)
    install(path, "import os, sys; sys.stderr.write('no licence'); sys.stderr.flush(); os._exit(3)")
    found = verdict()
    assert found.status is Status.failed
    assert found.message == (
        "its process ended: it exited with code 3; its last words were: no licence. "
        "A runner must not end the interpreter"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what left its group may stay")
def test_a_runner_that_nothing_stops_is_ended_with_all_that_it_started(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_certify, "_START_SECONDS", 12.0)
    (path / "stays.py").write_text(
        dedent("""
        import subprocess, time
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("pid", "w").write(str(child.pid))
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass
        """)
    )
    install(path, "import stays")
    found = verdict(deadline=0.3, leeway=0.1)
    assert found.status is Status.failed
    assert found.message == "it takes more than 15 s, and was ended with all that it started"
    pid = int((path / "pid").read_text())
    ends = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < ends


def test_a_runner_whose_import_ends_the_interpreter_is_told(path: Path) -> None:
    install(path)
    (path / "shouting.py").write_text("import os; os._exit(4)")
    with pytest.raises(PluginNotSupportedError, match=r"'shout' cannot be loaded: .* code 4"):
        anyio.run(_certify.certify, _certify.Order("shout"))


def test_what_it_refuses_for_every_child_is_said_once(site: Path) -> None:
    code, out, error = certify(site, runner="acp")
    assert (code, out) == (2, "")
    assert "runner 'acp' needs the name of an agent" in error


def test_a_report_shows_no_secret_of_the_environment(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hush-0123456789")
    install(site, at_nul="raise KeyError(__import__('os').environ['SOME_API_KEY'])")
    code, out, _ = certify(site, "--json", "--rule", "answers_any_task", "--backend", "asyncio")
    assert code == 1
    assert "KeyError: '" + "*" * 8 in out
    assert "hush" not in out
