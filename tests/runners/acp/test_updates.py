"""What an agent reports, as blocks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import Block, FinalMessage, Image, Text, Thinking, ToolCall, ToolResult, Update
from gofer_runners.acp import _updates
from gofer_runners.acp._updates import Updates


def blocks(*updates: dict[str, Any]) -> list[Block]:
    mapping = Updates()
    return [block for update in updates for block in mapping.blocks(update)]


def chunk(text: Any, kind: str = "agent_message_chunk", **more: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more}


def call(call_id: Any, **more: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call", "toolCallId": call_id, **more}


def progress(call_id: Any, **more: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": call_id, **more}


def test_text_and_thoughts() -> None:
    assert blocks(
        chunk("a"),
        chunk("b", messageId="m"),
        chunk("c", "agent_thought_chunk", messageId=None),
        chunk("", messageId=3),
    ) == [
        Text(text="a"),
        Text(text="b", message_id="m"),
        Thinking(text="c"),
        Text(text=""),
    ]


def test_pictures_and_other_content() -> None:
    def content(value: Any) -> dict[str, Any]:
        return {"sessionUpdate": "agent_message_chunk", "content": value}

    picture = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    assert blocks(content(picture)) == [Image(data="aGk=", media_type="image/png")]
    for odd in (
        {"type": "image", "data": 3},
        {"type": "audio", "data": "x", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///x"},
        {"type": "text", "text": 3},
        {"type": "text"},
        {},
        [{"type": "text", "text": "x"}],
        "text",
        None,
    ):
        assert blocks(content(odd)) == [Update(kind="content", data=odd)]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("plan", "plan"),
        ("usage_update", "usage"),
        ("current_mode_update", "mode"),
        ("session_info_update", "session_info"),
        ("available_commands_update", "commands"),
        ("config_option_update", "config_options"),
        ("something_new", "something_new"),
        (None, "unknown"),
        (3, "3"),
    ],
)
def test_everything_else_is_an_update_of_its_kind(kind: Any, told: str) -> None:
    assert blocks({"sessionUpdate": kind, "x": [1]}) == [Update(kind=told, data={"x": [1]})]
    assert blocks({"x": 1}) == [Update(kind="unknown", data={"x": 1})]


def test_an_echo_of_the_prompt_is_no_answer() -> None:
    (block,) = blocks(chunk("the task", "user_message_chunk"))
    assert isinstance(block, Update)
    assert block.kind == "user_message"


def test_a_call_from_its_announcement_to_its_end() -> None:
    text = {"type": "content", "content": {"type": "text", "text": "ok"}}
    found = blocks(
        call("c", title="Run ls", kind="execute", status="pending", rawInput={"cmd": "ls"}),
        progress("c", status="in_progress"),
        progress("c", status="completed", content=[text]),
        progress("c", title="late"),
    )
    assert found == [
        ToolCall(
            id="c",
            name="execute",
            arguments={"cmd": "ls"},
            title="Run ls",
            kind="execute",
            status="pending",
        ),
        Update(kind="tool_call_update", data={"toolCallId": "c", "status": "in_progress"}),
        ToolResult(tool_call_id="c", output="ok"),
        Update(kind="tool_call_update", data={"toolCallId": "c", "title": "late"}),
    ]


def test_a_call_that_is_told_of_at_its_end_alone() -> None:
    assert blocks(progress("c", status="failed", rawOutput="no")) == [
        ToolCall(id="c", name="tool", arguments={}, status="failed"),
        ToolResult(tool_call_id="c", output="no", is_error=True),
    ]


def test_a_call_that_is_announced_after_its_first_update() -> None:
    found = blocks(progress("c", kind="edit"), call("c", title="x"), call("c", status="completed"))
    assert [type(block) for block in found] == [ToolCall, Update, ToolResult]


def test_a_second_end_changes_nothing() -> None:
    found = blocks(call("c"), progress("c", status="completed"), progress("c", status="failed"))
    assert [type(block) for block in found] == [ToolCall, ToolResult, Update]
    assert found[1] == ToolResult(tool_call_id="c", output="")


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_what_did_not_work_is_an_error(status: str) -> None:
    assert blocks(call("c", status=status))[1] == ToolResult(
        tool_call_id="c", output="", is_error=True
    )


@pytest.mark.parametrize("call_id", [None, 3, [], {}])
def test_a_call_without_a_name_is_told_all_the_same(call_id: object) -> None:
    (block,) = blocks(call(call_id, title="x"))
    assert isinstance(block, Update)
    assert block.kind == "tool_call_update"


def test_a_permission_request_shows_its_call_once() -> None:
    mapping = Updates()
    params = {"toolCall": {"toolCallId": "c", "title": "t", "kind": "edit"}, "options": [1]}
    first, second = list(mapping.permission(params)), list(mapping.permission(params))
    asked = Update(
        kind="permission",
        data={"tool_call_id": "c", "title": "t", "kind": "edit", "options": [1]},
    )
    assert first == [ToolCall(id="c", name="edit", arguments={}, title="t", kind="edit"), asked]
    assert second == [asked]
    assert list(mapping.blocks(call("c"))) == [
        Update(kind="tool_call_update", data={"toolCallId": "c"})
    ]


@pytest.mark.parametrize("tool_call", [None, [], "x", {}, {"toolCallId": None}])
def test_a_permission_request_without_a_call_is_told_too(tool_call: object) -> None:
    (block,) = Updates().permission({"toolCall": tool_call})
    assert isinstance(block, Update)
    assert block.kind == "permission"


@pytest.mark.parametrize(
    ("update", "output"),
    [
        ({"content": [{"type": "diff", "path": "/a", "newText": "x"}]}, "changed /a"),
        (
            {
                "content": [
                    {"type": "content", "content": {"type": "text", "text": "a"}},
                    {"type": "content", "content": {"type": "image", "data": "x"}},
                    {"type": "terminal", "terminalId": "t"},
                    "odd",
                ]
            },
            "a\n[image]",
        ),
        ({"rawOutput": {"output": "raw"}}, "raw"),
        ({"rawOutput": {"stdout": "raw", "code": 1}}, "raw"),
        ({"rawOutput": {"odd": [1, "é"]}}, '{"odd": [1, "é"]}'),
        ({"rawOutput": [1]}, "[1]"),
        ({"rawOutput": None}, ""),
        ({"content": None, "rawOutput": "x"}, "x"),
        ({"content": "odd"}, ""),
        ({}, ""),
    ],
)
def test_what_a_call_gave(update: dict[str, Any], output: str) -> None:
    result = blocks(call("c", status="completed", **update))[1]
    assert isinstance(result, ToolResult)
    assert result.output == output


def test_what_is_open_at_the_end_is_ended() -> None:
    mapping = Updates()
    for update in (call("a"), call("b"), call("c"), progress("b", status="completed")):
        list(mapping.blocks(update))
    assert mapping.open
    assert list(mapping.end(failed=True)) == [
        ToolResult(tool_call_id="a", output="", is_error=True),
        ToolResult(tool_call_id="c", output="", is_error=True),
    ]
    assert not mapping.open
    assert list(mapping.end(failed=True)) == []


def test_only_so_many_calls_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_updates, "_CALLS", 3)
    mapping = Updates()
    for number in range(10):
        list(mapping.blocks(call(str(number))))
    assert len(mapping._calls) == 3
    assert [block.tool_call_id for block in mapping.end(failed=False)] == ["7", "8", "9"]
    assert not mapping.open


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def nested(levels: int, inner: Any) -> Any:
    for level in range(levels):
        inner = [inner] if level % 2 else {"in": inner}
    return inner


# What a reader of JSON takes, and a block cannot hold.
JSON |= st.builds(nested, st.sampled_from([90, 99, 100, 101, 150, 900]), JSON)
JSON |= st.sampled_from([10**4298, -(10**4299), math.inf, math.nan])
UPDATE = st.fixed_dictionaries(
    {
        "sessionUpdate": st.sampled_from(
            ["agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"]
        )
        | JSON
    },
    optional={
        "content": JSON | st.lists(st.dictionaries(st.sampled_from(["type", "content"]), JSON)),
        "toolCallId": st.sampled_from(["a", "b"]) | JSON,
        "status": st.sampled_from(["pending", "completed", "failed"]) | JSON,
        "kind": JSON,
        "title": JSON,
        "rawInput": JSON,
        "rawOutput": JSON,
        "messageId": JSON,
    },
)


@given(st.lists(UPDATE, max_size=8))
@settings(max_examples=50, deadline=None)
def test_whatever_comes_each_call_begins_once_and_ends_once(updates: list[dict[str, Any]]) -> None:
    mapping = Updates()
    found: list[Block] = []
    for update in updates:
        new = list(mapping.blocks(update))
        assert new, "an update was lost"
        found += new
    found += mapping.end(failed=True)
    begun = [block.id for block in found if isinstance(block, ToolCall)]
    ended = [block.tool_call_id for block in found if isinstance(block, ToolResult)]
    assert len(set(begun)) == len(begun)
    assert sorted(begun) == sorted(ended)
    seen: set[str] = set()
    for block in found:
        if isinstance(block, ToolCall):
            seen.add(block.id)
        elif isinstance(block, ToolResult):
            assert block.tool_call_id in seen
        type(block).model_validate_json(block.model_dump_json())


@given(UPDATE | JSON, JSON)
@settings(max_examples=50, deadline=None)
def test_whatever_is_asked_it_is_told_which_call_it_is_about(call: Any, options: Any) -> None:
    call = {**call, "toolCallId": "a"} if isinstance(call, dict) else {"toolCallId": "a"}
    said = list(Updates().permission({"toolCall": call, "options": options}))
    assert [type(block) for block in said[:1] + said[-1:]] == [ToolCall, Update]
    assert said[-1].data["tool_call_id"] == "a"  # type: ignore[union-attr]
    for block in said:
        type(block).model_validate_json(block.model_dump_json())


def test_what_no_block_can_hold_is_its_text() -> None:
    deep = nested(150, 1)
    (called,) = blocks(call("a", rawInput={"path": "x", "deep": deep}))
    assert isinstance(called, ToolCall)
    assert called.arguments == {"path": "x", "deep": json.dumps(deep)}
    (update,) = blocks({"sessionUpdate": "plan", "entries": deep, "title": "t"})
    assert update == Update(kind="plan", data={"entries": json.dumps(deep), "title": "t"})


def test_a_message_is_not_cut_by_what_stands_between_its_chunks() -> None:
    final = FinalMessage()
    for block in blocks(
        chunk("one "),
        {"sessionUpdate": "usage_update", "used": 1},
        {"sessionUpdate": "session_info_update", "title": "t"},
        chunk("the task", "user_message_chunk"),
        chunk("hm", "agent_thought_chunk"),
        {"sessionUpdate": "plan", "entries": []},
        chunk(""),
        chunk("message"),
    ):
        final.add(block)
    assert final.text == "one message"
