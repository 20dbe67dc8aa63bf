"""What real agents sent, played again: each turn must come out as its agent meant it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gofer import FinalMessage, SubagentResult, ToolCall, ToolResult, Update
from gofer_runners.acp._schema import Initialized, NewSession, read
from gofer_runners.acp._updates import Updates

from .support import bench

pytestmark = pytest.mark.anyio

FIXTURES = Path(__file__).parents[2] / "fixtures" / "acp"
AGENTS = ("claude", "cline", "codex", "copilot", "gemini", "opencode")

HELLO = "Hello from the stub model. This is the plain report."
FIRST = "First I will call one tool."
LAST = "FINAL REPORT: the tool has run."
SLOW = "slow 0 slow 1 slow 2 slow 3 "
NO_RESPONSE = "Error: No response was returned. Send your message again to retry."
NO_TEXT = "no text: there is no report"
# Of each turn that differs between agents: stop reason, final message, part of the error.
SPECIAL: dict[str, dict[str, tuple[str, str, str | None]]] = {
    "shell-reject": {
        "claude": ("end_turn", LAST, None),
        "cline": ("end_turn", LAST, None),
        "codex": ("cancelled", FIRST, None),
        "copilot": ("end_turn", "Info: Operation cancelled by user", None),
        "gemini": ("end_turn", LAST, None),
        "opencode": ("end_turn", FIRST, None),
    },
    "400": {
        "claude": ("error", "API Error: 400 stub error 400", "code -32603"),
        "cline": ("error", "", "Internal error: stub error 400"),
        "codex": ("error", "", "code -32603"),
        "copilot": ("end_turn", "Error: 400 stub error 400", None),
        "gemini": ("error", "", "code 400"),
        "opencode": ("error", "", "code -32603"),
    },
    "empty": {
        "claude": ("end_turn", "", NO_TEXT),
        "cline": ("error", "", "code -32603"),
        "codex": ("end_turn", "", NO_TEXT),
        "copilot": ("end_turn", NO_RESPONSE, None),
        "gemini": ("end_turn", "", NO_TEXT),
        "opencode": ("end_turn", "", NO_TEXT),
    },
}  # fmt: skip


def recorded(agent: str) -> dict[str, list[Any]]:
    lines = (FIXTURES / f"{agent}.jsonl").read_text().splitlines()
    return {entry["turn"]: entry["messages"] for entry in map(json.loads, lines)}


def steps(messages: list[Any]) -> list[dict[str, Any]]:
    """Return a turn as steps of the fake agent."""
    found: list[dict[str, Any]] = []
    for message in messages:
        method = message.get("method")
        if method == "session/update":
            found.append({"update": message["params"]["update"]})
        elif method is not None and "id" in message:
            params = {key: value for key, value in message["params"].items() if key != "sessionId"}
            found.append({"request": method, "params": params})
        elif method is not None:
            found.append({"line": json.dumps({"jsonrpc": "2.0", **message})})
        elif "error" in message:
            found.append({"error": [message["error"]["code"], message["error"]["message"]]})
        else:
            found.append({"result": message["result"]})
    return found


@pytest.mark.parametrize("agent", AGENTS)
async def test_the_turns_of_a_real_agent(agent: str) -> None:
    turns = recorded(agent)
    async with bench(cancel_grace=5) as b:

        async def play(turn: str) -> SubagentResult:
            b.watcher.blocks.clear()
            return await b.play(*steps(turns[turn]))

        for turn in ("text1", "think"):
            result = await play(turn)
            assert (result.stop_reason, result.summary, result.error) == ("end_turn", HELLO, None)
            assert b.watcher.of(ToolCall) == []
        result = await play("shell")
        assert (result.stop_reason, result.summary) == ("end_turn", LAST)
        assert not result.fallback
        calls, results = b.watcher.of(ToolCall), b.watcher.of(ToolResult)
        assert [call.id for call in calls] == [result.tool_call_id for result in results]
        assert len(calls) == 1
        assert not results[0].is_error
        asked = [block for block in b.watcher.of(Update) if block.kind == "permission"]
        assert len(asked) == 1
        result = await play("slow-cancel")
        assert (result.stop_reason, result.summary) == ("cancelled", SLOW)
        for turn, outcomes in SPECIAL.items():
            result = await play(turn)
            stop_reason, summary, error = outcomes[agent]
            assert (result.stop_reason, result.summary) == (stop_reason, summary), turn
            assert error in str(result.error) if error else result.error is None
        result = await play("drop")
        assert result.summary.startswith("Hello") or result.summary.startswith("Error: ")


@pytest.mark.parametrize("agent", AGENTS)
def test_what_a_real_agent_says_of_itself_is_read(agent: str) -> None:
    turns = recorded(agent)
    known = read(Initialized, turns["initialize"][0]["result"], "initialize")
    assert known.protocol_version == 1
    assert known.loads
    assert known.resumes is (agent in ("claude", "codex", "opencode"))
    state = read(NewSession, turns["session/new"][0]["result"], "session/new")
    assert state.session_id
    options = {option.id: option for option in state.config_options}
    modes = [choice.id for choice in state.modes.available_modes] if state.modes else []
    assert modes or options
    for option in options.values():
        assert option.type == "boolean" or option.values


@pytest.mark.parametrize("agent", AGENTS)
def test_a_replay_of_a_real_agent_has_the_old_answer_in_it(agent: str) -> None:
    # So that the test of what does not count is about something.
    *replayed, answer = recorded(agent)["session/load"]
    if "error" in answer:
        assert agent == "gemini"
        return
    final, mapping = FinalMessage(), Updates()
    for message in replayed:
        for block in mapping.blocks(message.get("params", {}).get("update", {})):
            final.add(block)
    assert LAST in final.text


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_replay_of_a_real_agent_never_counts(agent: str) -> None:
    load = steps(recorded(agent)["session/load"])
    offers = {"result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}}
    script = {
        "initialize": [offers],
        "session/load": load,
        "turns": [steps(recorded(agent)["text1"])],
    }
    async with bench(script) as b:
        result = await b.run(resume="old")
    assert result.summary == HELLO
    assert b.watcher.of(ToolCall) == []
    assert result.session is not None
    assert result.session.resumed is (agent != "gemini")
