"""Cancelling: politely, in time, at any moment, and without a trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import Host, StreamChunk, SubagentResult, SubagentSpec, Text, ToolResult, Update
from gofer_runners.acp import AcpRunner

from .support import Bench, Watcher, bench, lives, say, sent, settings, told, turn

pytestmark = pytest.mark.anyio

SECONDS = 30
UP = say("up")
TOOL = {"start": ["/bin/sleep", "4001"], "session": True}
DAEMON = {"start": ["/bin/sh", "-c", "(setsid /bin/sleep 4002 &)"]}


def at(text: str, action: Callable[[StreamChunk], Any]) -> Callable[[StreamChunk], Any]:
    """Return a reaction to the block that begins with that text."""

    def react(chunk: StreamChunk) -> Any:
        if isinstance(chunk.block, Text) and chunk.block.text.startswith(text):
            return action(chunk)
        return None

    return react


def cancel(chunk: StreamChunk) -> None:
    for child in chunk.turn.host.children:
        if child.id == chunk.turn.subagent_id:
            child.cancel()


async def cancelled(b: Bench, *steps: dict[str, Any]) -> SubagentResult:
    """Play steps, cancel at the text ``up``, and see that nothing is left."""
    b.watcher.react = at("up", cancel)
    with anyio.fail_after(SECONDS):
        result = await b.play(*steps)
    assert not await b.alive()
    return result


@pytest.mark.parametrize(
    ("after", "stop_reason", "summary", "error"),
    [
        ([], "cancelled", "up", None),
        ([{"end": "cancelled"}], "cancelled", "up", None),
        ([say(" more"), {"end": "cancelled"}], "cancelled", "up more", None),
        ([say(" and done"), {"end": "end_turn"}], "end_turn", "up and done", None),
        ([{"end": "refusal"}], "refusal", "up", None),
        ([{"error": [-32603, "stopped"]}], "cancelled", "up", "stopped"),
        ([{"exit": 0}], "cancelled", "up", "it exited with code 0"),
        ([{"signal": 9}], "cancelled", "up", "it was ended by SIGKILL"),
        ([{"wait": "forever"}], "cancelled", "up", "did not answer session/cancel within 0.3 s"),
        ([{"close": "stdin"}, say("!"), {"end": "cancelled"}], "cancelled", "up!", None),
    ],
)
async def test_whatever_the_agent_answers_the_text_is_kept(
    after: list[Any], stop_reason: str, summary: str, error: str | None
) -> None:
    async with bench() as b:
        result = await cancelled(b, UP, {"wait": "cancel"}, *after)
    assert (result.stop_reason, result.summary) == (stop_reason, summary)
    assert result.exit_ok is (stop_reason == "end_turn")
    assert result.error is None if error is None else error in str(result.error)
    assert result.session is not None


@pytest.mark.parametrize("options", ["ignore_cancel", "ignore_eof", "ignore_term"])
@pytest.mark.parametrize("last", [{"wait": "forever"}, {"signal": 19}])
async def test_an_agent_that_does_not_heed_is_ended_with_its_tools(
    options: str, last: dict[str, Any]
) -> None:
    script = turn(TOOL, DAEMON, UP, last, options={options: True})
    async with bench(script, cancel_grace=0.1, end_grace=0.1) as b:
        b.watcher.react = at("up", cancel)
        seen: set[int] = set()
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:

                async def look() -> None:
                    while len(seen) < 3:
                        seen.update(await b.alive())
                        await anyio.lowlevel.checkpoint()

                tasks.start_soon(look)
                result = await b.run()
                tasks.cancel_scope.cancel()
        assert (result.stop_reason, result.summary) == ("cancelled", "up")
        assert not await b.alive()
        assert seen
        assert not [pid for pid in seen if lives(pid)]


async def test_tools_that_a_polite_cancel_leaves_running_are_ended() -> None:
    async with bench() as b:
        result = await cancelled(b, TOOL, DAEMON, UP, {"wait": "cancel"}, {"end": "cancelled"})
    assert result.error is None


async def test_calls_that_were_open_are_ended() -> None:
    async with bench() as b:
        await cancelled(b, {"call": "c"}, UP, {"wait": "forever"})
        assert b.watcher.of(ToolResult) == [ToolResult(tool_call_id="c", output="", is_error=True)]


async def test_session_cancel_is_sent_once_and_first(tmp_path: Path) -> None:
    record = tmp_path / "record"

    async def never(permission: Any) -> bool:
        await anyio.sleep_forever()
        return True

    def react(chunk: StreamChunk) -> None:
        if isinstance(chunk.block, Update) and chunk.block.kind == "permission":
            cancel(chunk)
            cancel(chunk)

    script = turn(UP, {"ask": "c"}, {"tell": True}, options={"record": str(record)})
    async with bench(script, permissions="ask", runner=AcpRunner(ask=never)) as b:
        b.watcher.react = react
        with anyio.fail_after(SECONDS):
            result = await b.run()
    assert result.stop_reason == "cancelled"
    assert result.permissions_denied == []
    messages = sent(record)
    assert [message.get("method", "answer") for message in messages] == [
        "initialize", "session/new", "session/prompt", "session/cancel", "answer",
    ]  # fmt: skip
    assert messages[-1]["result"] == {"outcome": {"outcome": "cancelled"}}
    assert messages[-2]["params"] == {"sessionId": messages[2]["params"]["sessionId"]}


async def test_what_is_asked_while_cancelling_is_answered_cancelled() -> None:
    async with bench(fs=True, terminal=True) as b:
        result = await cancelled(
            b,
            UP,
            {"wait": "cancel"},
            {"ask": "c"},
            {"tell": True, "id": "1"},
            {"request": "terminal/create", "params": {"command": "touch made"}},
            {"tell": True, "id": "2"},
            {"request": "fs/read_text_file", "params": {"path": "/x"}},
            {"tell": True, "id": "3"},
        )
        answers = [told(text.text) for text in b.watcher.of(Text)[1:]]
    assert result.stop_reason == "cancelled"
    assert answers[0] == {"result": {"outcome": {"outcome": "cancelled"}}}
    assert [answer["error"]["code"] for answer in answers[1:]] == [-32800, -32800]


async def test_a_command_that_the_agent_waits_for_is_killed() -> None:
    async with bench(terminal=True, cancel_grace=20) as b:
        result = await cancelled(
            b,
            {"request": "terminal/create", "params": {"command": "sleep 4003"}},
            UP,
            {"request": "terminal/wait_for_exit", "params": {"terminalId": "term-0"}},
            {"wait": "cancel"},
            {"tell": True, "id": "2"},
        )
    assert result.error is None
    assert told(b.watcher.of(Text)[-1].text) == {"result": {"exitCode": None, "signal": "SIGKILL"}}


@pytest.mark.parametrize(
    ("where", "doing"),
    [
        ("initialize", "being started"),
        ("session/new", "opening a session"),
        ("session/set_mode", "opening a session"),
    ],
)
async def test_cancelled_while_it_starts_it_ends_at_once(where: str, doing: str) -> None:
    modes = {"availableModes": [{"id": "a"}], "currentModeId": "b"}
    script = {
        "session/new": [{"result": {"sessionId": "s", "modes": modes}}],
        where: [TOOL, {"stderr": "there\n"}, {"wait": "forever"}],
    }
    async with bench(script, mode="a", cancel_grace=20) as b:
        child = await b.host.spawn(SubagentSpec(task="x", agent="fake"))
        with anyio.fail_after(SECONDS):
            while len(await b.alive()) < 2:
                await anyio.lowlevel.checkpoint()
            seen = await b.alive()
            child.cancel()
            result = await child.wait()
        assert not [pid for pid in seen if lives(pid)]
        assert not await b.alive()
    assert (result.stop_reason, result.error) == (
        "cancelled",
        f"the child was cancelled while agent 'fake' was {doing}",
    )


async def test_cancelled_at_each_moment_of_its_start() -> None:
    script = turn(TOOL, say("x"), {"wait": "cancel"})
    async with bench(script) as b:
        for steps in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144):
            child = await b.host.spawn(SubagentSpec(task="x", agent="fake"))
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            child.cancel()
            with anyio.fail_after(SECONDS):
                result = await child.wait()
            assert result.stop_reason == "cancelled", steps
            assert not await b.alive(), steps


async def test_a_plugin_that_waits_does_not_keep_a_cancelled_child(tmp_path: Path) -> None:
    async def hang(chunk: StreamChunk) -> None:
        cancel(chunk)
        await anyio.sleep_forever()

    async with bench() as b:
        b.watcher.react = at("up", hang)
        with anyio.fail_after(SECONDS):
            result = await b.play(UP, say("more"), {"wait": "cancel"})
        assert result.stop_reason == "cancelled"
        assert not await b.alive()


async def test_a_limit_of_time_says_where_it_was() -> None:
    async with bench({"initialize": [{"wait": "forever"}]}) as b:
        with anyio.fail_after(SECONDS):
            result = await b.run(timeout=0.2)
    assert result.error == (
        "timed out after 0.2 s: raise timeout, or ask for less; "
        "the child was cancelled while agent 'fake' was being started"
    )


async def test_limits_of_time_end_it_with_what_it_said() -> None:
    async with bench() as b:
        with anyio.fail_after(SECONDS):
            result = await b.run("player", '[{"say": "up"}, {"wait": "cancel"}]', timeout=0.5)
            assert (result.stop_reason, result.summary) == ("cancelled", "up")
            assert "timed out after 0.5 s" in str(result.error)
            result = await b.run("player", '[{"say": "up"}, {"wait": "cancel"}]', idle_timeout=0.5)
            assert (result.stop_reason, result.summary) == ("cancelled", "up")
            assert "without a sign of life" in str(result.error)
        assert not await b.alive()


@pytest.mark.parametrize("moment", ["starting", "in a turn", "idle"])
async def test_closing_the_host_ends_every_agent(moment: str) -> None:
    watcher = Watcher()
    steps = [TOOL, DAEMON, UP, *([] if moment == "idle" else [{"wait": "forever"}])]
    script = turn(*steps, **({"initialize": [TOOL, *steps]} if moment == "starting" else {}))
    seen: set[int] = set()
    with anyio.fail_after(SECONDS):
        async with Host(
            [AcpRunner, watcher], {"agents": {"fake": settings(script)}}, discover=False
        ) as host:
            b = Bench(host, watcher)
            child = await host.spawn(SubagentSpec(task="x", agent="fake"))
            if moment == "idle":
                await child.wait()
            while len(seen) < 3:
                seen = await b.alive()
                await anyio.lowlevel.checkpoint()
    assert child.result is not None
    assert child.result.exit_ok is (moment == "idle")
    assert not [pid for pid in seen if lives(pid)]


async def test_a_caller_that_is_cancelled_waits_for_the_end() -> None:
    async with bench() as b:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:

                def stop(chunk: StreamChunk) -> None:
                    tasks.cancel_scope.cancel()

                b.watcher.react = at("up", stop)
                tasks.start_soon(b.play, TOOL, UP, {"wait": "forever"})
        assert not await b.alive()
        assert not b.host.children


async def test_one_child_that_is_cancelled_leaves_its_siblings_alone() -> None:
    async with bench() as b, anyio.create_task_group() as tasks:
        results: list[SubagentResult] = []

        async def sibling() -> None:
            results.append(await b.play(say("begin"), {"wait": "eof"}, say("never")))

        tasks.start_soon(sibling)
        with anyio.fail_after(SECONDS):
            while not b.watcher.blocks:
                await anyio.lowlevel.checkpoint()
            b.watcher.react = at("up", cancel)
            result = await b.play(TOOL, UP, {"wait": "cancel"})
            assert result.stop_reason == "cancelled"
            assert len(await b.alive()) == 1
            assert results == []
            await b.host.cancel("sub-0")
    assert results[0].summary == "begin"


def test_descriptors_are_not_lost(anyio_backend: str) -> None:
    async def main() -> None:
        async with bench() as b:
            await cancelled(b, UP, {"wait": "cancel"})
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(5):
                await cancelled(b, UP, {"wait": "cancel"})
                await cancelled(b, UP, {"exit": 1})
                await b.play({"exit": 1})
            assert len(os.listdir("/proc/self/fd")) == before

    anyio.run(main, backend=anyio_backend)
