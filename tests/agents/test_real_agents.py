"""What real agents do, driven as a user would drive them."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from gofer import Host, SubagentResult, Text, Thinking, ToolCall, WorktreeConfig
from gofer_runners.acp import Permission

from .scene import Scene
from .server.scripts import ANSWER, FIRST, LAST, THOUGHT

pytestmark = pytest.mark.anyio

Tell = Callable[[str], None]

# Enough for an agent's own retries to show, not for them to end.
SILENCE = 8.0
# Enough for those that try for long, and tell of each try.
TRIES = 45.0


def well(result: SubagentResult, summary: str) -> bool:
    """Whether the child ended as it should, with this report."""
    assert result.error is None
    assert result.exit_ok
    assert result.stop_reason == "end_turn"
    return result.summary == summary


def refused(scene: Scene, result: SubagentResult) -> str:
    """Check how a turn ended in which a call was refused; say how."""
    assert result.permissions_denied
    if scene.recipe.refused == "goes on":
        assert well(result, "".join(LAST))
        return "refused, goes on"
    assert result.stop_reason in ("end_turn", "cancelled")
    # What it says then may be its own, such as that the user cancelled.
    assert "".join(LAST) not in result.summary
    return f"refused, ends with {result.stop_reason}"


async def test_answer(scene: Scene, tell: Tell) -> None:
    async with scene.host() as host:
        result = await scene.run(host, "[[answer]]")
        assert well(result, "".join(ANSWER))
        assert not scene.watch.of(ToolCall)
        result = await scene.run(host, "[[think]]")
        assert well(result, "".join(ANSWER))
        thought = "".join(block.text for block in scene.watch.of(Thinking))
    assert not thought or all(part.strip() in thought for part in THOUGHT)
    tell("yes, with its thoughts" if thought else "yes")


async def test_report_after_a_tool(scene: Scene, tell: Tell) -> None:
    async with scene.host() as host:
        result = await scene.run(host, "[[shell: true]]")
    assert scene.watch.of(ToolCall)
    texts = "".join(block.text for block in scene.watch.of(Text))
    assert "".join(FIRST) in texts
    assert not result.fallback
    if scene.recipe.tail:
        assert not well(result, "".join(LAST))
        assert result.summary.endswith("".join(LAST))
        tell("yes, after the end of the text before")
    else:
        assert well(result, "".join(LAST))
        tell("yes")


async def test_approve(scene: Scene, tell: Tell) -> None:
    path = scene.work / "approved"
    async with scene.host(permissions="approve") as host:
        result = await scene.run(host, f"[[write: {path}]]")
    assert path.read_text(encoding="utf-8").strip() == "written by the model"
    assert result.exit_ok
    assert not result.permissions_denied
    asked = bool(scene.watch.of("permission"))
    assert asked == ("write" in scene.recipe.asks)
    tell("asked, written" if asked else "not asked, written")


async def test_read_only(scene: Scene, tell: Tell) -> None:
    tell(await refuse(scene, "read-only"))


async def test_deny(scene: Scene, tell: Tell) -> None:
    tell(await refuse(scene, "deny"))


async def refuse(scene: Scene, policy: str) -> str:
    """Have a file written under a policy that forbids it; say what came of it."""
    path = scene.work / "refused"
    async with scene.host(permissions=policy) as host:
        result = await scene.run(host, f"[[write: {path}]]")
    assert bool(scene.watch.of("permission")) == ("write" in scene.recipe.asks)
    if "write" in scene.recipe.asks:
        assert not path.exists()
        return refused(scene, result)
    assert path.exists()
    return "not asked, written"


async def test_ask(scene: Scene, tell: Tell) -> None:
    paths = {True: scene.work / "yes", False: scene.work / "no"}
    answer = True
    asked: list[Permission] = []

    async def ask(permission: Permission) -> bool:
        asked.append(permission)
        return answer

    async with scene.host(permissions="ask", ask=ask) as host:
        for answer, path in paths.items():
            asked.clear()
            result = await scene.run(host, f"[[write: {path}]]")
            assert bool(asked) == ("write" in scene.recipe.asks)
            assert path.exists() == (answer or not asked)
            if asked:
                assert asked[0].agent == scene.recipe.name
                assert bool(result.permissions_denied) == (not answer)
    tell("yes and no are heard" if asked else "not asked")


async def test_file_in_a_worktree(scene: Scene, tell: Tell) -> None:
    tree = WorktreeConfig(path=str(scene.folder / "tree"), branch="child")
    async with scene.host() as host:
        result = await scene.run(host, f"[[write: {scene.folder}/tree/new]]", worktree=tree)
    assert result.exit_ok
    assert result.worktree is not None
    assert result.worktree.changed_files == ["new"]
    assert result.worktree.branch == "child"
    assert not (scene.work / "new").exists()
    tell("yes")


@asynccontextmanager
async def turn(host: Host, scene: Scene, task: str) -> AsyncIterator[list[SubagentResult]]:
    """Have a turn beside the block; its result is in the list when the block is left."""
    results: list[SubagentResult] = []

    async def run() -> None:
        results.append(await scene.run(host, task))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield results


async def cancel(host: Host, scene: Scene) -> None:
    for child in scene.watch.children:
        await host.cancel(child)


async def test_cancel_in_mid_stream(scene: Scene, tell: Tell) -> None:
    async with scene.host() as host:
        async with turn(host, scene, "[[slow]]") as results:
            await scene.watch.until_text()
            await cancel(host, scene)
        [result] = results
        assert not result.exit_ok
        assert result.summary.startswith("word 0")
        again = await scene.run(host, "[[answer]]")
        assert well(again, "".join(ANSWER))
    tell(result.stop_reason)


async def test_cancel_in_mid_tool(scene: Scene, tell: Tell) -> None:
    fifo = scene.folder / "fifo"
    os.mkfifo(fifo)
    # Whoever has it open for writing is the tool, or was started by it.
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with scene.host() as host:
            task = f"[[slow-shell: exec 7>{fifo}; echo running >&7]]"
            async with turn(host, scene, task) as results:
                assert await heard(reader) == b"running\n"
                await cancel(host, scene)
            assert await heard(reader) == b""
            [result] = results
            assert not result.exit_ok
            assert not scene.processes()
            again = await scene.run(host, "[[answer]]")
            assert well(again, "".join(ANSWER))
    finally:
        os.close(reader)
    tell(result.stop_reason)


async def heard(reader: int) -> bytes:
    """Return what comes next; empty once nobody has it open for writing."""
    while True:
        await anyio.wait_readable(reader)
        try:
            return os.read(reader, 100)
        except BlockingIOError:
            continue


async def test_http_500(scene: Scene, tell: Tell) -> None:
    # Only of the silent ones: the others have all the time that a busy machine takes.
    limit = SILENCE if scene.recipe.failing == "silence" else None
    async with scene.host() as host:
        # Its start would count as silence.
        await scene.run(host, "[[answer]]")
        result = await scene.run(host, "[[http-500]]", idle_timeout=limit, timeout=TRIES)
    match scene.recipe.failing:
        case "error":
            assert result.stop_reason == "error"
            assert result.error
            assert not result.exit_ok
        case "nothing":
            assert result.stop_reason == "end_turn"
            assert result.error
            assert not result.exit_ok
        case "text":
            assert result.summary
        case "silence":
            assert not result.exit_ok
            assert "timed out" in (result.error or "")
    tell(
        {
            "error": "an error",
            "nothing": "no text: an error of ours",
            "text": "told as text",
            "silence": "tries again in silence: our limit ends it",
        }[scene.recipe.failing]
    )


async def test_killed_in_mid_turn(scene: Scene, tell: Tell) -> None:
    async with scene.host() as host:
        async with turn(host, scene, "[[slow]]") as results:
            await scene.watch.until_text()
            scene.processes()[0].send_signal(signal.SIGKILL)
        [result] = results
        assert not result.exit_ok
        assert result.stop_reason == "error"
        assert "SIGKILL" in (result.error or "")
        assert result.summary.startswith("word 0")
        again = await scene.run(host, "[[answer]]")
        assert well(again, "".join(ANSWER))
    tell("an error, the text so far")


async def test_two_turns(scene: Scene, tell: Tell) -> None:
    async with scene.host() as host:
        first = await scene.run(host, "one [[answer]]")
        assert first.session is not None
        second = await scene.run(host, "two [[answer]]", resume=first.session.id)
    assert well(second, "".join(ANSWER))
    assert second.session is not None
    assert second.session.resumed
    assert second.session.id == first.session.id
    assert remembered(scene, "one [[answer]]")
    tell("yes")


async def test_resume_in_a_new_process(scene: Scene, tell: Tell) -> None:
    async with scene.host() as host:
        first = await scene.run(host, "one [[answer]]")
    assert first.session is not None
    async with scene.host() as host:
        second = await scene.run(host, "two [[answer]]", resume=first.session.id)
    assert well(second, "".join(ANSWER))
    assert second.session is not None
    resumed = second.session.resumed
    assert scene.recipe.resumes in (resumed, None)
    assert remembered(scene, "one [[answer]]") is resumed
    if resumed:
        assert second.session.id == first.session.id
    else:
        assert second.session.reason
    answers = {True: "yes", False: "no: a new session, and why", None: "seldom: else a new session"}
    tell(answers[scene.recipe.resumes])


def remembered(scene: Scene, task: str) -> bool:
    """Whether the model was told of an earlier task in the last request."""
    return any(task in text for text in scene.last_asked())
