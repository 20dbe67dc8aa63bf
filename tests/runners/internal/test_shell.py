"""The tool that runs commands: its output, its limits, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from gofer import Host, SubagentSpec
from gofer.testing import ScriptedModel
from gofer_runners.internal import InternalRunner, _programs
from gofer_runners.internal._output import Middle, cut

pytestmark = pytest.mark.anyio


def alive(work: Path) -> list[str]:
    """Return the commands of all processes that work in *work*."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(work) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):  # psutil leaves an OSError where one is just ending
            continue
    return found


async def test_what_a_command_gives(use: Any, work: Path) -> None:
    (work / "a.txt").write_text("a")
    assert (await use("run_shell", command="ls; pwd")).output == f"a.txt\n{work}\n"
    silent = await use("run_shell", command="true")
    assert (silent.output, silent.is_error) == ("[exit code 0, no output]", False)
    failed = await use("run_shell", command="printf out; echo err >&2; exit 3")
    assert (failed.output, failed.is_error) == ("outerr\n[exit code 3]", True)
    ended = await use("run_shell", command="kill -9 $$")
    assert (ended.output, ended.is_error) == ("[ended by SIGKILL]", True)
    missing = await use("run_shell", command="no-such-program-anywhere")
    assert missing.is_error
    assert "not found" in missing.output
    # Nobody is there to type.
    assert (await use("run_shell", command="cat; echo end")).output == "end\n"


async def test_the_key_of_the_model_server_is_not_in_its_environment(
    play: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFER_API_KEY", "secret-key")
    monkeypatch.setenv("OTHER_VARIABLE", "there")
    played = await play([call("run_shell", command="env")], "Done.", config={"max_depth": 3})
    output = played.results[0].output
    assert "secret-key" not in output
    assert "OTHER_VARIABLE=there\n" in output
    assert "GOFER_DEPTH=1\n" in output
    assert "GOFER_DEPTH_LIMIT=3\n" in output


async def test_a_flood_is_cut_in_the_middle(use: Any) -> None:
    output = (await use("run_shell", command="echo start; seq 2000000; echo end")).output
    assert len(output) < 40_000
    assert output.startswith("start\n1\n2\n")
    assert output.endswith("1999999\n2000000\nend\n")
    assert "bytes were left out here" in output


async def test_a_flood_without_end_is_ended(use: Any, work: Path) -> None:
    result = await use("run_shell", command="yes", seconds=0.5)
    assert result.is_error
    assert result.output.endswith("[ended after 0.5 s: raise seconds, or run less at once]")
    assert alive(work) == []


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300",
        "trap '' TERM INT HUP; sleep 300",
        "exec >&- 2>&- <&-; sleep 300",
        "(sleep 300 &) ; sleep 300",
    ],
    ids=["hangs", "ignores signals", "closes its output", "forks and hangs"],
)
async def test_a_command_that_hangs_is_ended_with_its_children(
    use: Any, work: Path, command: str
) -> None:
    result = await use("run_shell", command=command, seconds=0.3)
    assert result.is_error
    assert "[ended after 0.3 s" in result.output
    assert alive(work) == []


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300 & echo ok",
        "nohup sleep 300 >/dev/null 2>&1 & echo ok",
        "setsid sleep 300 & echo ok",
        "(setsid sh -c '(setsid sleep 300 &) &' &) ; echo ok",
        "setsid sh -c 'trap \"\" TERM; exec >&- 2>&-; while :; do sleep 1; done' & echo ok",
        "for i in 1 2 3 4 5 6 7 8 9; do (sleep 300 & sleep 300 &) & done; echo ok",
    ],
    ids=["background", "nohup", "setsid", "double fork", "daemon", "many"],
)
async def test_what_a_command_leaves_running_is_ended(use: Any, work: Path, command: str) -> None:
    result = await use("run_shell", command=command)
    assert (result.output, result.is_error) == ("ok\n", False)
    assert alive(work) == []


async def test_a_command_that_kills_its_parent_harms_nobody(use: Any, work: Path) -> None:
    result = await use("run_shell", command="(setsid sleep 300 &); kill -9 $PPID; sleep 300")
    assert result.is_error
    assert "SIGKILL" in result.output
    assert alive(work) == []


