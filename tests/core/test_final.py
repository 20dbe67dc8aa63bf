"""The final message, against its definition: one rule over the whole list of a turn's blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import FinalMessage, Image, Text, Thinking, ToolCall, ToolResult, Update
from gofer.blocks import Block


def said(text: str, message_id: str | None = None) -> Text:
    return Text(text=text, message_id=message_id)


def call(call_id: str = "a", **more: str) -> ToolCall:
    return ToolCall(id=call_id, name="tool", **more)


def permission(call_id: str | None = None) -> Update:
    data = {"options": []} if call_id is None else {"tool_call_id": call_id}
    return Update(kind="permission", data=data)


def shown_call(block: Block) -> tuple[bool, str | None]:
    """Return whether the block shows a tool call, and of which id, if it says."""
    match block:
        case ToolCall(id=call_id) | ToolResult(tool_call_id=call_id):
            return True, call_id
        case Update(kind="permission", data={"tool_call_id": str(call_id)}):
            return True, call_id
        case Update(kind="permission"):
            return True, None
    return False, None


def definition(blocks: list[Block]) -> tuple[str, bool]:
    """Mark every boundary, split the text there, and take the last piece that says something."""
    known: set[str] = set()
    said_last: Text | None = None
    marks: list[str | None] = []  # a piece of text, or None for a tool call's first sight
    for block in blocks:
        shows, call_id = shown_call(block)
        if shows and (call_id is None or call_id not in known):
            marks.append(None)
            said_last = None
        if call_id is not None:
            known.add(call_id)
        if isinstance(block, Text) and block.text:
            if said_last is not None and said_last.message_id == block.message_id:
                marks[-1] = str(marks[-1]) + block.text
            else:
                marks.append(block.text)
            said_last = block
    spoken = [place for place, mark in enumerate(marks) if mark is not None and mark.strip()]
    if not spoken:
        return "", False
    return str(marks[spoken[-1]]), None in marks[spoken[-1] :]


def fed(blocks: list[Block]) -> tuple[str, bool]:
    final = FinalMessage()
    for block in blocks:
        final.add(block)
    return final.text, final.fallback


IDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.one_of(
    st.sampled_from(["", " ", "\n", "\u2003", "\x1f", "one", " two ", "\nthree\n", "\u200b"]),
    st.text(max_size=4),
)
BLOCKS = st.one_of(
    st.builds(Text, text=TEXTS, message_id=st.sampled_from([None, "m", "n"])),
    st.builds(Thinking, text=TEXTS, message_id=st.sampled_from([None, "m", "n"])),
    st.builds(Image, data=st.just("AAAA"), media_type=st.just("image/png")),
    st.builds(call, IDS),
    st.builds(ToolResult, tool_call_id=IDS, output=TEXTS, is_error=st.booleans()),
    st.builds(permission, st.one_of(st.none(), IDS)),
    st.builds(
        Update,
        kind=st.sampled_from(
            ["plan", "usage", "mode", "session_info", "user_message", "permission", "new one"]
        ),
        data=st.sampled_from([None, "text", {}, [], {"tool_call_id": 7}, {"text": "echo"}]),
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(BLOCKS, max_size=25))
def test_any_blocks_give_what_the_definition_says(blocks: list[Block]) -> None:
    assert fed(blocks) == definition(blocks)


@settings(max_examples=150, deadline=None)
@given(st.lists(BLOCKS, max_size=10), st.data())
def test_how_a_text_is_split_does_not_matter(blocks: list[Block], data: st.DataObject) -> None:
    pieces: list[Block] = []
    for block in blocks:
        if not isinstance(block, Text):
            pieces.append(block)
            continue
        cuts = sorted(data.draw(st.lists(st.integers(0, len(block.text)), max_size=3)))
        places = [0, *cuts, len(block.text)]
        pieces += [
            block.model_copy(update={"text": block.text[start:end]})
            for start, end in pairwise(places)
        ]
    assert fed(pieces) == fed(blocks)


@settings(max_examples=150, deadline=None)
@given(st.lists(BLOCKS, max_size=15))
def test_it_can_be_read_at_any_moment(blocks: list[Block]) -> None:
    final = FinalMessage()
    for number, block in enumerate(blocks, 1):
        final.add(block)
        assert (final.text, final.fallback) == definition(blocks[:number])


@pytest.mark.parametrize(
    ("blocks", "text", "fallback"),
    [
        # A report after every call: the last one counts.
        ([said("1"), call("a"), said("2"), call("b"), said("3")], "3", False),
        # A turn that ends right after a call falls back on what was said before it.
        ([said("report"), call("a")], "report", True),
        ([said("report"), call("a"), call("b")], "report", True),
        # A call that is told of again is an update: the words around it are one message.
        ([call("a"), said("p1"), call("a"), said("p2")], "p1p2", False),
        ([call("a")], "", False),
        ([], "", False),
        ([said("x"), call("a"), said("y"), call("a")], "y", False),
        ([said("x"), call("a", status="pending"), call("a", status="completed")], "x", True),
        # Announcements back to back keep the fallback, also with nothing but space between.
        ([said("x"), call("a"), said(" \n"), call("b"), said("\t")], "x", True),
        # A call may show itself first in its result, or where permission is asked.
        (
            [said("x"), ToolResult(tool_call_id="late", output="done"), said("y")],
            "y",
            False,
        ),
        ([said("x"), permission("p"), said("y"), call("p"), said("z")], "yz", False),
        ([said("x"), permission("p")], "x", True),
        ([said("x"), permission(), said("y")], "y", False),
        # Agents that name their messages: two of them, and no call between.
        ([said("first", "m1"), said("sec", "m2"), said("ond", "m2")], "second", False),
        ([said("first", "m1"), said("", "m2")], "first", False),
        ([said("first", "m1"), said(" ", "m2")], "first", False),
        ([said("a", "m1"), call("c"), said("b", "m1")], "b", False),
        # What is no message cuts nothing.
        (
            [
                said("one "),
                Thinking(text="hm"),
                Update(kind="plan", data=[]),
                Update(kind="usage", data={"used": 1}),
                Update(kind="session_info", data={"title": "t"}),
                Update(kind="user_message", data={"text": "the task again"}),
                Update(kind="something new"),
                Image(data="AAAA", media_type="image/png"),
                said(""),
                said("message"),
            ],
            "one message",
            False,
        ),
        ([Thinking(text="only thoughts")], "", False),
    ],
)
def test_worked_cases(blocks: list[Block], text: str, fallback: bool) -> None:
    assert fed(blocks) == definition(blocks) == (text, fallback)


def test_a_block_of_a_class_of_ones_own_counts_as_what_it_is() -> None:
    class Redacted(Text):
        pass

    assert fed([said("the key is "), Redacted(text="[gone]")]) == ("the key is [gone]", False)


def test_a_cut_from_outside_ends_the_message() -> None:
    final = FinalMessage()
    final.add(said("first response"))
    final.cut()
    assert final.text == "first response"
    final.add(said("second"))
    assert final.text == "second"
    final.cut()
    final.cut()
    assert (final.text, final.fallback) == ("second", False)


def test_memory_holds_the_last_messages_and_a_bounded_number_of_ids() -> None:
    final = FinalMessage()
    for number in range(66_000):
        final.add(call(str(number)))
    assert len(final._seen) == 65_536
    for number in range(100):
        final.add(said("x" * 10))
        final.add(call(f"more {number}"))
    assert final.text == "x" * 10
    assert len(final._seen) == 65_536


def test_a_model_may_reuse_the_ids_of_its_calls_in_each_response() -> None:
    final = FinalMessage()
    for text in ("First I look.", "Then I look again."):
        final.next_response()
        final.add(Text(text=text))
        final.add(ToolCall(id="call_0", name="look"))
        final.add(ToolResult(tool_call_id="call_0", output="seen"))
    assert (final.text, final.fallback) == ("Then I look again.", True)
    final.next_response()
    final.add(Text(text="Done."))
    assert (final.text, final.fallback) == ("Done.", False)
