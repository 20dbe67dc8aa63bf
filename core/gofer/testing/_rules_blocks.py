"""Rules on the blocks of a run: what they are, what they follow, and what hooks make of them."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel

from ..blocks import BLOCK_TYPES, Text, ToolCall
from ..errors import GoferError
from ..hooks import hookimpl
from ..messages import Message, Request
from ..subagents import SubagentResult
from ..turn import StreamChunk
from ._kit import Kit, cut
from ._rule import Broken, NotChecked, Rule, Tier
from ._rules_results import outcomes
from ._watch import Emitted, Record

__all__ = ["RULES", "check_calls"]


def blocks_are_well_formed(kit: Kit) -> None:
    def look(record: Record) -> None:
        for emitted in record.emitted:
            _check_block(emitted)

    outcomes(kit, look)


def _check_block(emitted: Emitted) -> None:
    block = emitted.block
    if not isinstance(block, BLOCK_TYPES):
        raise Broken(f"it emitted a {type(block).__name__}, which is no block: {block!r:.100}")
    if emitted.json is None:
        raise Broken(f"it emitted a block that cannot be written as JSON: {block!r:.100}")
    try:
        again: Any = type(block).model_validate_json(emitted.json)
    except ValueError as error:
        raise Broken(f"it emitted a block that is none: {block!r:.100}: {error}") from error
    if again != block:
        raise Broken(
            f"it changed a block after it had emitted it, or made one without validation: "
            f"{cut(emitted.json)} became {block!r:.100}"
        )
    call = getattr(block, "id" if isinstance(block, ToolCall) else "tool_call_id", "-")
    if not call.strip():
        raise Broken(f"it emitted a {type(block).__name__} with a blank id: {block!r:.100}")


def calls_have_their_results(kit: Kit) -> None:
    outcomes(kit, check_calls)


def check_calls(record: Record) -> None:
    """Check that results follow their calls, and that none is missing at a good end.

    :raises Broken: that is not so.
    """
    called: set[str] = set()
    answered: set[str] = set()
    for block in record.calls:
        if isinstance(block, ToolCall):
            called.add(block.id)
            continue
        call = block.tool_call_id
        if call not in called:
            raise Broken(f"a result came of call {call!r}, and no such call before it")
        if call in answered:
            raise Broken(f"call {call!r} got two results")
        answered.add(call)
    returned = record.returned
    if isinstance(returned, SubagentResult) and returned.stop_reason == "end_turn":
        missing = called - answered
        if missing:
            raise Broken(f"call {min(missing)!r} has no result, and the run ended with end_turn")


def nothing_comes_after_the_end(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            records = [
                await scene.say("apricot"),
                await scene.run(kit.subject.spec(kit.subject.task_that_is_long())),
                await scene.say("quince"),
            ]
            # There is nothing to be awaited: what comes late says when it comes.
            await anyio.sleep(0.1)
        for record in records:
            if record.late:
                raise Broken(f"its run was over, and then {record.late[0]}")

    kit.once(check)


class _Redacts:
    """Replaces every text."""

    name = "gofer-conformance-redacts"

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        if isinstance(chunk.block, Text) and chunk.block.text.strip():
            chunk.block = chunk.block.model_copy(update={"text": "[redacted]"})


def keeps_to_what_hooks_left(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene(_Redacts()) as scene:
            record = await scene.say("apricot")
        said, returned = record.originals.text.strip(), record.returned
        if not said:
            raise NotChecked("it said nothing that hooks could see")
        if isinstance(returned, SubagentResult) and said in (returned.summary or ""):
            raise Broken(
                f"a plugin replaced its text {cut(said)!r}, and its summary has it all the same: "
                "leave summary out of run.result(), or build it from what run.emit returns"
            )

    kit.once(check)


class _Rewrites:
    """Replaces the task in every request."""

    name = "gofer-conformance-rewrites"

    def __init__(self, before: str, after: str) -> None:
        self._before, self._after = before, after

    @hookimpl
    def on_request(self, request: Request) -> None:
        request.messages = [
            Message(message.role, message.text.replace(self._before, self._after))
            if self._before in message.text
            else message
            for message in request.messages
        ]


def works_on_the_prompt_that_hooks_left(kit: Kit) -> None:
    before, after = (kit.subject.task_that_says(text) for text in ("apricot", "quince"))

    async def check() -> None:
        async with kit.scene(_Rewrites(before, after)) as scene:
            record = await scene.run(kit.subject.spec(before))
        if record.says("apricot"):
            raise Broken(
                "a plugin replaced the task in on_request, and it worked on the old one: "
                "use run.prompt, not spec.task"
            )
        if not record.says("quince"):
            raise NotChecked("it did not say what it was asked to say: define task_that_says")

    kit.once(check)


class _RefusesTexts:
    """Raises at every text."""

    name = "gofer-conformance-refuses-texts"
    seen = False

    @hookimpl
    async def on_stream_chunk(self, chunk: StreamChunk) -> None:
        await anyio.lowlevel.checkpoint()
        if isinstance(chunk.block, Text) and chunk.block.text.strip() and not self.seen:
            self.seen = True
            raise GoferError("refused by the conformance kit")


def a_refused_block_ends_the_run(kit: Kit) -> None:
    async def check() -> None:
        plugin = _RefusesTexts()
        async with kit.scene(plugin) as scene:
            record = await scene.run(kit.subject.spec(kit.subject.task_that_is_long()))
        if not plugin.seen:
            raise NotChecked("it said nothing that a plugin could refuse")
        assert record.result is not None
        if record.result.exit_ok:
            raise Broken(
                "a plugin refused a block, and the run ended well: let what run.emit raises "
                "end the run"
            )
        if "refused by the conformance kit" not in (record.result.error or ""):
            raise Broken(
                "a plugin refused a block, and the error does not say so: "
                f"{cut(str(record.result.error))}"
            )

    kit.once(check)


RULES = (
    Rule("blocks_are_well_formed", Tier.must,
         "What it emits are blocks that survive JSON, calls and results with ids, and are not "
         "changed afterwards.",
         blocks_are_well_formed),
    Rule("calls_have_their_results", Tier.must,
         "A result comes after its call, once; a run that ends with end_turn leaves no call open.",
         calls_have_their_results),
    Rule("nothing_comes_after_the_end", Tier.must,
         "Once a run has ended, nothing is emitted in it any more.",
         nothing_comes_after_the_end),
    Rule("keeps_to_what_hooks_left", Tier.must,
         "What a plugin replaced in on_stream_chunk does not come back in the result.",
         keeps_to_what_hooks_left),
    Rule("works_on_the_prompt_that_hooks_left", Tier.must,
         "It works on run.prompt, the task as the plugins' on_request left it.",
         works_on_the_prompt_that_hooks_left),
    Rule("a_refused_block_ends_the_run", Tier.must,
         "A plugin that raises at a block ends the run, and the error says why.",
         a_refused_block_ends_the_run),
)  # fmt: skip
