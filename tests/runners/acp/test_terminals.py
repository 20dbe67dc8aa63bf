"""Commands that an agent runs through gofer."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer.processes import Supervisor
from gofer_runners.acp import _terminals
from gofer_runners.acp._errors import INTERNAL_ERROR, METHOD_NOT_FOUND, NOT_FOUND, Refused
from gofer_runners.acp._files import Files
from gofer_runners.acp._terminals import Terminals

from .support import lives

pytestmark = pytest.mark.anyio

SECONDS = 30


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for what does not end by itself."""
    monkeypatch.setattr(_terminals, "_GRACE", 0.1)


class Asker:
    """An agent, as its terminals see it."""

    def __init__(self, terminals: Terminals) -> None:
        self.terminals = terminals

    async def __call__(self, method: str, terminal: str, **params: Any) -> dict[str, Any]:
        with anyio.fail_after(SECONDS):
            return await self.terminals.serve(
                f"terminal/{method}", {"terminalId": terminal, **params}
            )

    async def create(self, command: str, **params: Any) -> str:
        with anyio.fail_after(SECONDS):
            answer = await self.terminals.serve("terminal/create", {"command": command, **params})
        terminal: str = answer["terminalId"]
        return terminal

    async def result(self, command: str, **params: Any) -> tuple[str, Any]:
        terminal = await self.create(command, **params)
        status = await self("wait_for_exit", terminal)
        said = await self("output", terminal)
        assert said["exitStatus"] == status
        return said["output"], status["exitCode"] if status["signal"] is None else status["signal"]


@asynccontextmanager
async def terminals(cwd: Path, **environment: str) -> AsyncIterator[Asker]:
    variables = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **environment}
    async with Supervisor() as supervisor, anyio.create_task_group() as tasks:
        yield Asker(Terminals(tasks, supervisor, Files([cwd]), cwd, variables))
        tasks.cancel_scope.cancel()


async def test_a_command_with_arguments_environment_and_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script = "import os, sys; print(sys.argv[1:], os.environ['A'], os.environ['B'], os.getcwd())"
    async with terminals(tmp_path, A="1", B="2") as ask:
        assert await ask.result(
            sys.executable,
            args=["-c", script, "$HOME", "a b"],
            env=[{"name": "B", "value": "3"}, {"name": "C"}, "odd", {"value": "x"}],
            cwd=str(tmp_path / "sub"),
        ) == (f"['$HOME', 'a b'] 1 3 {tmp_path}/sub\n", 0)


async def test_a_whole_line_is_the_shells_and_a_program_with_odd_a_name_is_not(
    tmp_path: Path,
) -> None:
    program = tmp_path / "odd name"
    program.write_text("#!/bin/sh\necho the program\n")
    program.chmod(0o755)
    async with terminals(tmp_path) as ask:
        assert await ask.result("echo out; echo err >&2; exit 3") == ("out\nerr\n", 3)
        assert await ask.result("pwd") == (f"{tmp_path}\n", 0)
        assert await ask.result("echo $((1 + 1)) | cat", args=[]) == ("2\n", 0)
        assert await ask.result(str(program)) == ("the program\n", 0)


