"""Random scripts of updates, questions, faults and cancels, against a model of what must come."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gofer import StreamChunk, SubagentResult, Update

from .support import Bench, bench, lives
from .support import settings as agent_settings

Step = dict[str, Any]

POLICIES = ("approve", "read-only", "deny")
IMPATIENT = " and impatient"
WARM = 4  # the runner's default

CALLS = st.sampled_from(["c1", "c2", "c3"])
IDS = st.sampled_from([None, None, None, "m1", "m2"])
TEXTS = st.sampled_from(["", " ", "\n", "a", "b ", "word\n", "\U0001f600"])
STATUS = st.sampled_from([None, "pending", "in_progress", "completed", "failed", "odd"])
OPTIONS = {
    "all": ["allow_always", "allow_once", "reject_once", "reject_always"],
    "no rejection": ["allow_once"],
    "no approval": ["reject_once"],
    "no kinds": [None, None],
    "none": [],
}
KINDS = st.sampled_from([None, "read", "edit", "execute", "other"])


def with_id(step: Step, message_id: str | None) -> Step:
    return step if message_id is None else {**step, "id": message_id}


def with_status(step: Step, status: str | None) -> Step:
    return step if status is None else {**step, "status": status}


SAY = st.builds(lambda text, mid: with_id({"say": text}, mid), TEXTS, IDS)
CALL = st.builds(lambda call, status: with_status({"call": call}, status), CALLS, STATUS)
PROGRESS = st.builds(lambda call, status: with_status({"progress": call}, status), CALLS, STATUS)
ASK = st.builds(
    lambda call, kind, options: {
        "ask": call,
        **({} if kind is None else {"kind": kind}),
        "options": [
            {"optionId": f"{kind}-{at}", "name": "x", "kind": kind}
            for at, kind in enumerate(OPTIONS[options])
        ],
    },
    CALLS,
    KINDS,
    st.sampled_from(sorted(OPTIONS)),
)
NEITHER_HERE_NOR_THERE = st.sampled_from(
    [
        {"think": "hm"},
        {"update": {"sessionUpdate": "plan", "entries": []}},
        {"update": {"sessionUpdate": "usage_update", "used": 1}},
        {"update": {"sessionUpdate": "unheard_of"}},
        {"update": {}},
        {"foreign": {"sessionUpdate": "agent_message_chunk",
                     "content": {"type": "text", "text": "NOT MINE"}}},
        {"foreign": {"sessionUpdate": "tool_call", "toolCallId": "c1"}},
        {"line": "noise"},
        {"line": "42"},
        {"line": '{"id": "77", "result": {}}'},
        {"line": '{"method": "session/update", "params": {"sessionId": 3, "update": 4}}'},
        {"bytes": "c328fffe0a"},
        {"stderr": "noise on the side\n"},
        {"request": "no/such/method"},
        {"request": "elicitation/create"},
        {"start": ["/bin/sleep", "6001"], "session": True},
        {"start": ["/bin/sleep", "6002"]},
    ]
)  # fmt: skip
STEPS = st.lists(st.one_of(SAY, SAY, CALL, PROGRESS, ASK, NEITHER_HERE_NOR_THERE), max_size=12)
CANCEL: list[Step] = [{"update": {"sessionUpdate": "please_cancel"}}, {"wait": "cancel"}]
ENDS = st.sampled_from(
    [
        [],
        [],
        [],
        [{"end": "end_turn"}],
        [{"end": "max_tokens"}],
        [{"end": "refusal"}],
        [{"end": "unheard_of"}],
        [{"result": {}}],
        [{"error": [-32603, "the model is ill"]}],
        [{"exit": 0}],
        [{"exit": 5}],
        [{"signal": 9}],
        [{"close": "stdout"}, {"exit": 6}],
    ]
)
CANCELLED_ENDS = st.one_of(ENDS, st.just([{"wait": "forever"}]), st.just([{"end": "cancelled"}]))


@dataclass
class Expected:
    """An independent model of a turn's result."""

    pieces: list[str] = field(default_factory=lambda: [""])
    message_id: str | None = None
    calls: set[str] = field(default_factory=set)
    call_since: bool = False
    denied: list[str] = field(default_factory=list)
    cancelling: bool = False
    stop_reason: str = "end_turn"
    answered: bool = True
    error: str | None = None
    kept: bool = True

    def play(self, steps: list[Step], policy: str) -> Expected:
        for step in steps:
            match step:
                case {"say": ""}:
                    pass
                case {"say": text}:
                    if step.get("id") != self.message_id:
                        self.cut()
                        self.message_id = step.get("id")
                    self.pieces[-1] += text
                case {"call": call} | {"progress": call}:
                    self.saw(call)
                case {"ask": call}:
                    self.saw(call)
                    if not self.cancelling and not self.allowed(step, policy):
                        self.denied.append(call)
                case {"update": {"sessionUpdate": "please_cancel"}}:
                    self.cancelling = True
                case _:
                    self.ends(step)
        if self.answered and self.cancelling and not any("end" in step for step in steps):
            # Without an answer of its own in the script the fake says that it was cancelled.
            self.stop_reason = "cancelled"
        return self

    def ends(self, step: Step) -> None:
        match step:
            case {"end": reason}:
                self.stop_reason = reason
            case {"result": _}:
                self.fail("gave no stop reason: its answer to session/prompt is {}")
            case {"error": [_, message]}:
                self.fail(message)
            case {"exit": code}:
                self.fail(f"it exited with code {code}")
            case {"signal": _}:
                self.fail("it was ended by SIGKILL")
            case {"wait": "forever"}:
                self.fail("did not answer session/cancel")

    def fail(self, error: str) -> None:
        self.answered = False
        self.error = error
        self.stop_reason = "cancelled" if self.cancelling else "error"

    def saw(self, call: str) -> None:
        if call not in self.calls:
            self.calls.add(call)
            self.cut(call=True)

    def cut(self, *, call: bool = False) -> None:
        if self.pieces[-1].strip():
            self.call_since = False
        self.call_since = self.call_since or call
        self.pieces.append("")

    def allowed(self, step: Step, policy: str) -> bool:
        kinds = [option["kind"] for option in step["options"]]
        if policy == "approve" or (policy == "read-only" and step.get("kind") == "read"):
            return "allow_once" in kinds or "allow_always" in kinds
        return False

    @property
    def summary(self) -> str:
        return next((piece for piece in reversed(self.pieces) if piece.strip()), "")

    @property
    def fallback(self) -> bool:
        return bool(self.summary) and not self.pieces[-1].strip() and self.call_since

    @property
    def well(self) -> bool:
        return self.answered and not self.cancelling and self.stop_reason != "cancelled"


