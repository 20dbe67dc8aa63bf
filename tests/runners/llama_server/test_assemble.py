"""Frames to blocks: the recorded streams of a real server, and what others send."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import Block, Text, Thinking, ToolCall, Usage
from gofer_runners.llama_server._assemble import STOP_REASONS, Assembler
from gofer_runners.llama_server._sse import EventReader

FIXTURES = Path(__file__).parents[2] / "fixtures" / "llama-server"
STREAMS = sorted(path.name for path in FIXTURES.glob("*.sse"))


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def read(*pieces: bytes) -> tuple[list[Block], Assembler]:
    reader, assembler = EventReader(), Assembler()
    blocks = [b for piece in pieces for event in reader.feed(piece) for b in assembler.feed(event)]
    blocks += [b for event in reader.end() for b in assembler.feed(event, last=True)]
    return blocks + assembler.end(), assembler


def frames(*said: Any, done: bool = True) -> tuple[list[Block], Assembler]:
    events = [b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in said]
    return read(*events, *([b"data: [DONE]\n\n"] if done else []))


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def call(name: str | None, arguments: Any, index: int = 0, **rest: Any) -> dict[str, Any]:
    return {"index": index, **rest, "function": {"name": name, "arguments": arguments}}


F = ToolCall(id="x", name="f", arguments={"a": 1})
SAYS_F = [call("f", '{"a": 1}', id="x")]


# What a real server sent


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=60))
def test_no_split_of_a_recorded_stream_makes_a_difference(name: str, cuts: list[int]) -> None:
    data = (FIXTURES / name).read_bytes()
    whole, split = read(data), read(*chunks(data, cuts))
    assert split[0] == whole[0]
    assert split[1].stop_reason == whole[1].stop_reason
    assert split[1].usage == whole[1].usage
    assert whole[0]


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_may_come_byte_by_byte(name: str) -> None:
    data = (FIXTURES / name).read_bytes()
    assert read(*(bytes([byte]) for byte in data))[0] == read(data)[0]


@pytest.mark.parametrize("name", STREAMS)
@given(length=st.integers(0, 20_000))
def test_a_cut_recorded_stream_gives_the_beginning(name: str, length: int) -> None:
    data = (FIXTURES / name).read_bytes()
    whole, _ = read(data)
    blocks, assembler = read(data[:length])
    assert blocks == whole[: len(blocks)]
    assert assembler.error is None
    assert assembler.finished or length < len(data)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "native.toolcall-full.sse",
            [("spawn_subagent", {"task": "What is the largest moon of Saturn?"})],
        ),
        # Their requests ended inside the arguments, of which the server repeats nothing.
        (
            "smollm2.1-parent-spawn.sse",
            [("spawn_subagent", '\n    "task": "What is the largest moon of Saturn?"}')],
        ),
        ("smollm2.3-parent-collect.sse", [("collect_subagent", '\n    "id": "sub-1"\n}')]),
        ("smollm2.2-child-text.sse", []),
    ],
)
def test_recorded_tool_calls(name: str, calls: list[Any]) -> None:
    blocks, assembler = read((FIXTURES / name).read_bytes())
    made = [block for block in blocks if isinstance(block, ToolCall)]
    assert [(block.name, block.arguments) for block in made] == calls
    assert assembler.stop_reason == ("tool_use" if calls else "max_tokens")
    assert assembler.done


def test_recorded_reasoning() -> None:
    blocks, assembler = read((FIXTURES / "reasoning.sse").read_bytes())
    kinds = [type(block) for block in blocks]
    assert set(kinds) == {Text, Thinking}
    assert kinds == sorted(kinds, key=lambda kind: kind is Text), "thoughts come first"
    assert assembler.usage == Usage(input_tokens=17, output_tokens=40, cached_tokens=3)
    assert assembler.model == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_a_recorded_stream_without_usage() -> None:
    assert read((FIXTURES / "text-nousage.sse").read_bytes())[1].usage is None


# What a frame may hold


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_everything_in_one_frame(key: str) -> None:
    two = [*SAYS_F, call("g", "", 1, id="y")]
    blocks, assembler = frames(
        delta("tool_calls", **{key: "hm"}, content="text", tool_calls=two, role="assistant")
    )
    assert blocks == [
        Thinking(text="hm"), Text(text="text"), F, ToolCall(id="y", name="g", arguments={})
    ]  # fmt: skip
    assert assembler.stop_reason == "tool_use"


def test_reasoning_under_both_names_is_said_once() -> None:
    assert frames(delta(reasoning="hm", reasoning_content="hm"))[0] == [Thinking(text="hm")]


def test_words_after_a_call_come_after_it() -> None:
    assert frames(delta(tool_calls=SAYS_F), delta(content="x"))[0] == [F, Text(text="x")]


def test_words_within_a_call_do_not_break_it() -> None:
    blocks, _ = frames(
        delta(tool_calls=[call("f", '{"a"', id="x")]),
        delta(content="é"),
        delta(tool_calls=[call(None, ": 1}")]),
        delta("tool_calls"),
    )
    assert blocks == [Text(text="é"), F]


def test_frames_after_the_finish_are_not_dropped() -> None:
    blocks, assembler = frames(
        delta("tool_calls", tool_calls=SAYS_F),
        delta(tool_calls=[call("g", "{}", 1, id="y")]),
        delta(content="late"),
        {"choices": [], "usage": {"prompt_tokens": 1}},
    )
    assert blocks == [F, ToolCall(id="y", name="g", arguments={}), Text(text="late")]
    assert assembler.usage == Usage(input_tokens=1)


@pytest.mark.parametrize("text", ['"a": 1}', "a: 1", "{'a': 1}"])
def test_arguments_that_are_no_json_stay_text_in_a_whole_message_too(text: str) -> None:
    made = [ToolCall(id="x", name="f", arguments=text)]
    calls = [call("f", text, id="x")]
    assert frames(delta("tool_calls", tool_calls=calls))[0] == made
    message = {"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
    assert frames({"choices": [message]})[0] == made


def test_a_call_cut_by_the_limit_keeps_its_text() -> None:
    blocks, assembler = frames(delta(tool_calls=[call("f", '{"a": "b', id="x")]), delta("length"))
    assert blocks == [ToolCall(id="x", name="f", arguments='{"a": "b')]
    assert assembler.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    "frame",
    [
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"delta": None, "finish_reason": ""}]},
        {"choices": "x"},
        {"choices": {}},
        {"choices": [{"delta": {"content": None, "tool_calls": None}}], "error": None},
        {"choices": [{"delta": {"content": 3, "tool_calls": 3, "reasoning": {}}}]},
        {"choices": [{"delta": {"content": [None, {}, {"type": "x"}]}}], "usage": "x"},
        {},
        [],
        3,
        "ping",
        None,
    ],
)
def test_frames_that_say_nothing_are_passed_over(frame: Any) -> None:
    blocks, assembler = frames(delta(content="a"), frame, delta("stop", content="b"))
    assert blocks == [Text(text="a"), Text(text="b")]
    assert assembler.error is None
    assert assembler.usage is None


@pytest.mark.parametrize("reason", [*STOP_REASONS, "something"])
def test_finish_reasons(reason: str) -> None:
    assembler = frames(delta(content="a"), delta(reason), delta(None), done=False)[1]
    assert assembler.finished
    assert assembler.stop_reason == STOP_REASONS.get(reason, reason)


def test_done_without_a_finish_reason_is_an_end() -> None:
    assert frames(delta(content="a"))[1].stop_reason == "end_turn"
    blocks, assembler = frames(delta(tool_calls=SAYS_F))
    assert blocks == [F]
    assert assembler.stop_reason == "tool_use"


def test_an_end_without_either_keeps_whole_calls_only() -> None:
    blocks, assembler = frames(delta(tool_calls=[*SAYS_F, call("g", '{"b', 1, id="y")]), done=False)
    assert blocks == [F]
    assert assembler.cut_calls == ["g"]
    assert not assembler.finished


def test_nothing_counts_after_done() -> None:
    blocks, _ = read(b"data: [DONE]\n\n", b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    assert blocks == []


def test_only_the_first_choice_counts() -> None:
    def choice(index: int, content: str) -> dict[str, Any]:
        return {"index": index, "delta": {"content": content}}

    blocks, _ = frames(
        {"choices": [choice(0, "a"), choice(1, "x")]}, {"choices": [choice(1, "y")]},
        {"choices": [choice(0, "b")]},
    )  # fmt: skip
    assert blocks == [Text(text="a"), Text(text="b")]


def test_content_in_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
        "b",
    ]
    assert frames(delta(content=parts))[0] == [Thinking(text="hm"), Text(text="a"), Text(text="b")]


def test_a_refusal_is_text_and_a_reason() -> None:
    blocks, assembler = frames(delta(refusal="no"), delta("stop"))
    assert blocks == [Text(text="no")]
    assert assembler.stop_reason == "refusal"


def test_the_older_function_call() -> None:
    blocks, assembler = frames(
        delta(function_call={"name": "f", "arguments": '{"a"'}),
        delta(function_call={"arguments": ": 1}"}),
        delta("function_call"),
    )
    assert [(b.name, b.arguments) for b in blocks if isinstance(b, ToolCall)] == [("f", {"a": 1})]
    assert assembler.stop_reason == "tool_use"


def test_a_whole_message_in_the_last_frame_is_not_said_twice() -> None:
    message = {"index": 0, "finish_reason": "stop", "message": {"content": "ab"}}
    said = frames(delta(content="a"), delta(content="b"), {"choices": [message]})[0]
    assert said == [Text(text="a"), Text(text="b")]
    assert frames({"choices": [message]})[0] == [Text(text="ab")]


@given(text=st.text(), cuts=st.lists(st.integers(0, 99)))
def test_a_text_cut_between_utf16_units_is_whole_again(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    edges = [0, *sorted(2 * (cut % (len(units) // 2 + 1)) for cut in cuts), len(units)]
    pieces = [
        units[start:end].decode("utf-16-le", "surrogatepass")
        for start, end in itertools.pairwise(edges)
    ]
    blocks, _ = frames(*(delta(content=piece) for piece in pieces))
    assert "".join(block.text for block in blocks if isinstance(block, Text)) == text


def test_half_a_character_is_replaced_where_it_stands() -> None:
    said = frames(delta(content="a\ud83d"), delta(content="b"))[0]
    assert said == [Text(text="a"), Text(text="\ufffdb")]
    assert frames(delta(content="a\ud83d"))[0] == [Text(text="a"), Text(text="\ufffd")]


# Usage


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        (
            {
                "prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(input_tokens=5, output_tokens=7, cached_tokens=3, reasoning_tokens=2),
        ),
        ({"prompt_tokens": "5", "completion_tokens": 7.0}, Usage(input_tokens=5, output_tokens=7)),
        (
            {"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None},
            Usage(input_tokens=5),
        ),
        ({"prompt_tokens": "many", "completion_tokens": -1}, None),
        ({"prompt_tokens": True, "completion_tokens": float("nan")}, None),
        ({"prompt_tokens_details": {"cached_tokens": []}}, None),
        ({}, None),
        (None, None),
    ],
)  # fmt: skip
def test_usage(said: Any, usage: Usage | None) -> None:
    assert frames(delta("stop", content="a"), {"choices": [], "usage": said})[1].usage == usage


def test_the_last_usage_counts() -> None:
    first, last = {"completion_tokens": 1}, {"completion_tokens": 2}
    said = [{**delta(content="a"), "usage": usage} for usage in (first, last, None)]
    assert frames(*said)[1].usage == Usage(output_tokens=2)


# Errors


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "m", "code": 500}},
        {"error": "m"},
        {"object": "error", "message": "m", "code": 500},
        {"detail": "m"},
        {**delta("error", content="b"), "error": {"message": "m"}},
    ],
)
def test_an_error_comes_after_what_was_said(error: Any) -> None:
    blocks, assembler = frames(delta(content="a"), delta(tool_calls=SAYS_F), error, done=False)
    assert blocks[0] == Text(text="a")
    assert F in blocks
    assert (Text(text="b") in blocks) == ("choices" in error)
    assert "m" in str(assembler.error)


def test_an_event_that_is_no_json_is_an_error() -> None:
    _, assembler = read(b"data: {nonsense}\n\n", b"data: [DONE]\n\n")
    assert "no JSON: {nonsense}" in assembler.error


def test_events_without_a_blank_line_between() -> None:
    blocks, assembler = read(
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n'
        b'data: {"choices":[{"delta":{"content":"b"}}]}\n'
        b"data: [DONE]\n"
    )
    assert blocks == [Text(text="a"), Text(text="b")]
    assert assembler.done


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    blocks, assembler = read(b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n')
    assert blocks == [Text(text="a\ufffd")]
    assert assembler.error is None


def test_arguments_without_bound_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gofer_runners.llama_server._tool_calls.HELD_LIMIT", 10)
    _, assembler = frames(delta(tool_calls=[call("f", "x" * 11)]), done=False)
    assert "exceed 10 characters" in assembler.error
