"""A request, as it is written for the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import (
    Block,
    Image,
    Message,
    PluginValidationError,
    Request,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Update,
)
from gofer_runners.llama_server._wire import encode, to_body, to_messages


def written(role: str, *blocks: Block) -> list[dict[str, Any]]:
    return to_messages([Message(role, list(blocks))])


def test_the_least_request() -> None:
    assert to_body(Request(messages=[Message("user", "hi")]), None) == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_everything() -> None:
    tool = Tool(name="f", description="d", input_schema={"type": "object"})
    request = Request(
        tools=[tool],
        tool_choice="required",
        temperature=0.0,
        max_tokens=5,
        extra={"seed": 1, "max_tokens": 6, "stream_options": None},
    )
    assert to_body(request, "m") == {
        "model": "m",
        "messages": [],
        "stream": True,
        "stream_options": None,
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
            }
        ],
        "tool_choice": "required",
        "temperature": 0.0,
        "max_tokens": 6,
        "seed": 1,
    }


def test_texts_are_joined_and_images_make_parts() -> None:
    assert written("system", Text(text="a"), Text(text="b")) == [
        {"role": "system", "content": "ab"}
    ]
    assert written("user", Text(text="see"), Image(data="QQ==", media_type="image/png")) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
            ],
        }
    ]


def test_an_assistant_with_thoughts_and_calls() -> None:
    said = [Thinking(text="h"), Thinking(text="m"), ToolCall(id="x", name="f", arguments={"a": 1})]
    (message,) = written("assistant", *said)
    assert message == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        ],
    }
    assert written("assistant", Text(text="t"), *said)[0]["content"] == "t"
    assert written("assistant", Update(kind="plan")) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("arguments", [{}, {"a": [1]}, [], "{broken", "", None, 5])
def test_arguments_are_always_json(arguments: Any) -> None:
    call = ToolCall(id="x", name="f", arguments=arguments)
    text = written("assistant", call)[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(text) == (arguments if arguments not in ("", None) else {})


def test_each_result_is_a_tool_message() -> None:
    a, b = ToolResult(tool_call_id="x", output="a"), ToolResult(tool_call_id="y", output="")
    results = [
        {"role": "tool", "tool_call_id": "x", "content": "a"},
        {"role": "tool", "tool_call_id": "y", "content": ""},
    ]
    said = Text(text="t")
    assert written("tool", a, b) == results
    assert written("user", said, a, b) == [*results, {"role": "user", "content": "t"}]
    assert written("tool", a, said, b) == [*results, {"role": "user", "content": "t"}]
    assert written("assistant", a, said, b) == [{"role": "assistant", "content": "t"}, *results]


@given(text=st.text(), key=st.text())
def test_any_text_can_be_written(text: str, key: str) -> None:
    request = Request(messages=[Message("user", text)], extra={key: text})
    body = json.loads(encode(request, "m"))
    assert request.extra.items() <= body.items()
    if key != "messages":
        assert body["messages"] == [{"role": "user", "content": request.messages[0].text}]


def test_a_lone_surrogate_set_by_a_plugin_is_replaced() -> None:
    request = Request(extra={"a": "b"})
    request.extra["a"] = "\ud800"
    assert json.loads(encode(request, None))["a"] == "?"


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"x"])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    request = Request()
    request.extra["a"] = value
    with pytest.raises(PluginValidationError, match="cannot be written as JSON"):
        encode(request, None)
