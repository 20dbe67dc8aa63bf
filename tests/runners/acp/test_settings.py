"""What an agent's process finds in its environment."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer_runners.acp import Environment

NAMES = [f"GOFER_TEST_{letter}" for letter in "ABC"]
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
changes = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | values), max_size=8)


@given(changes)
def test_it_is_gofers_own_as_it_is_now(made: list[tuple[str, str | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made:
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
            seen = Environment().variables()
            assert seen == dict(os.environ)
            seen["PATH"] = "somebody else's"  # it is a copy


def test_it_is_gofers_own_also_after_it_was_empty() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            patch.delenv(name)
        assert Environment().variables() == {}
    assert Environment().variables() == dict(os.environ)
    assert os.environ


@given(
    st.dictionaries(st.sampled_from(NAMES), values),
    st.booleans() | st.lists(st.sampled_from(NAMES)),
    st.dictionaries(st.sampled_from(NAMES), values),
    st.lists(st.sampled_from(NAMES)),
)
def test_it_is_inherited_unset_and_set_in_this_order(
    own: dict[str, str], inherit: bool | list[str], given_: dict[str, str], unset: list[str]
) -> None:
    names = NAMES if inherit is True else inherit or []
    expected = {n: own[n] for n in names if n in own and n not in unset}
    made = Environment(inherit=inherit, set=given_, unset=unset)
    assert made.variables(own) == {**expected, **given_}
