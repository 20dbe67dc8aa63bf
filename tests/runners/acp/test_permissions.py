"""Questions of an agent, answered by a policy, by the options' kinds."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer_runners.acp._permissions import CANCELLED, Ask, Permission, Policy, answer, decide

pytestmark = pytest.mark.anyio

KINDS = ["allow_once", "allow_always", "reject_once", "reject_always", None, "new_kind", 3, ""]

OPTIONS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "optionId": st.text(max_size=3) | st.none() | st.integers(),
            "kind": st.sampled_from(KINDS),
            "name": st.none() | st.text(max_size=3),
        },
    )
    | st.none()
    | st.text(max_size=3),
    max_size=8,
)


@given(OPTIONS | st.none() | st.just({}) | st.text(max_size=3) | st.integers(), st.booleans())
@settings(max_examples=200)
def test_an_option_is_chosen_by_its_kind_alone(options: Any, allowed: bool) -> None:
    said, allows = answer(options, allowed)
    wanted = ["allow_once", "allow_always"] if allowed else ["reject_once", "reject_always"]
    usable = [
        option
        for option in (options if isinstance(options, list) else [])
        if isinstance(option, dict) and isinstance(option.get("optionId"), str)
    ]
    fitting = [o["optionId"] for kind in wanted for o in usable if o.get("kind") == kind]
    if fitting:
        assert said == {"outcome": {"outcome": "selected", "optionId": fitting[0]}}
        assert allows is allowed
    else:
        assert said == CANCELLED
        assert allows is False


@pytest.mark.parametrize(
    ("kinds", "allowed", "chosen"),
    [
        (["allow_always", "allow_once", "reject_once"], True, 1),
        (["allow_always", "allow_always", "reject_once"], True, 0),
        (["reject_once", "allow_once", "allow_once"], True, 1),
        (["allow_once", "reject_always", "reject_once"], False, 2),
        (["allow_once", "reject_always"], False, 1),
        (["reject_once", "reject_always"], True, None),
        (["allow_once"], False, None),
        ([None, "unheard_of"], True, None),
    ],
)
def test_the_narrower_kind_goes_first(kinds: list[Any], allowed: bool, chosen: int | None) -> None:
    options = [{"optionId": str(at), "kind": kind} for at, kind in enumerate(kinds)]
    said, _ = answer(options, allowed)
    assert said["outcome"].get("optionId") == (None if chosen is None else str(chosen))


def question(kind: Any = "execute") -> Permission:
    return Permission("sub-0", "x", "call-1", "rm -rf", kind, {"toolCallId": "call-1"})


@pytest.mark.parametrize(
    ("policy", "kind", "allowed"),
    [
        ("approve", "execute", True),
        ("approve", None, True),
        ("deny", "read", False),
        ("read-only", "read", True),
        ("read-only", "search", True),
        ("read-only", "think", True),
        ("read-only", "fetch", False),
        ("read-only", "edit", False),
        ("read-only", "execute", False),
        ("read-only", "other", False),
        ("read-only", None, False),
        ("read-only", "READ", False),
    ],
)
async def test_policies(policy: Policy, kind: str | None, allowed: bool) -> None:
    def ask(permission: Permission) -> bool:
        raise AssertionError("nobody is to be asked")

    assert await decide(question(kind), policy, ask, 1, True) is allowed


async def asked_async(permission: Permission) -> bool:
    await anyio.lowlevel.checkpoint()
    return permission.kind == "execute"


async def never(permission: Permission) -> bool:
    await anyio.sleep_forever()
    return True


def failing(permission: Permission) -> bool:
    raise KeyError("screen")


def timing_out(permission: Permission) -> bool:
    raise TimeoutError


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda p: p.title == "rm -rf", True),
        (lambda p: p.child != "sub-0", False),
        (asked_async, True),
        (never, None),
        (failing, None),
        (timing_out, None),
        (None, None),
    ],
)
async def test_who_is_asked_decides_within_the_deadline_or_the_default_does(
    ask: Ask | None, expected: bool | None, default: bool
) -> None:
    with anyio.fail_after(5):
        allowed = await decide(question(), "ask", ask, 0.01, default)
    assert allowed is (default if expected is None else expected)
