"""The types: each goes through JSON and comes back equal, whatever a model sent."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

import gofer
from gofer import (
    ConfigError,
    ContextOverflowError,
    GoferError,
    Image,
    Message,
    ModelError,
    PluginError,
    PluginErrors,
    PluginInternalError,
    PluginNotSupportedError,
    PluginValidationError,
    Request,
    Response,
    RunnerError,
    SessionInfo,
    SubagentCallInput,
    SubagentCallOutput,
    SubagentResult,
    SubagentSpec,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Tools,
    Turn,
    Update,
    Usage,
    WorktreeConfig,
    WorktreeReport,
)
from gofer._clean import LEVELS, clean_json, clean_text
from gofer.blocks import Block

# Every code point: NUL, lone surrogates, and what is no character at all.
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=6),
    st.sampled_from(
        ["\x00", "\ud800", "\udfff\ud800", "\ud83d\ude00", "\uffff", "\u2028", "\\u0000"]
    ),
)
KEY = st.one_of(TEXT, st.integers(), st.floats(), st.booleans(), st.none())
NUMBER = st.one_of(
    st.integers(), st.floats(), st.sampled_from([10**4297, -(10**4297), 2**64, -0.0])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEY, inner, max_size=3),
    ),
    max_leaves=8,
)
MAYBE_TEXT = st.one_of(st.none(), TEXT)
COUNT = st.one_of(st.none(), st.integers())
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.one_of(st.none(), st.floats(0, exclude_min=True, allow_infinity=False))

BLOCK = st.one_of(
    st.builds(Text, text=TEXT, message_id=MAYBE_TEXT),
    st.builds(Thinking, text=TEXT, message_id=MAYBE_TEXT, signature=MAYBE_TEXT),
    st.builds(Image, data=TEXT, media_type=TEXT),
    st.builds(
        ToolCall,
        id=TEXT,
        name=TEXT,
        arguments=JSON,
        title=MAYBE_TEXT,
        kind=MAYBE_TEXT,
        status=MAYBE_TEXT,
    ),
    st.builds(ToolResult, tool_call_id=TEXT, output=TEXT, is_error=st.booleans()),
    st.builds(Update, kind=TEXT, data=JSON),
)
USAGE = st.builds(
    Usage, input_tokens=COUNT, output_tokens=COUNT, cached_tokens=COUNT, reasoning_tokens=COUNT
)
MESSAGE = st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), st.lists(BLOCK, max_size=3)
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
TOOL = st.builds(Tool, name=TEXT, description=TEXT, input_schema=OBJECT)
REQUEST = st.builds(
    Request,
    messages=st.lists(MESSAGE, max_size=2),
    model=MAYBE_TEXT,
    tools=st.lists(TOOL, max_size=2),
    tool_choice=JSON,
    temperature=st.one_of(st.none(), FINITE),
    max_tokens=COUNT,
    extra=OBJECT,
)
MODELS = {
    "block": BLOCK,
    "usage": USAGE,
    "message": MESSAGE,
    "tool": TOOL,
    "request": REQUEST,
    "response": st.builds(
        Response,
        blocks=st.lists(BLOCK, max_size=3),
        messages=st.lists(MESSAGE, max_size=2),
        stop_reason=TEXT,
        usage=st.one_of(st.none(), USAGE),
        model=MAYBE_TEXT,
        duration=FINITE,
    ),
    "spec": st.builds(
        SubagentSpec,
        task=TEXT,
        name=TEXT,
        agent=MAYBE_TEXT,
        runner=MAYBE_TEXT,
        tool_scope=st.lists(TEXT, max_size=2),
        worktree=st.one_of(st.none(), st.builds(WorktreeConfig, path=TEXT, branch=MAYBE_TEXT)),
        session_id=MAYBE_TEXT,
        resume=MAYBE_TEXT,
        cwd=st.sampled_from([None, Path("/tmp"), Path("a/b c")]),
        timeout=SECONDS,
        idle_timeout=SECONDS,
        options=OBJECT,
    ),
    "result": st.builds(
        SubagentResult,
        subagent_id=TEXT,
        summary=TEXT,
        worktree_path=MAYBE_TEXT,
        exit_ok=st.booleans(),
        stop_reason=TEXT,
        usage=st.one_of(st.none(), USAGE),
        error=MAYBE_TEXT,
        permissions_denied=st.lists(JSON, max_size=2),
        fallback=st.booleans(),
        session=st.one_of(
            st.none(), st.builds(SessionInfo, id=TEXT, resumed=st.booleans(), reason=MAYBE_TEXT)
        ),
        worktree=st.one_of(
            st.none(),
            st.builds(
                WorktreeReport,
                path=TEXT,
                base_commit=TEXT,
                branch=MAYBE_TEXT,
                changed_files=st.lists(TEXT, max_size=2),
                missing_files=st.lists(TEXT, max_size=2),
            ),
        ),
    ),
    "call input": st.builds(SubagentCallInput, agent=MAYBE_TEXT, input=MAYBE_TEXT),
    "call output": st.builds(SubagentCallOutput, output=TEXT, stop_reason=TEXT),
}


def through_json(model: BaseModel) -> None:
    written = model.model_dump_json()
    back = type(model).model_validate_json(written)
    assert back == model
    # Equal is not enough: 1, 1.0 and True are equal too.
    assert back.model_dump_json() == written
    # The standard library's reader and writer agree.
    plain = json.loads(json.dumps(model.model_dump(mode="json"), allow_nan=False))
    assert type(model).model_validate(plain) == model
    assert type(model).model_validate(model.model_dump()) == model


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_model_goes_through_json(kind: str, data: st.DataObject) -> None:
    through_json(data.draw(MODELS[kind]))


@settings(max_examples=60, deadline=None)
@given(st.lists(BLOCK, max_size=4))
def test_blocks_are_told_apart_by_their_type(blocks: list[Block]) -> None:
    adapter: TypeAdapter[list[Block]] = TypeAdapter(list[Block])
    assert adapter.validate_json(adapter.dump_json(blocks)) == blocks


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_cleaning_again_changes_nothing(value: Any) -> None:
    once = clean_json(value)
    again = clean_json(once)
    assert json.dumps(again, allow_nan=False) == json.dumps(once, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_text_that_can_be_written_stays_as_it_is(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00!", "😀!"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("é\x00", "é\x00"),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text: str, cleaned: str) -> None:
    assert Text(text=text).text == cleaned
    call = ToolCall(id="1", name="n", arguments={text: [text]})
    assert call.arguments == {cleaned: [cleaned]}


def test_numbers_that_json_does_not_have_become_null() -> None:
    update = Update(kind="usage", data={"cost": math.nan, "list": [math.inf, -math.inf, 1.5]})
    assert update.data == {"cost": None, "list": [None, None, 1.5]}


def nested(levels: int) -> Any:
    value: Any = "core"
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def test_deep_values_are_taken_to_a_depth_that_can_be_read_back() -> None:
    call = ToolCall(id="1", name="n", arguments=nested(LEVELS))
    response = Response(messages=[Message("assistant", [call])])
    through_json(response)


@pytest.mark.parametrize("levels", [LEVELS + 1, 300, 100_000])
def test_deeper_ones_are_refused_with_a_sentence(levels: int) -> None:
    with pytest.raises(ValidationError, match=f"nested too deeply: {LEVELS} levels at most"):
        ToolCall(id="1", name="n", arguments=nested(levels))


def test_a_number_too_long_to_be_read_back_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValidationError, match="4300 digits"):
        ToolCall(id="1", name="n", arguments=10**4300)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", [object()], 1j])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="a JSON value is needed, not"):
        Update(kind="x", data=value)


def test_arguments_are_an_empty_object_unless_given_and_any_value_if_given() -> None:
    assert ToolCall(id="1", name="n").arguments == {}
    assert ToolCall(id="1", name="n", arguments=None).arguments is None
    assert ToolCall(id="1", name="n", arguments='{"cut": ').arguments == '{"cut": '


def test_blocks_are_values() -> None:
    block = Text(text="a")
    with pytest.raises(ValidationError, match="frozen"):
        block.text = "b"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["timeout", "idle_timeout"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_limits_in_time_are_real_ones(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        SubagentSpec(task="t", **{name: value})


def test_a_blank_task_is_accepted_where_a_spec_is_made() -> None:
    assert SubagentSpec(task=" ").task == " "


def test_the_fields_are_exactly_the_promised_ones() -> None:
    assert set(SubagentCallInput.model_fields) == {"agent", "input"}
    assert set(SubagentCallOutput.model_fields) == {"output", "stop_reason"}
    assert SubagentCallInput() == SubagentCallInput(agent=None, input=None)
    spec = SubagentSpec(task="t")
    assert (spec.name, spec.tool_scope, spec.options) == ("", [], {})
    others = set(SubagentSpec.model_fields) - {"task", "name", "tool_scope", "options"}
    assert others == {
        "agent", "runner", "worktree", "session_id", "resume", "cwd", "timeout", "idle_timeout"
    }  # fmt: skip
    assert all(getattr(spec, name) is None for name in others)


def test_defaults_are_nobody_elses() -> None:
    first, second = SubagentSpec(task="t"), SubagentSpec(task="t")
    first.tool_scope.append("x")
    first.options["y"] = 1
    assert (second.tool_scope, second.options) == ([], {})
    assert ToolCall(id="1", name="n").arguments is not ToolCall(id="1", name="n").arguments


def test_a_message_may_be_given_as_a_string() -> None:
    message = Message("user", "hello")
    assert message.content == [Text(text="hello")]
    assert message == Message(role="user", content="hello")
    assert message.text == "hello"
    mixed = Message("assistant", [Text(text="a"), Thinking(text="-"), Text(text="b")])
    assert mixed.text == "ab"
    with pytest.raises(ValidationError):
        Message("nobody", "hello")


def test_a_responses_text_is_what_was_said() -> None:
    assert (
        Response(blocks=[Text(text="a"), ToolCall(id="1", name="n"), Text(text="b")]).text == "ab"
    )


@given(USAGE, USAGE, USAGE)
@settings(max_examples=50, deadline=None)
def test_usage_adds_up_and_none_means_nobody_said(a: Usage, b: Usage, c: Usage) -> None:
    assert Usage() + a == a == a + Usage()
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    total = sum(usage.input_tokens or 0 for usage in (a, b, c))
    assert ((a + b + c).input_tokens or 0) == total


# Requests of a turn


def turn() -> Turn:
    return Turn(id="turn-0", host=None, session="s")  # type: ignore[arg-type]


@given(TEXT)
def test_the_request_of_a_task_is_what_a_checked_one_would_be(task: str) -> None:
    made, checked = Request.of_task(task), Request(messages=[Message("user", task)])
    made._turn = checked._turn = turn()
    assert made == checked
    assert made.model_fields_set == checked.model_fields_set
    assert made.model_dump_json(exclude_unset=True) == checked.model_dump_json(exclude_unset=True)
    assert made.messages is not Request.of_task(task).messages


def test_a_turns_request_is_a_copy() -> None:
    original = Request(
        messages=[Message("user", "one")],
        model="m",
        tools=[Tool(name="t", input_schema={"properties": {"a": {"type": "string"}}})],
        tool_choice={"type": "tool", "name": "t"},
        extra={"deep": {"list": [1]}},
    )
    before = original.model_dump_json()
    mine = turn()
    copied = original.for_turn(mine)
    assert copied.model_dump_json() == before
    assert copied.turn is mine
    copied.messages[0].content.append(Text(text="more"))
    copied.messages[0].role = "system"
    copied.messages.append(Message("user", "two"))
    copied.tools[0].input_schema["properties"]["a"]["type"] = "number"
    copied.tools[0].description = "changed"
    copied.tools.clear()
    copied.tool_choice["name"] = "other"
    copied.extra["deep"]["list"].append(2)
    copied.extra["new"] = True
    copied.model, copied.temperature, copied.max_tokens = "other", 1.0, 1
    assert original.model_dump_json() == before


@pytest.mark.parametrize("model", [Request(), Response()])
def test_what_no_host_took_up_belongs_to_no_turn(model: Request | Response) -> None:
    with pytest.raises(GoferError, match=f"this {type(model).__name__} belongs to no turn"):
        _ = model.turn


# Tools, as each API wants them

TOOLS = Tools(
    [
        Tool(
            name="spawn",
            description="Start one.",
            input_schema={"type": "object", "properties": {"task": {"type": "string"}}},
        ),
        Tool(name="bare"),
    ]
)
SCHEMA = {"type": "object", "properties": {"task": {"type": "string"}}}
EMPTY = {"type": "object", "properties": {}}


def test_tools_for_openai() -> None:
    assert TOOLS.to_openai() == [
        {
            "type": "function",
            "function": {"name": "spawn", "description": "Start one.", "parameters": SCHEMA},
        },
        {"type": "function", "function": {"name": "bare", "description": "", "parameters": EMPTY}},
    ]


def test_tools_for_anthropic() -> None:
    assert TOOLS.to_anthropic() == [
        {"name": "spawn", "description": "Start one.", "input_schema": SCHEMA},
        {"name": "bare", "description": "", "input_schema": EMPTY},
    ]


def test_tools_for_mcp() -> None:
    assert TOOLS.to_mcp() == [
        {"name": "spawn", "description": "Start one.", "inputSchema": SCHEMA},
        {"name": "bare", "description": "", "inputSchema": EMPTY},
    ]


@pytest.mark.parametrize("form", ["to_openai", "to_anthropic", "to_mcp"])
@settings(max_examples=25, deadline=None)
@given(tools=st.lists(TOOL, max_size=3))
def test_tools_can_be_written_in_every_form(form: str, tools: list[Tool]) -> None:
    listed = getattr(Tools(tools), form)()
    assert len(listed) == len(tools)
    json.dumps(listed, allow_nan=False).encode()


# Errors

ERRORS = [
    GoferError("g"),
    PluginError("p"),
    PluginValidationError("spawn_subagent.task", "is blank"),
    PluginNotSupportedError("n"),
    PluginInternalError("i"),
    ModelError("m", 503, "busy"),
    ModelError("m"),
    ContextOverflowError("too long", 400, "n_ctx"),
    RunnerError("r"),
    ConfigError("c"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_pickle(error: GoferError) -> None:
    if isinstance(error, PluginError):
        error.plugin, error.hook = "mine", "on_request"
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), vars(back)) == (str(error), vars(error))


def test_several_errors_are_a_group_and_a_gofer_error() -> None:
    inner: list[Exception] = [PluginError("one"), RunnerError("two")]
    group = PluginErrors("several", inner)
    assert isinstance(group, ExceptionGroup)
    assert isinstance(group, GoferError)
    back = pickle.loads(pickle.dumps(group))
    assert type(back) is PluginErrors
    assert [str(error) for error in back.exceptions] == ["one", "two"]
    caught = []
    try:
        raise group
    except* PluginError as part:
        caught.append(part)
    except* RunnerError as part:
        caught.append(part)
    assert all(isinstance(part, PluginErrors) for part in caught)
    assert [part.exceptions for part in caught] == [(inner[0],), (inner[1],)]


def test_the_tree_of_errors() -> None:
    assert issubclass(PluginError, GoferError)
    for kind in (PluginValidationError, PluginNotSupportedError, PluginInternalError):
        assert issubclass(kind, PluginError)
    for kind in (PluginErrors, ModelError, RunnerError, ConfigError):
        assert issubclass(kind, GoferError)
        assert not issubclass(kind, PluginError)
    public = [getattr(gofer, name) for name in gofer.__all__]
    errors = [kind for kind in public if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(errors) >= 9
    assert {kind.__module__ for kind in errors} == {"gofer.errors"}


def test_what_an_error_says() -> None:
    error = PluginValidationError("spawn_subagent.task", "is blank")
    assert (error.schema, error.message) == ("spawn_subagent.task", "is blank")
    assert str(error) == "spawn_subagent.task: is blank"
    failure = ModelError("HTTP 503", 503, "busy")
    assert (str(failure), failure.status, failure.body) == ("HTTP 503", 503, "busy")
