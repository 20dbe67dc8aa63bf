"""The plugin in real Hosts, and the file under bad conditions."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from gofer import (
    ConfigError,
    Host,
    Image,
    Message,
    Request,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Update,
)
from gofer.testing import ScriptedModel, ScriptedRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer_journal import JournalPlugin
from gofer_journal._file import JournalFile, line_of

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own settings out of the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


def entries(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


async def live(
    path: Path, script: Any, *, runner: Runner | None = None, **settings: Any
) -> SubagentResult:
    chosen = runner or ScriptedRunner(script)
    plugin = JournalPlugin(path, **settings)
    with anyio.fail_after(60):
        async with Host([chosen, plugin], discover=False) as host:
            return await host.run(SubagentSpec(task="Go on.", name="it", runner=chosen.name))


async def test_the_whole_life_of_a_child(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    script = [
        Thinking(text="Hm."),
        ToolCall(id="1", name="read", arguments={"path": "ä"}),
        ToolResult(tool_call_id="1", output="no", is_error=True),
        Image(data="AAAA", media_type="image/png"),
        Update(kind="plan", data=[1]),
        "Done.",
    ]
    result = await live(path, script, content=True)
    assert result.exit_ok
    found = entries(path)
    assert {(e["child"], e["session"].partition("/")[2]) for e in found} == {("sub-0", "sub-0")}
    assert [e["event"] for e in found] == [
        "request", "started", *["block"] * 6, "ended", "response",
    ]  # fmt: skip
    request, started, *blocks, ended, response = found
    assert (request["messages"], request["last"], request["turn"]) == (1, "Go on.", "turn-0")
    assert (started["runner"], started["name"], started["depth"]) == ("scripted", "it", 1)
    assert (started["task"], started["size"], started["cwd"]) == ("Go on.", 6, os.getcwd())
    told = [
        {k: v for k, v in b.items() if k not in ("event", "time", "child", "session")}
        for b in blocks
    ]
    assert told == [
        {"kind": "thinking", "size": 3, "text": "Hm."},
        {"kind": "tool_call", "id": "1", "name": "read", "status": None, "size": 18,
         "arguments": '{"path": "\\u00e4"}'},
        {"kind": "tool_result", "id": "1", "is_error": True, "size": 2, "output": "no"},
        {"kind": "image", "media_type": "image/png", "size": 4},
        {"kind": "update", "update": "plan", "size": 3, "data": "[1]"},
        {"kind": "text", "size": 5, "text": "Done."},
    ]  # fmt: skip
    assert (ended["stop_reason"], ended["summary"], ended["error"]) == ("end_turn", "Done.", None)
    assert ended["duration"] >= 0
    assert (response["turn"], response["stop_reason"]) == ("turn-0", "end_turn")


async def test_without_content_there_are_sizes_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    secret = "a secret of some length"
    await live(path, [secret, ToolCall(id="1", name="f", arguments={"a": secret}), secret])
    text = path.read_text()
    assert secret not in text
    assert "Go on." not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    sizes = [e["size"] for e in entries(path) if e["event"] == "block"]
    assert sizes == [len(secret), len(json.dumps({"a": secret})), len(secret)]


class Asks(Runner):
    """Makes its own request, as a harness does."""

    name = "asks"
    observed = False

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        model = ScriptedModel(["Said."])
        async with run.stream(Request(messages=[Message("user", "q")]), model) as stream:
            async for _ in stream:
                pass
        return run.result()


async def test_requests_of_a_child_are_in_it_and_the_parents_and_probes_are_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    with anyio.fail_after(60):
        async with Host([Asks, JournalPlugin(path)], discover=False) as host:
            await host.tools()
            async with host.stream(Request(), ScriptedModel(["Parent."])) as stream:
                async for _ in stream:
                    pass
            assert not path.exists()
            await host.run(SubagentSpec(task="t", runner="asks"))
    assert [e["event"] for e in entries(path)] == [
        "started", "request", "block", "response", "ended",
    ]  # fmt: skip


async def test_failures_and_cancelled_children_have_their_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    result = await live(path, ["Partly.", ZeroDivisionError("a bug")])
    assert result.error == "ZeroDivisionError: a bug"
    ended = entries(path)[-2]
    assert (ended["event"], ended["stop_reason"]) == ("ended", "error")
    assert ended["error"] == "ZeroDivisionError: a bug"

    begun = anyio.Event()

    async def hang(run: Run) -> None:
        begun.set()
        await anyio.sleep_forever()

    with anyio.fail_after(60):
        async with Host([ScriptedRunner(hang), JournalPlugin(path)], discover=False) as host:
            child = await host.spawn(SubagentSpec(task="t", runner="scripted"))
            await begun.wait()
            child.cancel()
            await child.wait()
            at_once = await host.spawn(SubagentSpec(task="t", runner="scripted"))
            at_once.cancel()
            assert (await at_once.wait()).stop_reason == "cancelled"
    last = [e for e in entries(path) if e["event"] == "ended"][-1]
    assert (last["stop_reason"], last["child"]) == ("cancelled", "sub-0")


async def test_it_changes_nothing_of_a_child(tmp_path: Path) -> None:
    script = ["One. ", ToolCall(id="1", name="f"), ToolResult(tool_call_id="1", output=""), "Two."]
    with_it = await live(tmp_path / "journal.jsonl", script)
    async with Host([ScriptedRunner(script)], discover=False) as host:
        without = await host.run(SubagentSpec(task="Go on.", name="it", runner="scripted"))
    assert with_it == without


async def test_parallel_children_and_hosts_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    script = [Text(text="x" * 1000)] * 20

    async def host_of_ten() -> None:
        async with Host(
            [ScriptedRunner(script), JournalPlugin(path, content=True)], discover=False
        ) as host:
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(host.run, SubagentSpec(task="t", runner="scripted"))

    threads = [threading.Thread(target=anyio.run, args=(host_of_ten,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    found = entries(path)
    assert len(found) == 3 * 10 * (20 + 4)
    assert len({e["session"] for e in found}) == 30


async def test_a_file_that_cannot_be_written_fails_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    result = await live(tmp_path / "file" / "journal.jsonl", ["Done."])
    assert result.exit_ok
    (record,) = [r for r in caplog.records if r.name == "gofer.journal"]
    assert "cannot be written" in record.getMessage()
    assert record.levelno == logging.WARNING


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
async def test_a_full_disk_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    result = await live(Path("/dev/full"), ["Done."])
    assert result.exit_ok
    (record,) = [r for r in caplog.records if r.name == "gofer.journal"]
    assert os.strerror(errno.ENOSPC) in record.getMessage()


def test_lines_that_were_lost_are_counted_and_a_torn_one_stays_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"torn": tr')
    file = JournalFile(path, 4096)
    file.write({"n": 1})
    room = 5
    write = os.write

    def nearly_full(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "full")
        data = data[:room]
        room -= len(data)
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", nearly_full)
        file.write({"n": 2})
        file.write({"n": 3})
    assert file.lost == 2
    file.write({"n": 4})
    file.close()
    file.write({"n": 5})
    file.close()
    assert path.read_text().splitlines() == [
        '{"torn": tr', '{"n":1}', '{"n":', '{"event":"lost","lines":2}', '{"n":4}', '{"n":5}',
    ]  # fmt: skip


TEXTS = st.builds(lambda text, times: text * times, st.text(max_size=20), st.integers(0, 500))
JSON_LIKE = st.none() | st.booleans() | st.integers() | TEXTS


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["event", "a", "b", "c"]), JSON_LIKE))
def test_a_line_is_json_within_its_limit(entry: dict[str, Any]) -> None:
    line = line_of(entry, 4096)
    assert len(line) <= 4096
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    back = json.loads(line)
    assert entry.keys() <= back.keys()
    if "cut" not in back:
        clean = {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v
                 for k, v in entry.items()}  # fmt: skip
        assert back == clean


def test_the_longest_text_is_cut_and_the_others_stay() -> None:
    line = json.loads(line_of({"event": "block", "text": "x" * 100_000, "size": 100_000}, 4096))
    assert (line["event"], line["size"], line["cut"]) == ("block", 100_000, True)
    assert 1000 < len(line["text"]) < 4096
    assert json.loads(line_of({"number": 10**4100, "text": ""}, 4096)) == {"cut": True}


async def test_settings(tmp_path: Path) -> None:
    config = {"plugins": {"journal": {"path": "here.jsonl", "content": True}}}
    runner = ScriptedRunner("Hi.")
    with anyio.fail_after(60):
        async with Host([runner, JournalPlugin], config, discover=False, cwd=tmp_path) as host:
            await host.run(SubagentSpec(task="t", runner="scripted"))
    assert entries(tmp_path / "here.jsonl")[1]["task"] == "t"
    for wrong in ({"line_limit": 1}, {"contents": True}):
        with pytest.raises(ConfigError, match=r"plugins\.journal"):
            async with Host([JournalPlugin], {"plugins": {"journal": wrong}}, discover=False):
                pass


async def test_by_default_it_is_in_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_state_path", lambda name: tmp_path / name)
    with anyio.fail_after(60):
        async with Host([ScriptedRunner("Hi."), JournalPlugin], discover=False) as host:
            await host.run(SubagentSpec(task="t", runner="scripted"))
    assert entries(tmp_path / "gofer" / "journal.jsonl")


def test_one_that_is_opened_while_others_write_finds_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def write() -> None:
        for _ in range(30):
            file = JournalFile(path, 65_536)
            for number in range(15):
                file.write({"n": number, "text": "x" * 5000})
            file.close()

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry["n"] for entry in entries(path)].count(0) == 90