def react(chunk: StreamChunk) -> None:
    if isinstance(chunk.block, Update) and chunk.block.kind == "please_cancel":
        for child in chunk.turn.host.children:
            child.cancel()


class Rig:
    """One Host for many examples, on an event loop in a thread of its own."""

    def __init__(self, portal: BlockingPortal, open_bench: Bench) -> None:
        self._portal = portal
        self._bench = open_bench
        self._bench.watcher.react = react
        self.fds = 0

    def run(self, steps: list[Step], policy: str) -> SubagentResult:
        return self._portal.call(self._run, steps, policy)

    async def _run(self, steps: list[Step], policy: str) -> SubagentResult:
        self._bench.watcher.blocks.clear()
        return await self._bench.run(policy, json.dumps(steps))

    def alive(self) -> set[int]:
        return self._portal.call(self._bench.alive)

    def agents(self) -> set[int]:
        return self._portal.call(self._bench.pids)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    script = {"options": {"prompts_are_steps": True}}
    agents = {
        policy + kind: agent_settings(
            script, permissions=policy, cancel_grace=grace, end_grace=0.05
        )
        for policy in POLICIES
        for kind, grace in (("", 20.0), (IMPATIENT, 0.5))
    }
    with start_blocking_portal(request.param) as portal:
        with portal.wrap_async_context_manager(bench(agents=agents)) as open_bench:
            rig = Rig(portal, open_bench)
            yield rig
            kept = rig.alive()
    assert not [pid for pid in kept if lives(pid)]


@given(
    before=STEPS,
    cancel=st.booleans(),
    after=STEPS,
    end=ENDS,
    cancelled_end=CANCELLED_ENDS,
    policy=st.sampled_from(POLICIES),
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_result_is_what_the_script_makes_it(
    rig: Rig,
    before: list[Step],
    cancel: bool,
    after: list[Step],
    end: list[Step],
    cancelled_end: list[Step],
    policy: str,
) -> None:
    steps = [*before, *CANCEL, *after, *cancelled_end] if cancel else [*before, *end]
    expected = Expected().play(steps, policy)
    agent = policy + (IMPATIENT if {"wait": "forever"} in steps else "")
    result = rig.run(steps, agent)
    event(f"{'cancelled, ' if cancel else ''}{result.stop_reason}")

    assert result.summary == expected.summary
    assert result.fallback is expected.fallback
    assert result.stop_reason == expected.stop_reason
    assert result.exit_ok is (result.stop_reason == "end_turn" and bool(expected.summary.strip()))
    assert [denied["tool_call_id"] for denied in result.permissions_denied] == expected.denied
    assert result.session is not None
    assert not result.session.resumed
    if expected.error is not None:
        assert expected.error in str(result.error)
    elif result.stop_reason == "end_turn" and not result.exit_ok:
        assert result.error == "the turn ended with no text: there is no report"
    else:
        assert result.error is None

    # A well-ended agent is kept, with what it started; of any other nothing lives.
    if expected.well:
        assert 1 <= len(rig.agents()) <= WARM + 1  # one more may be on its way out
    else:
        again = rig.run([{"say": "fresh"}], agent)
        assert again.summary == "fresh"
        assert again.session is not None
        assert again.session.id.endswith("-1")
    fds = len(os.listdir("/proc/self/fd"))
    rig.fds = rig.fds or fds
    assert fds <= rig.fds + 6 * WARM
