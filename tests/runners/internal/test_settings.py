"""The runner as it is found and set up, not handed over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import ConfigError, Host, ModelError, PluginNotSupportedError, SubagentSpec
from gofer_runners.internal import InternalRunner

pytestmark = pytest.mark.anyio

BARE = str(Path(__file__).with_name("mcp_bare.py"))


async def test_its_table_of_settings(work: Path, call: Any) -> None:
    pytest.importorskip("mcp")
    from gofer.testing import ScriptedModel, ScriptedRunner

    class Other(ScriptedRunner):
        model = ScriptedModel(
            [
                [call("mcp__bare__add", a=1, b=2), call("read_file", path=str(work.parent / "x"))],
                [call("list_directory")],
            ]
        )

    (work.parent / "x").write_text("there")
    settings = {
        "model": "other",
        "max_turns": 2,
        "shell": False,
        "roots": [".."],
        "temperature": 0.25,
        "mcp_servers": {"bare": {"command": sys.executable, "args": [BARE]}},
    }
    with anyio.fail_after(30):
        config = {"runners": {"internal": settings}}
        async with Host([Other(name="other")], config, cwd=work) as host:
            result = await host.run(SubagentSpec(task="t"))
    assert result.stop_reason == "max_turn_requests"
    first, second = Other.model.requests
    names = [tool.name for tool in first.tools]
    assert "mcp__bare__add" in names
    assert "run_shell" not in names
    assert first.temperature == 0.25
    assert [m.content[0].output for m in second.messages[-2:]] == ["3", "there"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_turns": 0},
        {"turns": 5},
        {"mcp_servers": {"x": {}}},
        {"mcp_servers": {"x": {"command": "a", "url": "http://b"}}},
    ],
)
async def test_wrong_settings_are_told(work: Path, settings: dict[str, Any]) -> None:
    config = {"runners": {"internal": settings}}
    with anyio.fail_after(30):
        try:
            async with Host(config=config, cwd=work) as host:
                result = await host.run(SubagentSpec(task="t"))
        except (ConfigError, PluginNotSupportedError) as error:
            said = str(error)
        else:
            said = str(result.error)
    assert "internal" in said
    assert next(iter(settings)) in said


async def test_without_any_model_it_says_what_to_do(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gofer_runners.llama_server import LlamaServer

    def no_model(self: Any, request: Any) -> Any:
        raise ModelError("no server and no embedded model: set GOFER_BASE_URL")

    monkeypatch.setattr(LlamaServer, "stream", no_model)
    with anyio.fail_after(30):
        async with Host(cwd=work) as host:
            assert isinstance(host.runner("internal"), InternalRunner)
            result = await host.run(SubagentSpec(task="t"))
    assert result.error == "no server and no embedded model: set GOFER_BASE_URL"
