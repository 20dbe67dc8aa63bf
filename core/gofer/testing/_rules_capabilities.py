"""Rules on what a runner declares that it can do."""

from __future__ import annotations

import os

import anyio

from ..blocks import Text, ToolCall, ToolResult
from ..errors import GoferError
from ..subagents import SubagentResult
from ._cases import Moment, cancel_at, moments
from ._kit import Kit, cut, shown
from ._rule import Broken, NotChecked, Rule, Tier
from ._rules_blocks import check_calls
from ._watch import Record, is_ours

__all__ = ["RULES"]

_LONG = 200
"""From how many characters on an answer is long."""


def streams_its_text(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            record = await scene.run(kit.subject.spec(kit.subject.task_that_is_long()))
        assert record.result is not None
        texts = [block for block in record.blocks if isinstance(block, Text) and block.text]
        length = sum(len(block.text) for block in texts)
        if not texts and record.result.summary.strip():
            raise Broken("it declares streams, and emits no text at all")
        if length < _LONG:
            raise NotChecked(
                f"its long answer has {length} characters, and {_LONG} are needed: "
                "define task_that_is_long"
            )
        if len(texts) < 2:
            raise Broken(f"its answer of {length} characters came in one block")

    kit.once(check)


def ends_by_itself(kit: Kit) -> None:
    grace = kit.runner.cancel_grace
    if grace <= 0:
        raise Broken("it declares cancels, and leaves itself no time for it: set cancel_grace")

    async def cancel(moment: Moment) -> None:
        async with kit.scene() as scene:
            spec = kit.subject.spec(kit.subject.task_that_is_long())
            record, at_work, seconds = await cancel_at(scene, spec, moment)
        if not at_work:
            raise NotChecked("it had ended before it was cancelled: define task_that_is_long")
        if seconds >= grace or not (record.raised is None or record.failed is not None):
            raise Broken(
                "run.cancel_requested was set, and it did not end by itself within its "
                f"cancel_grace of {grace:g} s"
            )

    kit.explore(moments(), kit.in_loop(cancel))


def resumes_a_session(kit: Kit) -> None:
    async def check() -> None:
        subject = kit.subject
        async with kit.scene() as scene:
            first = await scene.say("apricot")
            assert first.result is not None
            if not first.result.exit_ok:
                raise NotChecked("it does no ordinary task")
            session = first.result.session
            if session is None:
                raise Broken("it declares resumes, and its result tells of no session")
            spec = subject.spec(subject.task_that_says("quince"), resume=session.id)
            second = await scene.run(spec)
        assert second.result is not None
        again = second.result.session
        if again is None:
            raise Broken("it was to resume a session, and the result tells of none")
        if not again.resumed and not (again.reason or "").strip():
            raise Broken("it did not resume a session, and does not say why: SessionInfo.reason")
        if again.resumed and again.reason:
            raise Broken(f"it resumed a session, and says why it did not: {again.reason}")

    kit.once(check)


def says_that_a_session_is_unknown(kit: Kit) -> None:
    async def check() -> None:
        subject = kit.subject
        async with kit.scene() as scene:
            spec = subject.spec(
                subject.task_that_says("apricot"), resume="no-such-session-of-any-agent"
            )
            try:
                record = await scene.run(spec)
            except GoferError:
                return
        if record.failed is not None and not is_ours(record.failed):
            raise Broken(f"it was to resume a session that never was, and raised "
                         f"{shown(record.failed)}")  # fmt: skip
        result = record.result
        assert result is not None
        session = result.session
        if result.exit_ok and session is None:
            raise Broken("it was to resume a session that never was, and says nothing of it")
        if session is not None and not session.resumed and not (session.reason or "").strip():
            raise Broken("it could not resume a session, and does not say why")

    kit.once(check)


def works_in_its_directory(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            place = scene.host.cwd / "a directory"
            place.mkdir()
            spec = kit.subject.spec(kit.subject.task_that_tells_cwd(), cwd=place)
            record = await scene.run(spec)
            said = record.text()
        if str(place) in said:
            return
        own = os.getcwd()
        assert record.result is not None
        if own in record.result.summary or kit.defines("task_that_tells_cwd"):
            raise Broken(
                f"it was to work in {str(place)!r}, and told {cut(record.result.summary)!r}"
            )
        raise NotChecked("it did not tell where it works: define task_that_tells_cwd")

    kit.once(check)


def bears_a_directory_that_is_gone(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            place = scene.host.cwd / "gone"
            place.mkdir()
            spec = kit.subject.spec(kit.subject.task_that_says("apricot"), cwd=place)
            record = await scene.spawn(spec)
            # The Host has looked, and the run has not begun.
            place.rmdir()
            await scene.end(record)
        if record.failed is not None and not is_ours(record.failed):
            raise Broken(
                f"its directory was gone, and it raised {shown(record.failed)}: "
                "raise a RunnerError that names the directory"
            )

    kit.once(check)


def _tool(kit: Kit) -> tuple[str, str]:
    called = kit.subject.task_that_calls_a_tool()
    if called is None:
        raise NotChecked(
            "no task is known that makes it call a tool: define task_that_calls_a_tool"
        )
    return called


def keeps_to_its_tool_scope(kit: Kit) -> None:
    task, tool = _tool(kit)

    async def check(scope: list[str]) -> Record:
        async with kit.scene() as scene:
            return await scene.run(kit.subject.spec(task, tool_scope=scope))

    free = kit.once(lambda: check([]))
    if not _executed(free, tool):
        raise Broken(f"with no scope at all, it did not execute {tool!r} as the task would have it")
    bound = kit.once(lambda: check(["no-such-tool-of-any-runner"]))
    if _executed(bound, tool):
        raise Broken(f"it executed {tool!r}, which is not in its tool scope")


def _executed(record: Record, tool: str) -> bool:
    calls = {b.id for b in record.blocks if isinstance(b, ToolCall) and b.name == tool}
    return any(
        isinstance(block, ToolResult) and block.tool_call_id in calls and not block.is_error
        for block in record.blocks
    )


def shows_its_tool_calls(kit: Kit) -> None:
    task, tool = _tool(kit)

    async def check() -> None:
        async with kit.scene() as scene:
            record = await scene.run(kit.subject.spec(task))
        names = {block.name for block in record.blocks if isinstance(block, ToolCall)}
        if tool not in names:
            raise Broken(
                f"it was given a task that calls {tool!r}, and showed "
                f"{'the calls ' + ', '.join(map(repr, sorted(names))) if names else 'no call'}"
            )
        check_calls(record)

    async def cancelled() -> None:
        async with kit.scene() as scene:
            record = await scene.spawn(kit.subject.spec(task))
            assert record.child is not None
            with anyio.move_on_after(kit.subject.deadline):
                while not record.ended and not _open_calls(record):
                    await record.reached(len(record.blocks) + 1)
            record.child.cancel()
            await scene.end(record)
        left = _open_calls(record)
        if left and isinstance(record.returned, SubagentResult):
            raise Broken(
                f"it was cancelled, ended by itself, and left call {min(left)!r} without a result"
            )

    kit.once(check)
    try:
        kit.once(cancelled)
    except Broken as error:
        raise error.of_case("cancelled at its first call") from error.__cause__


def _open_calls(record: Record) -> set[str]:
    calls = {block.id for block in record.blocks if isinstance(block, ToolCall)}
    return calls - {b.tool_call_id for b in record.blocks if isinstance(b, ToolResult)}


RULES = (
    Rule("streams_its_text", Tier.capability,
         "A long answer comes in more than one block, each before the end.",
         streams_its_text, "streams"),
    Rule("ends_by_itself", Tier.capability,
         "Once run.cancel_requested is set, it ends by itself within its cancel_grace.",
         ends_by_itself, "cancels"),
    Rule("resumes_a_session", Tier.capability,
         "Its result tells of a session; a second child resumes it, or is told why not.",
         resumes_a_session, "resumes"),
    Rule("says_that_a_session_is_unknown", Tier.capability,
         "Asked to resume a session that never was, it says so.",
         says_that_a_session_is_unknown, "resumes"),
    Rule("works_in_its_directory", Tier.capability,
         "It works in run.cwd, and not in the directory of the process.",
         works_in_its_directory, "cwd"),
    Rule("bears_a_directory_that_is_gone", Tier.capability,
         "A run.cwd that has been removed meanwhile gives a result or a GoferError.",
         bears_a_directory_that_is_gone, "cwd"),
    Rule("keeps_to_its_tool_scope", Tier.capability,
         "It executes no tool that is not in spec.tool_scope, and any where that is empty.",
         keeps_to_its_tool_scope, "tool_scope"),
    Rule("shows_its_tool_calls", Tier.capability,
         "The calls of the tools that it executes are seen, each with its result, also where it "
         "ended because it was cancelled.",
         shows_its_tool_calls, "tools"),
)  # fmt: skip
