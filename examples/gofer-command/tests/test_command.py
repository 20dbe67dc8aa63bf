"""The runner, with real programs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from gofer import (
    ConfigError,
    Host,
    PluginNotSupportedError,
    PluginValidationError,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    Text,
    hookimpl,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gofer_command import CommandRunner

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="gofer supervises processes on Linux"),
]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own settings out of the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


class Seen:
    """Keeps the text that passed, and says when some did."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.some = anyio.Event()

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        if isinstance(chunk.block, Text):
            self.texts.append(chunk.block.text)
            self.some.set()


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def shell(code: str) -> list[str]:
    return ["/bin/sh", "-c", code]


async def ask(
    command: list[str],
    task: str = "hello",
    *,
    plugins: tuple[object, ...] = (),
    spec: dict[str, Any] | None = None,
    **config: Any,
) -> SubagentResult:
    runner = CommandRunner(command, **config)
    with anyio.fail_after(60):
        async with Host([runner, *plugins], discover=False) as host:
            return await host.run(SubagentSpec(task=task, runner="command", **(spec or {})))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def test_the_task_goes_in_and_the_answer_comes_out() -> None:
    result = await ask(["cat"], "Grüße\0 an alle\n")
    assert (result.summary, result.stop_reason, result.exit_ok) == (
        "Grüße\0 an alle\n", "end_turn", True,
    )  # fmt: skip


@given(task=st.text(min_size=1).filter(lambda text: text.strip()))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_comes_back_as_it_was(task: str) -> None:
    result = anyio.run(ask, ["cat"], task)
    clean = task.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert result.summary == clean
    assert result.exit_ok


async def test_a_large_task_and_answer_cross_each_other() -> None:
    task = "0123456789abcde\n" * 200_000
    assert (await ask(["cat"], task)).summary == task


async def test_a_command_need_not_read_its_task() -> None:
    result = await ask(shell("exec <&-; echo done"), "x" * 1_000_000)
    assert (result.summary, result.exit_ok) == ("done\n", True)


