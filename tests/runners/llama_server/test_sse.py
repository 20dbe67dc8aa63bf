"""Bytes to events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import ModelError
from gofer_runners.llama_server._sse import EventReader


def read(*chunks: bytes, limit: int = 1000) -> list[bytes]:
    reader = EventReader(limit)
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events + reader.end()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\n:\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 3\ndata: a\nother\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n", [b"a", b"b"]),
        (b"data: a\n\ndata: b", [b"a", b"b"]),
        (b'error: {"message":"m"}\n\n', [b'{"error": {"message":"m"}}']),
        (b"error: it broke\n\n", [b'{"error":"it broke"}']),
        (b"", []),
        (b"database: a\n\n", []),
    ],
)
def test_events(stream: bytes, events: list[bytes]) -> None:
    assert read(stream) == events
    assert read(*(bytes([byte]) for byte in stream)) == events


LINES = st.lists(
    st.one_of(
        st.binary(max_size=8).map(lambda line: line.translate(None, b"\r\n")),
        st.sampled_from([b"", b"data: a", b"data:", b"data: \xc3\xa4", b": ping", b"error: x"]),
    ),
    max_size=12,
)


@given(
    lines=LINES, end=st.sampled_from([b"\n", b"\r\n", b"\r"]), cuts=st.lists(st.integers(0, 999))
)
def test_no_split_of_the_bytes_makes_a_difference(
    lines: list[bytes], end: bytes, cuts: list[int]
) -> None:
    stream = end.join(lines) + end
    assert read(*split(stream, cuts)) == read(stream)


@given(lines=LINES)
def test_all_line_ends_mean_the_same(lines: list[bytes]) -> None:
    lf, crlf, cr = (read(end.join(lines) + end) for end in (b"\n", b"\r\n", b"\r"))
    assert lf == crlf == cr


@pytest.mark.parametrize("piece", [b"data: " + b"a" * 100, b"a", b"data: a\n"])
def test_an_event_without_end_is_refused(piece: bytes) -> None:
    reader = EventReader(limit=1000)
    assert reader.feed(b"data: before\n\n") == [b"before"]
    with pytest.raises(ModelError, match="larger than 1000 bytes"):
        for _ in range(2000):
            reader.feed(piece)


def test_the_limit_is_for_one_event_not_for_the_stream() -> None:
    reader = EventReader(limit=50)
    for _ in range(100):
        assert reader.feed(b"data: aaaaaaaaaaaaaaaaaaaa\n\ndata: aaa") == [b"a" * 20]
        assert reader.feed(b"\n\n: ping\n\n") == [b"aaa"]
