"""The fake agent as a program: how it is started, and what it says of a wrong script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from gofer.testing import fake_agent

PROMPT = {"sessionId": "s", "prompt": [{"type": "text", "text": "task"}]}


def play(command: list[str], *methods: tuple[str, dict[str, Any]]) -> tuple[list[Any], str]:
    """Ask it, and return what it said, and its stderr."""
    asked = "".join(
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
        for number, (method, params) in enumerate(methods)
    )
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, timeout=30, check=False
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_it_says_what_its_script_says() -> None:
    said, _ = play(
        fake_agent.command({"turns": [[{"say": "a"}], [{"echo": True}, {"end": "refusal"}]]}),
        *[("session/prompt", PROMPT)] * 3,
    )
    texts = [m["params"]["update"]["content"]["text"] for m in said if "method" in m]
    assert texts == ["a", "task", "task"]
    assert [m["result"]["stopReason"] for m in said if "result" in m] == [
        "end_turn", "refusal", "refusal",
    ]  # fmt: skip


def test_without_a_script_it_echoes_and_a_script_may_lie_in_a_file(tmp_path: Path) -> None:
    said, _ = play(fake_agent.command({}), ("initialize", {}), ("session/prompt", PROMPT))
    assert said[0]["result"]["protocolVersion"] == 1
    assert said[1]["params"]["update"]["content"]["text"] == "task"
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"turns": [[{"say": "from the file"}]]}))
    said, _ = play([*fake_agent.command({})[:-1], f"@{file}"], ("session/prompt", PROMPT))
    assert said[0]["params"]["update"]["content"]["text"] == "from the file"


def test_a_step_that_is_none_is_named() -> None:
    _, aside = play(fake_agent.command({"turns": [[{"sya": "a"}]]}), ("session/prompt", PROMPT))
    assert "no step of a fake agent: {'sya': 'a'}" in aside