async def test_text_is_passed_on_as_it_is_written(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    class Gate:
        """Lets the command go on once its first words have passed."""

        name = "gate"

        @hookimpl
        async def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if chunk.block == Text(text="one\n"):
                await anyio.Path(gate).write_text("open")

    seen = Seen()
    result = await ask(shell(f"echo one; cat {gate} >&2; echo two"), plugins=(seen, Gate()))
    assert seen.texts == ["one\n", "two\n"]
    assert result.summary == "one\ntwo\n"


async def test_a_character_that_comes_in_two_pieces_stays_whole() -> None:
    code = (
        "import os, sys\n"
        "for piece in (b'\\xe2', b'\\x82', b'\\xac'):\n"
        "    os.write(1, piece)\n"
    )  # fmt: skip
    assert (await ask(python(code))).summary == "€"


async def test_it_fails_with_its_exit_code_and_the_end_of_its_stderr() -> None:
    result = await ask(shell("echo partly; yes noise | head -n 9999 >&2; echo why >&2; exit 3"))
    assert (result.stop_reason, result.exit_ok, result.summary) == ("error", False, "partly\n")
    assert result.error is not None
    assert result.error.startswith("/bin/sh: it exited with code 3: ")
    assert result.error.endswith("noise\nwhy")
    assert len(result.error) < 2100
    result = await ask(shell("kill -9 $$"))
    assert result.error == "/bin/sh: it was ended by SIGKILL"
    result = await ask(shell("exit 0"))
    assert result.error == "the turn ended with no text: there is no report"


async def test_a_program_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    result = await ask([str(tmp_path / "nowhere")])
    assert result.stop_reason == "error"
    assert "nowhere' cannot be started" in str(result.error)


async def test_directory_environment_and_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFER_API_KEY", "secret")
    monkeypatch.setenv("FROM_OUTSIDE", "yes")
    code = (
        "import json, os, sys\n"
        "names = ('FROM_OUTSIDE', 'A', 'B', 'GOFER_API_KEY', 'GOFER_DEPTH')\n"
        "print(json.dumps([os.getcwd(), sys.argv[1:], [os.environ.get(n) for n in names]]))"
    )
    result = await ask(
        python(code, "first"),
        env={"A": "config", "B": "config"},
        spec={"cwd": tmp_path, "options": {"arguments": ["second"], "env": {"B": "own"}}},
    )
    assert json.loads(result.summary) == [
        str(tmp_path), ["first", "second"], ["yes", "config", "own", None, "1"],
    ]  # fmt: skip


async def test_encodings_and_what_is_none() -> None:
    latin = await ask(python("import os; os.write(1, os.read(0, 99))"), "é", encoding="latin-1")
    assert latin.summary == "é"
    broken = python("import os; os.write(1, b'a\\xffb')")
    assert (await ask(broken)).summary == "a�b"
    assert (await ask(broken, errors="backslashreplace")).summary == "a\\xffb"
    strict = await ask(broken, errors="strict")
    assert strict.stop_reason == "error"
    assert "wrote what is no utf-8" in str(strict.error)


async def test_a_command_that_writes_too_much_is_ended() -> None:
    result = await ask(["yes"], output_limit=5)
    assert (result.summary, result.stop_reason) == ("y\ny\ny", "error")
    assert "more than 5 bytes" in str(result.error)
    result = await ask(["yes"], spec={"options": {"output_limit": 3}})
    assert result.summary == "y\ny"
    exactly = await ask(shell("printf 12345"), output_limit=5)
    assert exactly.exit_ok


async def cancelled_when_it_talks(code: str, grace: float) -> tuple[SubagentResult, list[int]]:
    seen = Seen()
    with anyio.fail_after(60):
        async with Host([CommandRunner(shell(code), grace=grace), seen], discover=False) as host:
            child = await host.spawn(SubagentSpec(task="go", runner="command"))
            await seen.some.wait()
            child.cancel()
            result = await child.wait()
    return result, [int(word) for text in seen.texts for word in text.split() if word.isdecimal()]


async def test_a_cancelled_command_has_its_grace_and_keeps_what_it_wrote() -> None:
    code = "trap 'echo bye; exit 0' TERM; echo $$; while :; do sleep 0.01; done"
    result, (pid,) = await cancelled_when_it_talks(code, grace=30.0)
    assert result.stop_reason == "cancelled"
    assert result.summary == f"{pid}\nbye\n"
    assert not alive(pid)


async def test_nothing_is_left_of_one_that_heeds_nothing() -> None:
    code = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & echo $$ $!; wait"
    result, pids = await cancelled_when_it_talks(code, grace=0.01)
    assert (result.stop_reason, len(pids)) == ("cancelled", 2)
    assert [pid for pid in pids if alive(pid)] == []


async def test_what_a_command_leaves_running_is_ended_and_not_waited_for() -> None:
    result = await ask(shell("sleep 600 & echo $!"))
    assert result.exit_ok
    assert not alive(int(result.summary))
    talker = shell("(trap '' TERM; while :; do echo more; done) & echo mine; exit 0")
    result = await ask(talker)
    assert result.exit_ok
    assert "mine\n" in result.summary


async def test_a_time_limit_ends_it() -> None:
    result = await ask(shell("exec sleep 600"), spec={"timeout": 0.5}, grace=0.0)
    assert result.stop_reason == "cancelled"
    assert "timed out" in str(result.error)


async def test_what_it_cannot_do_is_refused() -> None:
    for spec, error, words in (
        ({"tool_scope": ["read"]}, PluginNotSupportedError, "held to the tools read"),
        ({"resume": "s"}, PluginNotSupportedError, "no sessions"),
        ({"options": {"argument": []}}, PluginValidationError, "command.options.argument: "),
        ({"options": {"arguments": ["a\0"]}}, PluginValidationError, "holds a NUL"),
        ({"options": {"output_limit": 0}}, PluginValidationError, "output_limit"),
    ):
        with pytest.raises(error, match=words):
            await ask(["cat"], spec=spec)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "command"),
        ({"command": []}, "command"),
        ({"command": ["cat"], "encoding": "klingon"}, "encoding"),
        ({"command": ["cat"], "errors": "surrogateescape"}, "errors"),
        ({"command": ["cat"], "comand": ["cat"]}, "comand"),
        ({"command": ["cat"], "grace": -1}, "grace"),
    ],
)
async def test_wrong_settings_name_their_key(settings: dict[str, Any], words: str) -> None:
    config = {"runners": {"command": settings}}
    with pytest.raises(ConfigError, match=rf"runners\.command(\.{words})?: "):
        async with Host([CommandRunner], config, discover=False):
            pass


async def test_settings_reach_it() -> None:
    config = {"runners": {"command": {"command": ["tr", "a-z", "A-Z"]}}}
    with anyio.fail_after(60):
        async with Host([CommandRunner], config, discover=False) as host:
            result = await host.run(SubagentSpec(task="shout", runner="command"))
    assert result.summary == "SHOUT"
