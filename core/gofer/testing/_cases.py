"""The cases that rules try: tasks, specs, and moments at which to cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
from hypothesis import strategies as st

from ..subagents import SubagentSpec
from ._kit import Scene
from ._watch import Record

__all__ = ["SPECS", "TASKS", "Huge", "Moment", "cancel_at", "moments", "spec_fields", "tasks"]


class Huge(str):
    """A text too long to be shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{self[:1]!r} * {len(self)}"


# Longer than an argument of a program may be, a line of a terminal, or the buffer of a pipe.
TASKS = (
    "\0",
    "\ud800",
    "a\r\nb",
    "--help",
    "/exit",
    "{cwd} %s {0}",
    "'\"`$(exit 1)`\\",
    "\x1b[2J\x07",
    "\u202e\u2028\U0010ffff",
    Huge("a" * 200_000),
    Huge("\u00e9" * 200_000),
)
"""Tasks that have broken something somewhere; each is always tried."""


def tasks() -> st.SearchStrategy[str]:
    """Return any text that is not blank, of any characters at all."""
    # Without arguments, unlike st.text() alone: surrogates too.
    anything = st.text(st.characters(), min_size=1, max_size=60)
    pieces = st.lists(st.sampled_from([*TASKS[:9], "word", " ", "\n"]), min_size=1, max_size=5)
    return st.one_of(anything, pieces.map("".join)).filter(lambda text: text.strip() != "")


SPECS: tuple[dict[str, Any], ...] = (
    {"agent": "no-such-agent"},
    {"resume": "no-such-session"},
    {"options": {"no-such-option": [None, {"": -1}]}},
    {"tool_scope": ["no-such-tool"]},
    {"name": "\0", "session_id": ""},
)
"""Fields of a spec, each of them always tried."""

_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=3,
)


def spec_fields() -> st.SearchStrategy[dict[str, Any]]:
    """Return fields of a spec that a runner may not understand."""
    words = st.text(st.characters(), max_size=20)
    fields: dict[str, st.SearchStrategy[Any]] = {
        "name": words,
        "session_id": words,
        "resume": words,
        "tool_scope": st.lists(words, max_size=3),
        "options": st.dictionaries(words, _JSON, max_size=2),
        "agent": words,
    }
    # One alone comes first: the smallest case for which a rule does not hold is found sooner.
    return st.one_of(
        *(st.fixed_dictionaries({name: values}) for name, values in fields.items()),
        st.fixed_dictionaries({}, optional=fields).filter(bool),
    )


@dataclass(frozen=True)
class Moment:
    """When to cancel: after so many blocks, then so many steps of the event loop."""

    blocks: int = 0
    ticks: int = 0

    def __repr__(self) -> str:
        if not self.blocks and not self.ticks:
            return "before it starts"
        after = [f"block {self.blocks}"] if self.blocks else []
        after += [f"{self.ticks} more steps of the event loop"] if self.ticks else []
        return "after " + " and ".join(after)


def moments() -> st.SearchStrategy[Moment]:
    """Return any moment of a run, from before it starts to long after its end."""
    few, many = st.integers(0, 30), st.integers(0, 3000)
    return st.one_of(
        st.builds(Moment, blocks=st.integers(0, 6), ticks=st.just(0)),
        st.builds(Moment, ticks=few),
        st.builds(Moment, blocks=st.integers(1, 3), ticks=few),
        st.builds(Moment, ticks=many),
    )


async def cancel_at(scene: Scene, spec: SubagentSpec, moment: Moment) -> tuple[Record, bool, float]:
    """Start a child and cancel it then.

    Returns its record, whether its runner was at work when it was cancelled, and how many
    seconds it took to end.
    """
    record = await scene.spawn(spec)
    assert record.child is not None
    if moment.blocks:
        with anyio.move_on_after(scene.kit.subject.deadline):
            await record.reached(moment.blocks)
    for _ in range(moment.ticks):
        if record.ended:
            break
        await anyio.lowlevel.checkpoint()
    at_work = record.taken and not record.ended
    scene.allow()
    started = anyio.current_time()
    record.child.cancel()
    record.result = await record.child.wait()
    return record, at_work, anyio.current_time() - started