async def test_what_is_no_command_is_refused(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        for command in (None, 3, "", "  ", ["ls"]):
            with pytest.raises(Refused, match="command must be a string"):
                await ask.create(command)  # type: ignore[arg-type]


async def test_what_cannot_be_started_is_refused(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        with pytest.raises(Refused, match="No such file or directory") as caught:
            await ask.create("no-such-program")
        assert caught.value.code == INTERNAL_ERROR
        with pytest.raises(Refused, match="null byte"):
            await ask.create("echo", args=["\0"])
        assert await ask.result("echo fine") == ("fine\n", 0)


async def test_a_directory_outside_is_refused(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        for cwd in ("/", "/etc", "..", "relative", f"{tmp_path}/..", f"{tmp_path}/nothing"):
            with pytest.raises(Refused):
                await ask.create("ls", cwd=cwd)


async def test_the_output_is_cut_at_its_beginning_between_two_characters(tmp_path: Path) -> None:
    text = "€a€€é\n"
    async with terminals(tmp_path) as ask:
        for limit in (0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 100):
            terminal = await ask.create(f"printf '{text}'", outputByteLimit=limit)
            await ask("wait_for_exit", terminal)
            said = await ask("output", terminal)
            fitting = [text[at:] for at in range(len(text) + 1) if len(text[at:].encode()) <= limit]
            assert said["output"] == fitting[0], limit
            assert said["truncated"] is (fitting[0] != text), limit


@pytest.mark.parametrize(
    ("limit", "kept"), [(None, 2**20), (-1, 2**20), ("5", 2**20), (True, 2**20), (10**12, 2**24)]
)
def test_a_limit_that_is_none_or_too_large(limit: Any, kept: int) -> None:
    assert _terminals._limit(limit) == kept


async def test_a_flood_is_read_on_and_only_its_end_is_kept(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        script = "head -c 5000000 /dev/zero | tr '\\0' x; echo end"
        terminal = await ask.create(script, outputByteLimit=1000)
        assert await ask("wait_for_exit", terminal) == {"exitCode": 0, "signal": None}
        said = await ask("output", terminal)
        assert said["truncated"] is True
        assert said["output"] == "x" * 996 + "end\n"


async def test_output_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        assert await ask.result("printf 'a\\377b'") == ("a\ufffdb", 0)


async def test_a_command_that_runs_has_output_and_no_status(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        terminal = await ask.create("echo up; sleep 2001")
        with anyio.fail_after(SECONDS):
            while not (said := await ask("output", terminal))["output"]:
                await anyio.lowlevel.checkpoint()
        assert said == {"output": "up\n", "truncated": False, "exitStatus": None}
        assert await ask("kill", terminal) == {}
        status = await ask("wait_for_exit", terminal)
        assert status["exitCode"] is None
        assert status["signal"] in ("SIGTERM", "SIGKILL")
        # It can still be looked at, until it is released.
        assert (await ask("output", terminal))["output"] == "up\n"
        assert await ask("kill", terminal) == {}
        assert await ask("release", terminal) == {}
        with pytest.raises(Refused, match="there is no terminal") as caught:
            await ask("output", terminal)
        assert caught.value.code == NOT_FOUND


@pytest.mark.parametrize("how", ["kill", "release", "end of the turn"])
async def test_all_that_it_started_ends_with_it(tmp_path: Path, how: str) -> None:
    script = "setsid sleep 2002 & echo $!; sleep 2003 & echo $!; trap '' TERM; sleep 2004"
    async with terminals(tmp_path) as ask:
        terminal = await ask.create(script)
        with anyio.fail_after(SECONDS):
            while (said := await ask("output", terminal))["output"].count("\n") < 2:
                await anyio.lowlevel.checkpoint()
        pids = [int(line) for line in said["output"].splitlines()]
        assert all(map(lives, pids))
        if how != "end of the turn":
            await ask(how, terminal)
            assert not any(map(lives, pids))
    assert not any(map(lives, pids))


async def test_who_waits_when_it_is_released_is_answered(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        terminal = await ask.create("sleep 2005")
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await ask("wait_for_exit", terminal))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await ask("release", terminal)
        assert len(answers) == 1


async def test_cancelling_the_turn_kills_what_runs_and_who_waits_goes_on(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        terminal = await ask.create("sleep 2006")
        ask.terminals.kill()
        assert await ask("wait_for_exit", terminal) == {"exitCode": None, "signal": "SIGKILL"}


async def test_a_child_that_holds_the_output_holds_nobody_up(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        output, code = await ask.result("setsid sleep 2007 & echo first")
        assert (output, code) == ("first\n", 0)
        # Nor does one that goes on writing.
        script = "mkfifo f; setsid sh -c 'echo up > f; exec yes' & read up < f"
        output, code = await ask.result(script, outputByteLimit=10)
        assert code == 0
        assert len(output) <= 10


async def test_a_command_that_closes_its_output_and_reads_its_input(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        assert await ask.result("exec >&- 2>&-; exit 4") == ("", 4)
        assert await ask.result("cat; echo end") == ("end\n", 0)


async def test_unknown_methods_and_terminals(tmp_path: Path) -> None:
    async with terminals(tmp_path) as ask:
        terminal = await ask.create("true")
        with pytest.raises(Refused, match="method not found: terminal/resize") as caught:
            await ask("resize", terminal)
        assert caught.value.code == METHOD_NOT_FOUND
        for odd, said in (("term-9", '"term-9"'), (None, "null"), (3, "3"), ({}, "{}")):
            with pytest.raises(Refused, match=f"there is no terminal {said}") as caught:
                await ask("output", odd)  # type: ignore[arg-type]
            assert caught.value.code == NOT_FOUND
            with pytest.raises(Refused, match="method not found: terminal/resize") as caught:
                await ask("resize", odd)  # type: ignore[arg-type]
            assert caught.value.code == METHOD_NOT_FOUND


async def test_only_so_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_terminals, "_MOST_TERMINALS", 2)
    async with terminals(tmp_path) as ask:
        first = await ask.create("true")
        await ask.create("true")
        with pytest.raises(Refused, match="2 terminals are open: release some first"):
            await ask.create("true")
        await ask("release", first)
        await ask.create("true")


async def test_commands_that_are_started_at_once_count_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_terminals, "_MOST_TERMINALS", 2)
    outcomes: list[str] = []
    async with terminals(tmp_path) as ask, anyio.create_task_group() as tasks:

        async def create() -> None:
            try:
                outcomes.append(await ask.create("true"))
            except Refused:
                outcomes.append("refused")

        for _ in range(6):
            tasks.start_soon(create)
    assert outcomes.count("refused") == 4
    assert len(set(outcomes)) == 3