async def test_the_run_goes_on_after_its_supervisor_was_killed(
    play: Any, call: Any, work: Path
) -> None:
    supervisor = "ps -o ppid= -p $PPID"
    played = await play(
        [call("run_shell", command=supervisor)],
        [call("run_shell", command=f"kill -9 $({supervisor}); sleep 300", seconds=0.5)],
        [call("run_shell", command=supervisor)],
        "Done.",
    )
    before, _, after = (result.output.strip() for result in played.results)
    assert before.isdecimal()
    assert after.isdecimal()
    assert before != after
    assert alive(work) == []


async def test_a_command_can_be_too_long_or_impossible(use: Any) -> None:
    long = await use("run_shell", command="x" * 200_000)
    assert long.is_error
    assert "at most 30000 characters" in long.output
    null = await use("run_shell", command="echo \0")
    assert null.is_error
    assert len(null.output) < 1000


@pytest.mark.parametrize("seconds", [0, -1, 3601, "nan", "inf"])
async def test_seconds_have_bounds(use: Any, seconds: Any) -> None:
    result = await use("run_shell", command="true", seconds=seconds)
    assert result.is_error
    assert "wrong arguments for run_shell: seconds" in result.output


async def test_a_shell_can_be_left_out(play: Any, call: Any) -> None:
    played = await play([call("run_shell", command="echo hi")], "Done.", shell=False)
    assert "there is no tool 'run_shell' here" in played.results[0].output
    assert "run_shell" not in [tool.name for tool in played.model.requests[0].tools]


def names_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


@asynccontextmanager
async def opened(work: Path, *turns: Any) -> AsyncIterator[Host]:
    with anyio.fail_after(60):
        runner = InternalRunner(ScriptedModel(turns))
        async with Host([runner], discover=False, cwd=work) as host:
            yield host


async def started(work: Path) -> None:
    """Wait until a command has written the file ``up``."""
    while not (work / "up").exists():
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["cancel", "close", "caller"])
async def test_a_cancelled_run_ends_its_command(
    call: Callable[..., Any], work: Path, how: str
) -> None:
    command = "(setsid sleep 300 &); touch up; sleep 300"
    spec = SubagentSpec(task="t", runner="internal")
    async with opened(work, [call("run_shell", command=command)]) as host:
        if how == "caller":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.run, spec)
                await started(work)
                tasks.cancel_scope.cancel()
        else:
            child = await host.spawn(spec)
            await started(work)
            if how == "cancel":
                await host.cancel(child.id)
                assert child.result is not None
                assert child.result.stop_reason == "cancelled"
        if how != "close":
            assert alive(work) == []
    assert alive(work) == []


async def test_nothing_is_left_in_this_process(use: Any, work: Path) -> None:
    await use("run_shell", command="echo warm up")
    me = psutil.Process()
    before = me.num_fds(), len(me.children(recursive=True))
    for _ in range(3):
        await use("run_shell", command="sleep 300 & seq 100000; exit 1")
    assert (me.num_fds(), len(me.children(recursive=True))) == before


async def test_nothing_is_written_outside_the_directory(
    play: Any, call: Any, work: Path, own_settings: Path
) -> None:
    (work / "a.py").write_text("x = 1\n")
    before = {path for path in work.parent.rglob("*") if not path.is_relative_to(work)}
    await play(
        [
            call("search_files", pattern="x"),
            call("read_file", path="a.py"),
            call("write_file", path="b.py", content="y"),
            call("run_shell", command="cat b.py"),
        ],
        "Done.",
    )
    after = {path for path in work.parent.rglob("*") if not path.is_relative_to(work)}
    assert after == before
    assert names_in(work) == {"a.py", "b.py"}
    assert names_in(own_settings) == set()


def test_the_middle_is_left_out() -> None:
    kept = Middle(10)
    for piece in (b"abc", b"defgh", b"ij"):
        kept.add(piece)
    assert kept.text == "abcdefghij"
    kept.add(b"k" * 100)
    kept.add(b"xyz")
    assert kept.text == "abcde\n[… 103 bytes were left out here …]\nkkxyz"
    assert cut("0123456789", 10) == "0123456789"
    assert cut("0123456789x", 4) == "01\n[… 7 characters were left out here …]\n9x"


def test_how_a_command_ended_is_told() -> None:
    asked = _programs.Shell(command="x")
    for code, text in ((0, "exit code 0"), (-signal.SIGTERM, "ended by SIGTERM"),
                       (-99, "ended by signal 99")):  # fmt: skip
        assert _programs._ended(_programs.Outcome("", code), asked) == text


def test_only_the_own_key_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFER_API_KEY", "x")
    assert _programs.own_environment() == {
        name: value for name, value in os.environ.items() if name != "GOFER_API_KEY"
    }
