"""The official SDK: its agent side as a peer, and its schema for all that gofer sends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import StreamChunk, Text, ToolResult

from .support import bench, say, sent, settings, turn

schema = pytest.importorskip("acp.schema", reason="needs the official SDK")

pytestmark = pytest.mark.anyio

SDK_AGENT = [sys.executable, str(Path(__file__).with_name("sdk_agent.py"))]


async def test_an_agent_made_with_the_official_sdk(tmp_path: Path) -> None:
    path = tmp_path / "file"
    options: dict[str, Any] = {"fs": True, "terminal": True, "end_grace": 5.0}
    agents = {
        "sdk": {"command": SDK_AGENT, **options},
        "denied": {"command": SDK_AGENT, "permissions": "deny", **options},
    }
    async with bench(agents=agents, cwd=tmp_path) as b:
        result = await b.run("sdk", "ask")
        assert (result.summary, result.stop_reason, result.error) == ("once", "end_turn", None)
        assert b.watcher.of(ToolResult) == [ToolResult(tool_call_id="c1", output="done")]
        assert (await b.run("sdk", f"write {path}")).summary == "written"
        assert (await b.run("sdk", "shell echo out; exit 3")).summary == "out\nFalse3"
        assert len(await b.pids()) == 1
        result = await b.run("denied", "ask")
        assert result.summary == "no"
        assert [denied["tool_call_id"] for denied in result.permissions_denied] == ["c1"]

        result = await b.run("sdk", "ask", resume="another")
        assert result.session is not None
        assert (result.session.id, result.session.resumed) == ("another", True)
        assert "old" not in result.summary

        def cancel(chunk: StreamChunk) -> None:
            if isinstance(chunk.block, Text):
                for child in chunk.turn.host.children:
                    child.cancel()

        b.watcher.react = cancel
        with anyio.fail_after(30):
            result = await b.run("sdk", "wait")
        assert (result.stop_reason, result.summary, result.error) == ("cancelled", "first ", None)


REQUESTS = {
    "initialize": "InitializeRequest",
    "authenticate": "AuthenticateRequest",
    "session/new": "NewSessionRequest",
    "session/load": "LoadSessionRequest",
    "session/resume": "ResumeSessionRequest",
    "session/prompt": "PromptRequest",
    "session/cancel": "CancelNotification",
    "session/set_mode": "SetSessionModeRequest",
}
ANSWERS = {
    "session/request_permission": "RequestPermissionResponse",
    "fs/read_text_file": "ReadTextFileResponse",
    "fs/write_text_file": "WriteTextFileResponse",
    "terminal/create": "CreateTerminalResponse",
    "terminal/output": "TerminalOutputResponse",
    "terminal/wait_for_exit": "WaitForTerminalExitResponse",
    "terminal/kill": "KillTerminalResponse",
    "terminal/release": "ReleaseTerminalResponse",
    "elicitation/create": "DeclineElicitationResponse",
}


def validate(name: str, data: Any) -> None:
    """Hold *data* to a type of the SDK's: all that it must have, and nothing it does not know."""
    model = getattr(schema, name)
    read = model.model_validate(data)
    again = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert again == data, name


async def test_all_that_is_sent_is_as_the_official_schema_wants_it(tmp_path: Path) -> None:
    record = tmp_path / "record"
    (tmp_path / "file").write_text("text\n")
    path = str(tmp_path / "file")
    terminal = {"terminalId": "term-0"}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("session/request_permission",
         {"toolCall": {"toolCallId": "c"},
          "options": [{"optionId": "y", "name": "Y", "kind": "allow_once"}]}),
        ("session/request_permission", {"toolCall": {"toolCallId": "c"}, "options": []}),
        ("fs/read_text_file", {"path": path}),
        ("fs/read_text_file", {"path": path, "line": 1, "limit": 1}),
        ("fs/write_text_file", {"path": path, "content": "new"}),
        ("terminal/create", {"command": "echo $$; sleep 7001"}),
        ("terminal/output", terminal),
        ("terminal/kill", terminal),
        ("terminal/wait_for_exit", terminal),
        ("terminal/output", terminal),
        ("terminal/release", terminal),
        ("elicitation/create", {"mode": "form"}),
        ("fs/read_text_file", {"path": "/etc/passwd"}),
        ("unheard/of", {}),
    ]  # fmt: skip
    steps = [{"request": method, "params": params} for method, params in asked]
    modes = {"currentModeId": "a", "availableModes": [{"id": "a"}, {"id": "b"}]}
    option = {"id": "o", "type": "select", "currentValue": "x",
              "options": [{"value": "x"}, {"value": "y"}]}  # fmt: skip
    switch = {"id": "s", "type": "boolean", "currentValue": False}
    state = {"sessionId": "s", "modes": modes, "configOptions": [option, switch]}
    offers = {
        "result": {
            "protocolVersion": 1,
            "authMethods": [{"id": "key", "name": "Key"}],
            "agentCapabilities": {
                "loadSession": True,
                "sessionCapabilities": {"resume": {}},
                "mcpCapabilities": {"http": True, "sse": True},
            },
        }
    }
    script = turn(
        *steps,
        say("up"),
        {"wait": "cancel"},
        initialize=[offers],
        options={"record": str(record)},
        **{
            "session/new": [{"result": state}],
            "session/resume": [{"error": [-32601, "Method not found"]}],
            "session/load": [{"error": [1, "gone"]}],
        },
    )
    servers = [
        {"name": "a", "command": "mcp", "args": ["x"], "env": {"A": "1"}},
        {"name": "b", "url": "http://127.0.0.1:1", "headers": {"K": "V"}},
        {"name": "c", "url": "http://127.0.0.1:1", "type": "sse"},
    ]
    more = {
        "fs": True,
        "terminal": True,
        "auth_method": "key",
        "mode": "b",
        "config_options": {"o": "y", "s": True},
        "mcp_servers": servers,
    }
    async with bench(agents={"fake": settings(script, **more)}, cwd=tmp_path) as b:

        def cancel(chunk: StreamChunk) -> None:
            if isinstance(chunk.block, Text):
                for child in chunk.turn.host.children:
                    child.cancel()

        b.watcher.react = cancel
        with anyio.fail_after(60):
            result = await b.run(resume="gone", task="a task with é, \U0001f600 and \u2028")
        assert result.stop_reason == "cancelled"
        assert result.session is not None
        assert "gone" in str(result.session.reason)

    messages = sent(record)
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    seen: set[str] = set()
    for message in messages:
        if "method" not in message:
            continue
        assert set(message) <= {"jsonrpc", "id", "method", "params"}
        method = message["method"]
        seen.add(method)
        if method == "session/set_config_option":
            boolean = message["params"].get("type") == "boolean"
            kind = "Boolean" if boolean else "Select"
            validate(f"SetSessionConfigOption{kind}Request", message["params"])
        else:
            validate(REQUESTS[method], message["params"])
    assert seen == {*REQUESTS, "session/set_config_option"}

    answers = {message["id"]: message for message in messages if "method" not in message}
    assert len(answers) == len(asked)
    for (method, _), (_, answer) in zip(asked, sorted(answers.items()), strict=True):
        assert set(answer) == {"jsonrpc", "id", "result" if "result" in answer else "error"}
        if "error" in answer:
            assert set(answer["error"]) == {"code", "message"}
            assert method in ("unheard/of", "fs/read_text_file")
        else:
            validate(ANSWERS[method], answer["result"])
    assert json.dumps(messages).count("-32601") == 1
