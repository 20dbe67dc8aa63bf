"""Many small pieces of text, held as what they are together."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import _pieces
from gofer._pieces import Pieces

TEXTS = st.lists(st.text(st.sampled_from("aé–😀 "), max_size=9), max_size=200)


@given(TEXTS, st.sets(st.integers(0, 200)), st.integers(1, 9), st.integers(1, 4))
def test_they_are_their_text_at_any_time(
    texts: list[str], looks: set[int], together: int, share: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pieces, "_TOGETHER", together)
        patch.setattr(_pieces, "_SHARE", share)
        pieces, seen = Pieces(), []
        for number, text in enumerate(texts):
            if number in looks:
                seen.append((pieces.text, "".join(texts[:number])))
            pieces.add(text)
        assert pieces or not any(texts)
        assert pieces.text == "".join(texts)
        # What somebody took is his: it grew no further.
        assert all(then == expected for then, expected in seen)


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer keeps strings from growing")
def test_they_take_no_more_memory_than_their_text() -> None:
    pieces = Pieces()
    tracemalloc.start()
    try:
        for number in range(500_000):
            pieces.add(f"{number:05d}")
        length = len(pieces.text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.15 * length + 200_000
