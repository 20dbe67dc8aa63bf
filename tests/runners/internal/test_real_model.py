"""The harness on the real llama.cpp server and the real, very small model."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from gofer import Host, Message, Request, SubagentSpec, Text, ToolCall, ToolResult, hookimpl
from gofer_plugins.delegation._prefill import PrefilledModel
from gofer_plugins.subagent_call import SubagentCallPlugin
from gofer_runners.internal import InternalRunner
from gofer_runners.llama_server import LlamaServer

pytestmark = [pytest.mark.anyio, pytest.mark.model]


class Force:
    """Makes the first answer of a child a call of ``read_file``."""

    name = "force"

    def __init__(self) -> None:
        self.results: list[ToolResult] = []

    @hookimpl
    def on_request(self, request: Request) -> None:
        if request.turn.subagent_id is None:
            return
        found = [
            block for message in request.messages for block in message.content
            if isinstance(block, ToolResult)
        ]  # fmt: skip
        if found:
            self.results, request.tools = found, []
            request.extra["stop"] = ["\n"]
            return
        # With two examples before it, even the smallest model names the file.
        examples: list[Message] = []
        for path, text in (("letter.txt", "The letter is from Ann."), ("todo.md", "Buy milk.")):
            call = ToolCall(id=path, name="read_file", arguments={"path": path})
            examples += [
                Message("user", f"Read {path}, and say what is in it."),
                Message("assistant", [call]),
                Message("tool", [ToolResult(tool_call_id=path, output=text)]),
                Message("assistant", [Text(text=text)]),
            ]
        request.messages[1:1] = examples
        request.tools = [tool for tool in request.tools if tool.name == "read_file"]
        request.tool_choice = "required"


def internal() -> InternalRunner:
    model = PrefilledModel(LlamaServer(slots=1, context=3072))
    return InternalRunner(model, temperature=0, max_tokens=60)


# Each on one event loop: a real model takes its time.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_question_is_answered_through_subagent_call(
    embedded_model: Path, tmp_path: Path
) -> None:
    with anyio.fail_after(180):
        async with Host([SubagentCallPlugin, internal()], discover=False, cwd=tmp_path) as host:
            result = await host.call_tool(
                "subagent_call", {"input": "What is the capital of France?"}
            )
    assert not result.is_error, result.output
    answer = json.loads(result.output)
    assert set(answer) == {"output", "stop_reason"}
    assert "Paris" in answer["output"]
    assert answer["stop_reason"] == "end_turn"


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_file_is_read_and_reported_on(embedded_model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The meeting is on Friday.\n")
    force = Force()
    with anyio.fail_after(180):
        async with Host([force, internal()], discover=False, cwd=tmp_path) as host:
            task = "Read notes.txt, and say what is in it."
            result = await host.run(SubagentSpec(task=task))
    assert [(found.output, found.is_error) for found in force.results] == [
        ("The meeting is on Friday.\n", False)
    ]
    assert result.exit_ok, result.error
    assert "Friday" in result.summary
    assert result.usage is not None
