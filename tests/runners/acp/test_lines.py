"""Lines put together from pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import RunnerError
from gofer_runners.acp._lines import MAX_MESSAGE, Lines


@st.composite
def cut(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    data = draw(st.binary(max_size=200).map(lambda b: b.replace(b"\x00", b"\n")))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=10)))
    ends = [0, *cuts, len(data)]
    return data, [data[a:b] for a, b in pairwise(ends)]


@given(cut())
def test_lines_are_the_same_however_they_are_cut(data: tuple[bytes, list[bytes]]) -> None:
    whole, pieces = data
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece)]
    assert found == whole.split(b"\n")[:-1]


@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_line_of_the_limit_passes_and_one_byte_more_does_not(size: int) -> None:
    lines = Lines(limit=10)
    data = b"x" * 10 + b"\n"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [line for piece in pieces for line in lines.feed(piece)] == [b"x" * 10]
    with pytest.raises(RunnerError, match="more than 10 bytes"):
        for at in range(0, 11, size):
            lines.feed(b"x" * min(size, 11 - at))


def test_a_long_line_among_short_ones_is_over_the_limit_too() -> None:
    with pytest.raises(RunnerError, match="more than 10 bytes"):
        Lines(limit=10).feed(b"a\n" + b"x" * 11 + b"\nb\n")


def test_short_lines_together_may_be_longer_than_the_limit() -> None:
    assert len(Lines(limit=10).feed(b"12345\n" * 100)) == 100


def test_the_limit_is_64_mib() -> None:
    assert MAX_MESSAGE == 64 * 1024 * 1024


def test_a_long_line_in_many_pieces_takes_time_in_proportion() -> None:
    # Joining at each piece would copy 8 GiB here.
    lines = Lines()
    piece = b"x" * 4096
    for _ in range(2048):
        assert lines.feed(piece) == []
    (line,) = lines.feed(b"\n")
    assert len(line) == 2048 * 4096
