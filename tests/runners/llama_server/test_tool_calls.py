"""Pieces of tool calls to whole ones, in the forms in which servers send them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import ToolCall
from gofer_runners.llama_server import _tool_calls
from gofer_runners.llama_server._tool_calls import ToolCalls, parse_arguments


def piece(name: str | None = None, arguments: Any = None, **rest: Any) -> dict[str, Any]:
    return {**rest, "function": {"name": name, "arguments": arguments}}


def assemble(*pieces: Any) -> list[ToolCall]:
    calls = ToolCalls()
    return [call for one in pieces for call in calls.add(one)] + calls.rest()


def brief(calls: list[ToolCall]) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in calls]


TWO = [("f", {"a": 1}), ("g", {"b": 2})]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [
                piece("f", '{"a"', id="x", index=0), piece(None, ": 1}", index=0),
                piece("g", '{"b"', id="y", index=1), piece(None, ": 2}", index=1),
            ],
            id="usual",
        ),
        pytest.param(
            [
                piece("f", "", id="x", index=1), piece("", '{"a": 1}', id="", index=1),
                piece("g", "", id="y", index=2), piece("", '{"b": 2}', id="", index=2),
            ],
            id="counted from one, later ids and names empty",
        ),
        pytest.param(
            [piece("f", '{"a": 1}', index=0), piece("g", '{"b": 2}', index=0)],
            id="all of index 0, without ids",
        ),
        pytest.param(
            [
                piece("f", '{"a"', index=0), piece(None, ": 1}", index=0),
                piece("g", '{"b"', index=0), piece(None, ": 2}", index=0),
            ],
            id="all of index 0, in pieces",
        ),
        pytest.param(
            [piece("f", '{"a"'), piece(None, ": 1}"), piece("g", '{"b"'), piece(None, ": 2}")],
            id="neither id nor index",
        ),
        pytest.param(
            [
                piece("f", '{"a"', id="x", index=0), piece(None, ": 1}", id="x", index=7),
                piece("g", '{"b"', id="y", index=0), piece(None, ": 2}", id="y", index=0),
            ],
            id="the id counts more than a wrong index",
        ),
        pytest.param(
            [
                piece("f", '{"a"', id="x", index=0), piece(None, ": 1}", index=3),
                piece("g", '{"b": 2}'),
            ],
            id="an index that nothing began",
        ),
        pytest.param(
            [
                piece("f", '{"a"', id="x", index=0), piece("g", '{"b"', id="y", index=1),
                piece(None, ": 1}", index=0), piece(None, ": 2}", index=1),
            ],
            id="interleaved",
        ),
        pytest.param(
            [
                piece("f", '{"a"', id="x1", index=0), piece(None, ": 1}", id="x2", index=0),
                piece("g", '{"b"', id="y1", index=1), piece(None, ": 2}", id="y2", index=1),
            ],
            id="another id with each piece",
        ),
        pytest.param(
            [piece("f", '{"a": 1}', id="x"), piece("g", '{"b": 2}', id="x")],
            id="one id for all",
        ),
        pytest.param(
            [piece("f", {"a": 1}, index=0), piece("g", {"b": 2}, index=1)], id="objects"
        ),
        pytest.param(
            [
                piece("f", '{"a": 1}', id="x", index=0), piece("g", '{"b": 2}', id="y", index=1),
                piece("f", '{"a": 1}', id="x", index=0),
            ],
            id="said again",
        ),
        pytest.param(
            [
                piece("f", '{"a"', index=0), piece("f", ": 1", index=0), piece("f", "}", index=0),
                piece("g", '{"b": 2}', index=1),
            ],
            id="the name with each piece",
        ),
        pytest.param(
            [{"name": "f", "arguments": '{"a": 1}'}, {"name": "g", "arguments": '{"b": 2}'}],
            id="without a function around",
        ),
        pytest.param(
            [None, 3, "x", {}, piece("f", '{"a": 1}', index=[]), piece("g", '{"b": 2}', id=5)],
            id="with rubbish between",
        ),
    ],
)  # fmt: skip
def test_two_calls(pieces: list[Any]) -> None:
    calls = assemble(*pieces)
    assert brief(calls) == TWO
    assert len({call.id for call in calls}) == 2
    assert all(call.id for call in calls)


def test_the_first_id_and_name_are_kept() -> None:
    pieces = [piece("f", "", id="x", index=0), piece("", "{}", id="", index=0)]
    assert assemble(*pieces, piece(None, "", id=None, index=0)) == [
        ToolCall(id="x", name="f", arguments={})
    ]


def test_the_same_call_twice_is_two_calls() -> None:
    one = piece("f", '{"a": 1}', index=0)
    assert brief(assemble(one, one)) == [("f", {"a": 1})] * 2


def test_one_id_and_one_name_for_all() -> None:
    calls = assemble(
        piece("f", '{"a": 1}', id="x", index=0), piece("f", '{"b": 2}', id="x", index=1)
    )
    assert brief(calls) == [("f", {"a": 1}), ("f", {"b": 2})]
    assert calls[0].id == "x" != calls[1].id


def test_a_call_is_given_as_soon_as_the_next_one_starts() -> None:
    calls = ToolCalls()
    assert calls.add(piece("f", '{"a": 1}', id="x", index=0)) == []
    assert brief(calls.add(piece("g", "", id="y", index=1))) == TWO[:1]
    assert calls.add(piece(None, '{"b": 2}', index=1)) == []
    assert brief(calls.settled()) == TWO[1:]
    assert not calls.waiting


def test_calls_keep_their_order() -> None:
    calls = ToolCalls()
    assert calls.add(piece("f", '{"a"', index=0)) == []
    assert calls.add(piece("g", '{"b": 2}', index=1)) == []
    assert calls.settled() == []
    assert calls.add(piece(None, ": 1}", index=0)) == []
    assert brief(calls.settled()) == TWO


def test_a_cut_stream_leaves_whole_calls_and_names_the_others() -> None:
    calls = ToolCalls()
    calls.add(piece("f", '{"a"', index=0))
    calls.add(piece("g", '{"b": 2}', index=1))
    calls.add(piece("h", "", index=2))
    whole, cut = calls.salvaged()
    assert brief(whole) == TWO[1:]
    assert cut == ["f", "h"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" \n", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", [1]),
        ("null", None),
        ('"x"', "x"),
        ('{"a": ', '{"a": '),
        ("do it", "do it"),
        ("{'a': 1}", "{'a': 1}"),
        ('"a": 1}', '"a": 1}'),
        ("}", "}"),
        ("{}}", "{}}"),
        ("1" * 5000, "1" * 5000),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_arguments(text: str, value: Any) -> None:
    assert parse_arguments(text) == value
    assert assemble(piece("f", text))[0].arguments == value


def test_arguments_too_deep_for_a_block_stay_text() -> None:
    deep = "[" * 900 + "]" * 900
    assert assemble(piece("f", deep))[0].arguments == deep


def test_numbers_that_json_cannot_hold_become_null() -> None:
    assert assemble(piece("f", '{"a": NaN, "b": -Infinity}'))[0].arguments == {"a": None, "b": None}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    arguments=st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 999)),
    ascii_only=st.booleans(),
)
def test_no_cut_of_the_arguments_makes_a_difference(
    arguments: list[Any], cuts: list[int], ascii_only: bool
) -> None:
    calls, given_away = ToolCalls(), []
    for index, value in enumerate(arguments):
        text = json.dumps(value, ensure_ascii=ascii_only)
        edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
        given_away += calls.add(piece("f", "", id=f"id-{index}", index=index))
        assert len(given_away) == index, "whole arguments are seen as such"
        for start, end in itertools.pairwise(edges):
            assert calls.add(piece(None, text[start:end], index=index)) == []
    given_away += calls.rest()
    assert [call.id for call in given_away] == [f"id-{n}" for n in range(len(arguments))]
    expected = [ToolCall(id="", name="", arguments=value).arguments for value in arguments]
    assert [call.arguments for call in given_away] == expected


@given(
    value=st.dictionaries(st.text(), JSON, max_size=3),
    before=st.sampled_from(["", " \n", "do: "]),
    cuts=st.lists(st.integers(0, 999)),
)
def test_arguments_without_their_first_brace_stay_the_text_that_came(
    value: Any, before: str, cuts: list[int]
) -> None:
    text = before + json.dumps(value)[1:]
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    for one in (pieces, [text]):
        calls = ToolCalls()
        calls.add(piece("f", "", id="x", index=0))
        for part in one:
            calls.add(piece(None, part, index=0))
            assert calls.settled() == [], "nothing tells that they are whole"
        assert calls.rest() == [ToolCall(id="x", name="f", arguments=text)]


def test_arguments_that_are_no_json_are_not_whole_where_the_stream_was_cut() -> None:
    calls = ToolCalls()
    calls.add(piece("f", '"a": {"b": 1}}', index=0))
    calls.add(piece("g", '{"b": 2}', index=1))
    whole, cut = calls.salvaged()
    assert brief(whole) == TWO[1:]
    assert cut == ["f"]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tool_calls, "HELD_LIMIT", 100)
    calls = ToolCalls()
    for index in range(100):  # calls that were given away count no more
        calls.add(piece("f", '{"a": "0123456789"}', index=index))
    with pytest.raises(OverflowError, match="exceed 100 characters"):
        for _ in range(100):
            calls.add(piece(None, "0123456789", index=99))


def test_the_number_of_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tool_calls, "CALL_LIMIT", 3)
    calls = ToolCalls()
    with pytest.raises(OverflowError, match="more than 3 tool calls"):
        for index in range(4):
            calls.add(piece("f", "{}", index=index))
