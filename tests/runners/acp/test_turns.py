"""Whole turns with an agent that behaves, and with one that does not."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import (
    GoferError,
    Host,
    Image,
    PluginValidationError,
    StreamChunk,
    SubagentSpec,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Update,
    Usage,
)
from gofer.testing import fake_agent
from gofer_runners.acp import AcpRunner, _agent

from .support import Bench, bench, say, sent, settings, told, turn

pytestmark = pytest.mark.anyio

ERROR = [-32603, "the model is ill"]


# What the agent says


ENDINGS: list[tuple[list[Any], str, bool]] = [
    ([say("hel"), say("lo")], "hello", False),
    ([say("a"), {"call": "c"}, say("b")], "b", False),
    ([say("a"), {"call": "c"}], "a", True),
    ([say("a"), {"progress": "c", "status": "completed"}, say("b")], "b", False),
    ([say("a"), {"call": "c"}, say("b"), {"progress": "c"}, say("c")], "bc", False),
    ([say("a"), {"ask": "c"}, say("b")], "b", False),
    ([say("a", id="1"), say("b", id="2"), say("c", id="2")], "bc", False),
    ([say("a"), say(""), {"think": "hm"}, say("b")], "ab", False),
    ([say("a"), {"call": "c"}, say(" \n")], "a", True),
    ([say("a"), {"update": {"sessionUpdate": "usage_update"}}, say("b")], "ab", False),
    ([say("a"), {"update": {"sessionUpdate": "never_heard_of"}}, say("b")], "ab", False),
    ([say("a"), {"foreign": {"sessionUpdate": "tool_call", "toolCallId": "x"}}, say("b")],
     "ab", False),
    ([say("a"), {"foreign": {"sessionUpdate": "agent_message_chunk", "content":
      {"type": "text", "text": "NOT MINE"}}}, say("b")], "ab", False),
    ([say("x", times=2_000_000)], "x" * 2_000_000, False),
    ([say("a\u2028\U0001f600\ud800")], "a\u2028\U0001f600\ufffd", False),
]  # fmt: skip


async def test_the_final_message() -> None:
    async with bench() as b:
        for steps, summary, fallback in ENDINGS:
            result = await b.play(*steps)
            assert result.error is None, steps
            assert (result.summary, result.fallback) == (summary, fallback), steps
            assert result.exit_ok
            assert result.stop_reason == "end_turn"
            assert result.session is not None
            assert result.session.resumed is False
        assert len(await b.pids()) == 1


# It opens a session and then closes its stdin, before or after it was sent the prompt.
DEAF = """
read line; echo '{"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1}}'
read line; echo '{"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}}'
exec 0<&-
exec sleep 4007
"""


async def test_who_closes_its_stdin_and_lives_on_is_not_waited_for() -> None:
    agent = {"command": ["/bin/sh", "-c", DEAF], "end_grace": 0.1}
    async with bench(agents={"fake": agent}) as b:
        for _ in range(3):
            with anyio.fail_after(20):
                result = await b.run()
            assert result.stop_reason == "error"
            assert "its stdin" in (result.error or "")
        assert not await b.pids()


async def test_everything_an_agent_reports_goes_through_the_hooks() -> None:
    def replace(chunk: StreamChunk) -> None:
        if isinstance(chunk.block, Text):
            chunk.block = Text(text=chunk.block.text.upper())

    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    steps = [
        {"think": "hm"},
        {"call": "c", "title": "List", "kind": "read", "input": {"path": "."}},
        {"progress": "c", "status": "completed", "text": "two files"},
        {"update": {"sessionUpdate": "plan", "entries": []}},
        {"update": {"sessionUpdate": "agent_message_chunk", "content": image}},
        {"foreign": {"sessionUpdate": "plan"}, "session": "a-child"},
        say("done"),
    ]
    async with bench(turn(*steps)) as b:
        b.watcher.react = replace
        result = await b.run()
    assert result.summary == "DONE"
    assert b.watcher.blocks == [
        Thinking(text="hm"),
        ToolCall(id="c", name="read", arguments={"path": "."}, title="List", kind="read"),
        ToolResult(tool_call_id="c", output="two files"),
        Update(kind="plan", data={"entries": []}),
        Image(data="aGk=", media_type="image/png"),
        Update(
            kind="subagent", data={"session_id": "a-child", "update": {"sessionUpdate": "plan"}}
        ),
        Text(text="done"),
    ]


async def test_the_stop_reason_is_told_as_it_came() -> None:
    async with bench() as b:
        for reason in ("max_tokens", "max_turn_requests", "refusal", "brand_new", "cancelled"):
            result = await b.play(say("part"), {"end": reason})
            assert (result.stop_reason, result.summary) == (reason, "part")
            assert not result.exit_ok
        result = await b.play(say("part"), {"end": "x" * 50_000})
        assert result.stop_reason == "x" * 2000 + "…"


async def test_an_answer_without_a_stop_reason_is_an_error_with_the_text() -> None:
    answers: list[Any] = [{}, None, "odd", [], [1], 0, False]
    answers += [{"stopReason": value} for value in (None, 3, "", " \n", ["end_turn"], {})]
    async with bench() as b:
        for answer in answers:
            result = await b.play(say("part"), {"result": answer})
            assert (result.stop_reason, result.summary) == ("error", "part")
            assert not result.exit_ok
            assert result.error == (
                "agent 'player' gave no stop reason: "
                f"its answer to session/prompt is {json.dumps(answer)}"
            )
        result = await b.play(say("part"), {"result": "x" * 50_000})
        assert len(str(result.error)) < 2200


async def test_usage_is_told() -> None:
    usage = {"inputTokens": 10, "outputTokens": 3, "cachedReadTokens": 4, "thoughtTokens": 1}
    answer = {"stopReason": "end_turn", "usage": {**usage, "totalTokens": 18}}
    async with bench() as b:
        assert (await b.play(say("x"), {"result": answer})).usage == Usage(
            input_tokens=10, output_tokens=3, cached_tokens=4, reasoning_tokens=1
        )
        odd: dict[str, Any] = {"stopReason": "end_turn", "usage": "odd"}
        assert (await b.play(say("x"), {"result": odd})).usage is None
        for key in usage:
            odd["usage"] = {**usage, key: -5}
            told = (await b.play(say("x"), {"result": odd})).usage
            assert told is not None
            counts = told.model_dump().values()
            assert list(counts).count(None) == 1, key
            assert -5 not in counts


async def test_a_turn_without_text_is_no_success() -> None:
    async with bench(turn()) as b:
        result = await b.run()
    assert (result.exit_ok, result.stop_reason) == (False, "end_turn")
    assert result.error == "the turn ended with no text: there is no report"


async def test_a_call_that_is_left_open_is_ended() -> None:
    async with bench(turn({"call": "c"}, say("x"))) as b:
        await b.run()
        assert b.watcher.of(ToolResult) == [ToolResult(tool_call_id="c", output="")]
    async with bench(turn({"call": "c"}, say("x"), {"exit": 1})) as b:
        await b.run()
        assert b.watcher.of(ToolResult) == [ToolResult(tool_call_id="c", output="", is_error=True)]


async def test_an_answer_with_no_text_yet_is_waited_for() -> None:
    async with bench(turn({"call": "c"}, {"end": "end_turn"}, say("late"))) as b:
        assert (await b.run()).summary == "late"


async def test_what_is_written_with_the_answer_counts_and_what_comes_later_where_asked() -> None:
    usage = {"update": {"sessionUpdate": "usage_update", "used": 1}}
    async with bench(turn(say("x"), {"end": "end_turn"}, usage), drain=0.3) as b:
        await b.run()
        assert Update(kind="usage", data={"used": 1}) in b.watcher.blocks


async def test_updates_before_the_session_id_is_known_are_kept() -> None:
    greeting = {"foreign": {"sessionUpdate": "usage_update"}, "session": "s1"}
    hello = {
        "foreign": {
            "sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": "Welcome!"},
        },
        "session": "s1",
    }
    other = {"foreign": {"sessionUpdate": "plan"}, "session": "elsewhere"}
    opened = [greeting, hello, other, {"result": {"sessionId": "s1"}}, greeting]
    async with bench(turn(say("x"), **{"session/new": opened})) as b:
        result = await b.run()
    assert result.summary == "x"
    assert [block.kind for block in b.watcher.of(Update)] == [
        "usage",
        "before_prompt",
        "subagent",
        "usage",
    ]


async def test_a_message_of_over_64_mib_is_an_error_and_the_text_is_kept() -> None:
    steps = [say("part"), say("x", times=68_000_000)]
    async with bench(turn(*steps)) as b:
        result = await b.run()
    assert (result.stop_reason, result.summary) == ("error", "part")
    assert result.error == (
        "agent fake: it sent a message of more than 67108864 bytes: that is the limit for one"
    )


async def test_an_agent_that_writes_badly_is_understood() -> None:
    steps = [
        {"line": "a banner"},
        {"line": "42"},
        {"line": "[]"},
        {"line": ""},
        {"line": '{"jsonrpc": "2.0", "id": 999, "result": {}}'},
        {"line": '{"jsonrpc": "2.0", "method": "session/update"}'},
        {"line": '{"jsonrpc": "2.0", "method": "session/update", "params": {"update": 3}}'},
        {"line": '{"jsonrpc": "2.0", "method": "_vendor/news", "params": {}}'},
        {"bytes": "ff00fe0a"},
        say("fine"),
    ]
    options = {"string_ids": True, "double_answers": True}
    async with bench(turn(*steps, options=options)) as b:
        assert (await b.run()).summary == "fine"
        assert (await b.run()).summary == "fine"


async def test_a_flood_of_chunks_comes_whole_and_in_order() -> None:
    async with bench(turn(*({"say": f"{n} "} for n in range(200)), {"flood": 20_000})) as b:
        result = await b.run()
    assert result.summary == "".join(f"{n} " for n in range(200)) + "word " * 20_000


# How it fails


FAILURES: list[tuple[list[Any], str]] = [
    ([{"exit": 3}], "agent player: it exited with code 3"),
    ([{"stderr": "boom\n"}, {"exit": 1}], "it exited with code 1; its stderr ends:\nboom"),
    ([{"signal": 9}], "agent player: it was ended by SIGKILL"),
    ([{"signal": 11}], "agent player: it was ended by SIGSEGV"),
    ([{"error": ERROR}], "the agent refused session/prompt: the model is ill (code -32603)"),
    ([{"error": [400, "no"]}], "the agent refused session/prompt: no (code 400)"),
    ([{"close": "stdout"}, {"wait": "forever"}], "agent player: it closed its stdout"),
]


async def test_a_failure_is_told_and_the_text_is_kept() -> None:
    async with bench() as b:
        for steps, error in FAILURES:
            result = await b.play(say("part"), *steps)
            assert (result.stop_reason, result.summary) == ("error", "part"), steps
            assert not result.exit_ok
            assert error in str(result.error)
            assert not await b.alive()


BEFORE_IT_HANGS = [
    '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}}',
    '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Parse error"}}',
]


async def test_an_error_that_names_no_request_ends_the_turn() -> None:
    async with bench() as b:
        for line in BEFORE_IT_HANGS:
            with anyio.fail_after(20):
                result = await b.play(say("part"), {"line": line}, {"wait": "eof"})
            assert (result.stop_reason, result.summary) == ("error", "part")
            assert "the agent refused session/prompt: Parse error" in str(result.error)


async def test_strange_ids_lose_nothing() -> None:
    ids = ['"' + "9" * 5000 + '"', "9" * 4000, "9" * 5000, "1e400", "[" * 900 + "]" * 900]
    lines = [{"line": f'{{"id": {number}, "result": {{}}}}'} for number in ids]
    async with bench() as b:
        result = await b.play(say("before"), *lines, say(" after"))
    assert (result.summary, result.error) == ("before after", None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"sessionId": 5}, "its sessionId is 5,"),
        ({"sessionId": ""}, 'its sessionId is "",'),
        ({"sessionId": ["a"]}, 'its sessionId is ["a"],'),
        ({"id": "x"}, 'its answer is {"id": "x"},'),
        (None, "its answer is null,"),
        (["x" * 50_000], 'its answer is ["xxx'),
    ],
)
async def test_a_session_without_an_id_is_told_with_what_there_was(answer: Any, said: str) -> None:
    async with bench(turn(say("x"), **{"session/new": [{"result": answer}]})) as b:
        result = await b.run()
    assert result.stop_reason == "error"
    assert f"the agent opened a session and gave it no id: {said}" in str(result.error)
    assert len(str(result.error)) < 2200


async def test_a_program_that_is_no_agent_is_told_so() -> None:
    async with bench(agents={"odd": {"command": ["true"]}}) as b:
        result = await b.run("odd")
    assert result.error == (
        "agent odd: it exited with code 0 before it answered initialize: does it speak the Agent "
        "Client Protocol, or need an argument for that, such as --acp?"
    )


@pytest.mark.parametrize("method", ["initialize", "session/new"])
@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([{"stderr": "no key\n"}, {"exit": 2}], "it exited with code 2; its stderr ends:\nno key"),
        ([{"error": [1, "not today"]}], "not today"),
        ([{"silent": True}], "did not answer"),
        ([{"result": {"sessionId": "", "protocolVersion": 9}}], "9|gave it no id"),
    ],
)
async def test_a_start_that_fails_is_told(method: str, steps: list[Any], error: str) -> None:
    limits = {"first_start_timeout": 0.6 if "silent" in steps[0] else 30}
    async with bench(turn(say("x"), **{method: steps}), **limits) as b:
        result = await b.run()
        assert result.stop_reason == "error"
        assert any(part in str(result.error) for part in error.split("|"))
        if "silent" in steps[0]:
            assert "raise first_start_timeout" in str(result.error)
        assert not await b.alive()


async def test_stderr_before_the_first_answer_does_not_stop_the_start() -> None:
    script = turn(say("x"), initialize=[{"stderr": "noise\n", "times": 70_000}])
    async with bench(script) as b:
        assert (await b.run()).summary == "x"


async def test_a_start_that_takes_long_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_agent, "_SILENCE_SECONDS", 1.0)
    script = {"initialize": [{"line": "Starting up"}, {"silent": True}]}
    async with bench(script, first_start_timeout=2.0) as b:
        result = await b.run()
    assert "did not answer initialize within 2 s" in str(result.error)
    assert str(result.error).endswith("; its stdout begins:\nStarting up")
    (told,) = [one.getMessage() for one in caplog.records if "has not answered" in one.message]
    assert told.startswith("agent 'fake' (")
    assert "after 1 s; 2 s is the limit (first_start_timeout); its stdout begins:" in told


async def test_a_start_that_takes_its_time_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(turn(say("done"))) as b:
        assert (await b.run()).exit_ok
        assert (await b.run()).exit_ok
    assert caplog.text == ""


async def test_a_first_start_may_take_longer_than_the_next() -> None:
    script = {"turns": [[say("x"), {"exit": 0}]], "session/new": []}
    times = {"first_start_timeout": 30.0, "start_timeout": 1e-9}
    async with bench(script, **times) as b:
        assert (await b.run()).summary == "x"
        result = await b.run()
    assert "did not answer initialize within 1e-09 s: raise start_timeout" in str(result.error)


async def test_a_plugin_that_fails_ends_the_turn_with_its_name() -> None:
    def fail(chunk: StreamChunk) -> None:
        raise ValueError("no such text")

    async with bench(turn(say("x"), {"wait": "cancel"})) as b:
        b.watcher.react = fail
        with anyio.fail_after(20):
            result = await b.run()
        assert result.stop_reason == "error"
        assert "watcher" in str(result.error)
        assert "no such text" in str(result.error)
        assert not await b.alive()


async def test_a_plugin_that_is_slow_holds_up_its_agent_not_the_loop() -> None:
    order: list[str] = []

    async def slowly(chunk: StreamChunk) -> None:
        if chunk.turn.subagent_id == "sub-0":
            await gate.wait()
        order.append(str(chunk.turn.subagent_id))

    gate = anyio.Event()
    async with bench(turn(say("a"), say("b"))) as b, anyio.create_task_group() as tasks:
        b.watcher.react = slowly
        tasks.start_soon(b.run)
        with anyio.fail_after(20):
            while not b.watcher.blocks:
                await anyio.lowlevel.checkpoint()
            await b.run()
        gate.set()
    # One block or two for each: what comes together is passed on together.
    assert list(dict.fromkeys(order)) == ["sub-1", "sub-0"]


# Who is asked for what


async def refusal(b: Bench, agent: str) -> str:
    """Return why this agent is refused; no child has come of it."""
    before = await b.alive()
    with pytest.raises(GoferError) as caught:
        await b.run(agent)
    assert await b.alive() == before
    return str(caught.value)


async def test_an_unknown_agent_is_refused_with_those_there_are() -> None:
    async with bench(turn(say("x"))) as b:
        error = await refusal(b, "emacs")
    assert "agent 'emacs' is unsupported" in error
    assert "gemini, goose, opencode" in error
    assert "fake" in error


async def test_a_known_agent_that_is_missing_is_refused_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with bench(turn(say("x"))) as b:
        await b.run()
        monkeypatch.setenv("PATH", str(tmp_path))
        error = await refusal(b, "opencode")
        assert "agent 'opencode' is not installed: opencode is not on PATH" in error
        assert "npm install -g opencode-ai" in error
        # What is put there later is found.
        program = tmp_path / "opencode"
        program.write_text(f"#!/bin/sh\nexec {sys.executable} /nowhere\n")
        program.chmod(0o755)
        assert "agent opencode: it exited with code 2" in str((await b.run("opencode")).error)


async def test_what_is_on_path_counts_before_each_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = {}
    for name in ("one", "two"):
        words = shlex.join(fake_agent.command(turn(say(name))))
        programs[name] = tmp_path / name / "talker"
        programs[name].parent.mkdir()
        programs[name].write_text(f"#!/bin/sh\nexec {words}\n")
        programs[name].chmod(0o755)
    async with bench(agents={"talker": {"command": ["talker"]}}) as b:
        for name in ("one", "two", "one"):
            monkeypatch.setenv("PATH", str(programs[name].parent))
            for _ in range(2):
                assert (await b.run("talker")).summary == name
        programs["one"].unlink()
        assert "agent 'talker' is not installed" in await refusal(b, "talker")
        assert "agent 'talker' is not installed" in await refusal(b, "talker")


async def test_a_host_that_is_opened_again_has_its_agents_as_they_are_configured_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings_file = tmp_path / "gofer" / "gofer.toml"
    settings_file.parent.mkdir()
    host = Host([AcpRunner()], discover=False, cwd=tmp_path)
    for name in ("one", "two"):
        words = json.dumps(fake_agent.command(turn(say(name))))
        settings_file.write_text(f"[agents.fake]\ncommand = {words}\n")
        async with host:
            assert (await host.run(SubagentSpec(task="x", agent="fake"))).summary == name


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"permission": "deny"}, "permission: there is no such key; did you mean permissions?; "),
    ({"permissions": "maybe"}, "permissions: should be 'approve', "),
    ({"cancel_grace": -1}, "cancel_grace: should be greater than or equal to 0, not -1"),
    ({"command": "no '"}, 'command: "no \'" cannot be split'),
    ({"command": 3}, "command: should be a list of words, not 3"),
    ({"command": [3]}, "command: should be a list of words, not [3]"),
    ({"command": []}, "command: is empty"),
    ({"args": {}}, "args: should be a list of words, not {}"),
]


async def test_a_wrong_setting_is_named_with_what_is_allowed() -> None:
    agents = {f"a{at}": settings(turn(), **wrong) for at, (wrong, _) in enumerate(WRONG)}
    async with bench(agents={**agents, "bare": {"permissions": "deny"}}) as b:
        for at, (_, text) in enumerate(WRONG):
            assert f"argument agents.a{at}.{text}" in await refusal(b, f"a{at}")
        assert "command is missing" in await refusal(b, "bare")


async def test_options_are_refused_by_name() -> None:
    async with bench(turn(say("hi"))) as b:
        said = r"temperature: .* no options.*settings of 'fake'"
        with pytest.raises(PluginValidationError, match=said):
            await b.run(options={"temperature": 0})


async def test_no_agent_and_no_task_are_refused() -> None:
    async with bench(turn(say("x"))) as b:
        with pytest.raises(PluginValidationError, match="needs the name of an agent"):
            await b.host.run(SubagentSpec(task="x", runner="acp"))
        with pytest.raises(PluginValidationError):
            await b.run(task="  ")


async def test_directory_environment_and_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("DROPPED", "2")
    (tmp_path / "sub" / "deeper").mkdir(parents=True)
    line = 'echo "$KEPT $DROPPED $MINE $GOFER_DEPTH $GOFER_DEPTH_LIMIT $PWD"'
    steps = [
        {"request": "terminal/create", "params": {"command": line}},
        {"request": "terminal/wait_for_exit", "params": {"terminalId": "term-0"}},
        {"request": "terminal/output", "params": {"terminalId": "term-0"}},
        {"tell": True},
    ]
    record = tmp_path / "record"
    script = turn(*steps, options={"record": str(record)})
    env = {"unset": ["DROPPED"], "set": {"MINE": "3"}}
    async with bench(script, terminal=True, env=env, cwd=tmp_path) as b:
        result = await b.run(cwd="sub")
        assert told(result.summary)["result"]["output"] == f"1  3 1 1 {tmp_path}/sub\n"
        assert sent(record, "session/new")[0]["cwd"] == f"{tmp_path}/sub"
    agents = {"fake": settings(script, terminal=True, env={"inherit": ["PATH"]}, cwd="deeper")}
    async with bench(agents=agents, cwd=tmp_path) as b:
        result = await b.run(cwd="sub")
        assert told(result.summary)["result"]["output"] == f"   1 1 {tmp_path}/sub/deeper\n"


@pytest.mark.parametrize("on", [True, False])
async def test_what_is_off_is_neither_offered_nor_done(tmp_path: Path, on: bool) -> None:
    record = tmp_path / "record"
    (tmp_path / "file").write_text("inside")
    path = str(tmp_path / "file")
    steps = [
        {"request": "fs/read_text_file", "params": {"path": path}},
        {"tell": True, "id": "1"},
        {"request": "fs/write_text_file", "params": {"path": path, "content": "new"}},
        {"tell": True, "id": "2"},
        {"request": "terminal/create", "params": {"command": "true"}},
        {"tell": True, "id": "3"},
    ]
    script = turn(*steps, options={"record": str(record)})
    async with bench(script, fs=on, terminal=on, cwd=tmp_path) as b:
        await b.run()
    answers = [told(block.text) for block in b.watcher.of(Text)]
    (hello,) = sent(record, "initialize")
    assert hello["protocolVersion"] == 1
    assert hello["clientInfo"]["name"] == "gofer"
    assert hello["clientCapabilities"] == {
        "fs": {"readTextFile": on, "writeTextFile": on},
        "terminal": on,
    }
    if on:
        assert answers[0] == {"result": {"content": "inside"}}
        assert answers[1] == {"result": {}}
        assert answers[2] == {"result": {"terminalId": "term-0"}}
    else:
        assert [answer["error"]["code"] for answer in answers] == [-32601] * 3
    assert (tmp_path / "file").read_text() == ("new" if on else "inside")


async def test_files_outside_are_refused_also_where_meta_names_another(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "file").write_text("beside")
    inside, outside = str(tmp_path / "root" / "a"), str(tmp_path / "b")
    steps = [
        {"request": "fs/write_text_file", "params": {"path": outside, "content": "x"}},
        {"tell": True, "id": "1"},
        {"request": "fs/write_text_file",
         "params": {"path": inside, "content": "x", "_meta": {"path": outside}}},
        {"tell": True, "id": "2"},
        {"request": "fs/read_text_file", "params": {"path": None, "_meta": {"path": inside}}},
        {"tell": True, "id": "3"},
        {"request": "fs/write_text_file", "params": {"path": inside, "content": 3}},
        {"tell": True, "id": "4"},
        {"request": "fs/read_text_file", "params": {"path": str(tmp_path / "beside" / "file")}},
        {"tell": True, "id": "5"},
    ]  # fmt: skip
    async with bench(
        agents={"fake": settings(turn(*steps), fs=True, roots=["../beside"])}, cwd=tmp_path / "root"
    ) as b:
        await b.run()
    answers = [told(block.text) for block in b.watcher.of(Text)]
    assert "is outside" in answers[0]["error"]["message"]
    assert answers[1] == {"result": {}}
    assert answers[2]["error"]["message"] == "path must be a string"
    assert "content must be a string" in answers[3]["error"]["message"]
    assert answers[4] == {"result": {"content": "beside"}}
    assert "b" not in os.listdir(tmp_path)


async def test_unknown_requests_are_answered() -> None:
    async with bench() as b:
        for method in ("session/unheard_of", "_vendor/x", "craft/drainMidTurnQueue", "terminal/x"):
            result = await b.play({"request": method}, {"tell": True})
            assert told(result.summary)["error"]["code"] == -32601
        result = await b.play({"request": "elicitation/create"}, {"tell": True})
        assert told(result.summary) == {"result": {"action": "decline"}}


async def test_too_many_open_requests_are_refused_not_kept() -> None:
    from gofer_runners.acp import _agent

    line = '{"jsonrpc": "2.0", "id": %d, "method": "session/request_permission", "params": {}}'
    steps = [{"line": line % number} for number in range(5)]

    async def never(permission: Any) -> bool:
        await anyio.sleep_forever()
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_agent, "_OPEN_REQUESTS", 3)
        async with bench(
            turn(*steps, say("x")), runner=AcpRunner(ask=never), permissions="ask"
        ) as b:
            assert (await b.run()).summary == "x"
            (place,) = (await _pool(b))._places.values()
            assert place.agent is not None
            with anyio.fail_after(10):
                while place.agent._open:
                    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("method", "times"), [("session/request_permission", 1000), ("_vendor/x", 5000)]
)
async def test_an_agent_that_asks_and_reads_no_answer_still_has_its_turn(
    tmp_path: Path, method: str, times: int
) -> None:
    line = {"jsonrpc": "2.0", "method": method, "params": {}}
    lines = "\n".join(json.dumps({**line, "id": f"{n:0200}"}) for n in range(times))
    script = turn(say("text"), {"line": lines}, say(" more"), options={"deaf": True})
    path = tmp_path / "script"
    path.write_text(json.dumps(script))
    agents = {"fake": settings(turn())}
    agents["fake"]["command"][-1] = f"@{path}"
    async with bench(agents=agents) as b:
        for _ in range(2):  # the first one would not see another prompt
            with anyio.fail_after(20):
                result = await b.run()
            assert (result.stop_reason, result.error) == ("end_turn", None)
            assert result.summary.endswith("more")


async def _pool(b: Bench) -> Any:
    return await b.host.resource(("acp", "pool"), None)  # type: ignore[arg-type]


# Permissions


@asynccontextmanager
async def asker(runner: AcpRunner | None = None) -> AsyncIterator[Any]:
    script = {"options": {"prompts_are_steps": True}}
    policies = ("approve", "read-only", "deny", "ask")
    agents = {name: settings(script, permissions=name, ask_timeout=0.1) for name in policies}
    async with bench(agents=agents, runner=runner) as b:

        async def ask(policy: str, **more: Any) -> Any:
            question = {"ask": "c1", "title": "rm", "kind": "execute", **more}
            return await b.play(say("first"), question, {"tell": True}, agent=policy)

        yield ask


def chosen(result: Any) -> Any:
    outcome = told(result.summary)["result"]["outcome"]
    return outcome.get("optionId", outcome["outcome"])


DENIED = {"tool_call_id": "c1", "kind": "execute", "title": "rm"}


async def test_permissions_by_policy() -> None:
    async with asker() as ask:
        result = await ask("approve")
        assert (chosen(result), result.permissions_denied) == ("once", [])
        for policy in ("deny", "read-only", "ask"):
            result = await ask(policy)
            assert (chosen(result), result.permissions_denied) == ("no", [DENIED]), policy
            assert result.exit_ok
        result = await ask("read-only", kind="read")
        assert (chosen(result), result.permissions_denied) == ("once", [])
        odd = [{"optionId": "a", "name": "A", "kind": None}, {"optionId": "b", "name": "B"}]
        result = await ask("approve", options=odd)
        assert (chosen(result), result.permissions_denied) == ("cancelled", [DENIED])


async def test_who_is_asked_sees_the_child_and_the_call() -> None:
    seen: list[Any] = []

    async def ask(permission: Any) -> bool:
        seen.append(permission)
        return True

    async with asker(AcpRunner(ask=ask)) as asked:
        assert chosen(await asked("ask")) == "once"
    (permission,) = seen
    assert (permission.child, permission.agent, permission.title) == ("sub-0", "ask", "rm")
    assert permission.call["toolCallId"] == "c1"


async def test_who_does_not_answer_in_time_has_the_default() -> None:
    async def never(permission: Any) -> bool:
        await anyio.sleep_forever()
        return True

    async with asker(AcpRunner(ask=never)) as asked:
        assert chosen(await asked("ask")) == "no"


async def test_files_and_commands_are_under_the_same_policy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    path = str(tmp_path / "file")
    steps = [
        {"request": "fs/read_text_file", "params": {"path": path}},
        {"tell": True, "id": "1"},
        {"request": "fs/write_text_file", "params": {"path": path, "content": "new"}},
        {"tell": True, "id": "2"},
        {"request": "terminal/create", "params": {"command": "touch made"}},
        {"tell": True, "id": "3"},
    ]
    async with bench(
        turn(*steps), fs=True, terminal=True, permissions="read-only", cwd=tmp_path
    ) as b:
        result = await b.run()
    answers = [told(block.text) for block in b.watcher.of(Text)]
    assert answers[0] == {"result": {"content": "text"}}
    assert "not permitted here: edit" in answers[1]["error"]["message"]
    assert "not permitted here: execute 'touch made'" in answers[2]["error"]["message"]
    assert [denied["kind"] for denied in result.permissions_denied] == ["edit", "execute"]
    assert os.listdir(tmp_path) == ["file"]


async def test_an_error_of_who_answers_is_answered_too() -> None:
    async with bench(
        turn(
            {"request": "fs/read_text_file", "params": {"path": "/x", "line": {}}}, {"tell": True}
        ),
        fs=True,
    ) as b:
        with pytest.MonkeyPatch.context() as patch:
            from gofer_runners.acp._files import Files

            async def broken(*_: Any) -> str:
                raise RuntimeError("a fault of ours")

            patch.setattr(Files, "read", broken)
            result = await b.run()
    error = told(result.summary)["error"]
    assert error == {"code": -32603, "message": "RuntimeError: a fault of ours"}
