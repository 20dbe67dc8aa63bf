"""The model and the runner that play a script."""

from __future__ import annotations

import anyio
import pytest

from gofer import (
    Finish,
    Host,
    Message,
    Model,
    ModelError,
    PluginValidationError,
    Request,
    Run,
    SubagentResult,
    SubagentSpec,
    Text,
    ToolCall,
)
from gofer.testing import ScriptedModel, ScriptedRunner

pytestmark = pytest.mark.anyio


async def ask(model: ScriptedModel, text: str = "hi") -> list[object]:
    return [item async for item in model.stream(Request(messages=[Message("user", text)]))]


async def test_a_model_plays_a_script_for_each_request() -> None:
    call = ToolCall(id="1", name="f")

    async def echo(request: Request) -> list[str]:
        await anyio.lowlevel.checkpoint()
        return [request.messages[-1].text, "!"]

    model = ScriptedModel([["a", Text(text="b")], call, echo, [Finish("refusal"), "never"], []])
    assert isinstance(model, Model)
    assert await ask(model) == [Text(text="a"), Text(text="b"), Finish("end_turn")]
    assert await ask(model) == [call, Finish("tool_use")]
    assert await ask(model, "echo") == [Text(text="echo"), Text(text="!"), Finish("end_turn")]
    assert await ask(model) == [Finish("refusal")]
    assert await ask(model) == [Finish("end_turn")]
    assert [request.messages[0].text for request in model.requests] == ["hi"] * 2 + ["echo"] + [
        "hi"
    ] * 2
    with pytest.raises(AssertionError, match=r"has 5 turns, and a request more came: .*too many"):
        await ask(model, "too many")


async def test_a_script_raises_its_exceptions_where_they_stand() -> None:
    model = ScriptedModel([["a", ModelError("down")], lambda request: 5])
    items = []
    with pytest.raises(ModelError, match="down"):
        async for item in model.stream(Request()):
            items.append(item)
    assert items == [Text(text="a")]
    with pytest.raises(PluginValidationError, match="5 is no item of a script"):
        await ask(model)


async def test_a_runner_plays_its_script_for_each_child() -> None:
    seen: list[set[str]] = []

    def script(run: Run) -> list[object]:
        seen.append(set(runner.running))
        if run.spec.task == "fail":
            return [ValueError("told to")]
        return [run.result("its own"), "never"] if run.spec.task == "own" else [run.prompt, None]

    runner = ScriptedRunner(["First. ", script], name="played", cancel_grace=1.5)
    async with Host([runner], {"default_runner": "played"}, discover=False) as host:
        results: list[SubagentResult] = []
        for task in ("task", "own", "fail"):
            results.append(await host.run(SubagentSpec(task=task)))
    assert [result.summary for result in results] == ["First. task", "its own", "First. "]
    assert results[2].error == "ValueError: told to"
    assert [run.id for run in runner.runs] == ["sub-0", "sub-1", "sub-2"]
    assert (seen, runner.running) == ([{"sub-0"}, {"sub-1"}, {"sub-2"}], set())
    assert runner.cancel_grace == 1.5
