"""Any conversation: it ends, its report is right, and nothing of it is left."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gofer import (
    ContextOverflowError,
    Finish,
    Host,
    ModelError,
    Request,
    SubagentResult,
    SubagentSpec,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from gofer.testing import ScriptedModel
from gofer_runners.internal import InternalRunner

TEXTS = ["One.", "Two. ", "\n", " ", "", "Three"]
GOOD = {
    "list_directory": {},
    "write_file": {"path": "new/{}", "content": "x"},
    "read_file": {"path": "a.txt"},
}
BAD = {
    "read_file": {"path": "gone-{}"},
    "write_file": {"path": "../out-{}", "content": "x"},
    "edit_file": "{{broken {}",
    "find_files": ["{}"],
    "nowhere": None,
}
CUT = ("max_tokens", "refusal", "error", "cancelled")


@dataclass(frozen=True)
class Call:
    """A call to be made; it fails, or it does not."""

    name: str
    fails: bool


def calls() -> st.SearchStrategy[Call]:
    good = st.sampled_from(list(GOOD)).map(lambda name: Call(name, fails=False))
    return good | st.sampled_from(list(BAD)).map(lambda name: Call(name, fails=True))


blocks = st.one_of(
    st.sampled_from(TEXTS), calls(), st.just(Thinking(text="Hm.")), st.sampled_from(TEXTS)
)
ends = st.sampled_from(
    [None, None, None, "end_turn", "tool_use", *CUT, "odd", "raise", "overflow", "cancel"]
)
conversations = st.lists(st.tuples(st.lists(blocks, max_size=5), ends), max_size=6)


def filled(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, number) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, number) for item in value]
    return value.format(number) if isinstance(value, str) else value


class Expected:
    """What should come of a conversation, worked out by hand."""

    def __init__(self) -> None:
        self.piece = ""
        self.kept = ""
        self.called = False
        self.failures = 0
        self.requests = 0

    def cut(self) -> None:
        if self.piece.strip():
            self.kept, self.called = self.piece, False
        self.piece = ""

    @property
    def summary(self) -> str:
        return self.piece if self.piece.strip() else self.kept

    def reason(self, conversation: Any, limit: int) -> str:
        for content, end in conversation[:limit]:
            self.requests += 1
            self.cut()
            called = []
            for block in content:
                if isinstance(block, str):
                    self.piece += block
                elif isinstance(block, Call):
                    self.cut()
                    self.called = True
                    called.append(block)
            if end in ("raise", "overflow", "cancel"):
                return {"raise": "error", "overflow": "max_tokens", "cancel": "cancelled"}[end]
            if not called:
                return end if end not in (None, "tool_use") else "end_turn"
            if end in CUT:
                return str(end)
            stop = False
            for call in called:
                self.failures = self.failures + 1 if call.fails else 0
                stop = stop or self.failures >= 10
            if stop:
                return "error"
        if len(conversation) >= limit:
            return "max_turn_requests"
        self.requests += 1
        self.cut()
        return "error"  # the script is over


class Play:
    """A conversation on a Host, with the means to cancel it from within."""

    def __init__(self, conversation: Any, limit: int, work: Path) -> None:
        self.numbers = itertools.count()
        self.model = ScriptedModel([self.turn(content, end) for content, end in conversation])
        self.limit = limit
        self.work = work

    def turn(self, content: Any, end: Any) -> list[Any]:
        items: list[Any] = []
        for block in content:
            if isinstance(block, Call):
                number = next(self.numbers)
                arguments = filled((BAD if block.fails else GOOD)[block.name], number)
                items.append(ToolCall(id=f"c{number}", name=block.name, arguments=arguments))
            else:
                items.append(Text(text=block) if isinstance(block, str) else block)
        if end == "raise":
            items.append(ModelError("gone"))
        elif end == "overflow":
            items.append(ContextOverflowError("too long"))
        elif end == "cancel":
            items.append(self.cancel)
        elif end is not None:
            items.append(Finish(end))
        return items

    async def cancel(self, _: Request) -> None:
        for child in self.host.children:
            child.cancel()
        await anyio.lowlevel.checkpoint()

    async def run(self) -> SubagentResult:
        runner = InternalRunner(self.model, max_turns=self.limit)
        with anyio.fail_after(60):
            async with Host([runner], discover=False, cwd=self.work) as self.host:
                result = await self.host.run(SubagentSpec(task="t", runner="internal"))
                assert self.host.children == []
        return result


def check_requests(requests: list[Request]) -> None:
    """Every request goes on with the one before, and every call in it has one result."""
    for before, after in itertools.pairwise(requests):
        assert after.messages[: len(before.messages)] == before.messages
    for request in requests:
        called = [b.id for m in request.messages for b in m.content if isinstance(b, ToolCall)]
        results = [
            b.tool_call_id for m in request.messages for b in m.content if isinstance(b, ToolResult)
        ]
        assert sorted(called) == sorted(results)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=60, deadline=None)
@given(conversations, st.integers(1, 6))
@example([(["A", Call("list_directory", False), " "], None), ([], None)], 3)
@example([(["A", *[Call("nowhere", True)] * 5], None)] * 2 + [(["B"], None)], 6)
@example([([Call("read_file", False)], "cancel")], 3)
def test_any_conversation_ends_with_the_right_report(
    backend: str, conversation: Any, limit: int
) -> None:
    expected = Expected()
    reason = expected.reason(conversation, limit)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        (work / "a.txt").write_text("a")
        play = Play(conversation, limit, work)
        result = anyio.run(play.run, backend=backend)
        # Neither a draft nor anything outside is left.
        assert {path.name for path in work.iterdir()} <= {"a.txt", "new"}
        assert [path.name for path in Path(folder).iterdir()] == ["work"]
    assert (result.stop_reason, result.summary) == (reason, expected.summary)
    assert len(play.model.requests) == expected.requests
    has_text = bool(result.summary.strip())
    assert result.exit_ok is (reason == "end_turn" and has_text)
    assert result.fallback is (has_text and not expected.piece.strip() and expected.called)
    if reason in ("error", "max_turn_requests", "max_tokens"):
        assert result.error
    check_requests(play.model.requests)
