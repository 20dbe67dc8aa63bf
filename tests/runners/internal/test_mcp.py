"""Tools of real MCP servers, over pipes and over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from pydantic import ValidationError

from gofer import Host, SubagentSpec
from gofer.testing import ScriptedModel
from gofer_runners.internal import InternalRunner
from gofer_runners.internal._mcp import McpServer

if os.environ.get("CI") == "true":
    import mcp  # noqa: F401 - there the tests must fail without it, not be skipped
else:
    pytest.importorskip("mcp")
pytestmark = pytest.mark.anyio

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
STDIO = McpServer(command=sys.executable, args=(PROGRAM,), env={"OWN": "mine"})

BARE = McpServer(command=sys.executable, args=(str(Path(__file__).with_name("mcp_bare.py")),))


@contextmanager
def listening() -> Iterator[str]:
    with subprocess.Popen([sys.executable, PROGRAM, "http"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_over_pipes(
    play: Any, call: Any, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFER_API_KEY", "secret")
    (work / "a.txt").write_text("the harness's")
    played = await play(
        [
            call("mcp__small__add", a=2, b=3),
            call("mcp__small__fail", why="so it is"),
            call("mcp__small__add", a="x"),
            call("mcp__small__where"),
            call("mcp__small__flood"),
            call("mcp__small__leave"),
            call("mcp__small__read_file", path="a.txt"),
            call("read_file", path="a.txt"),
        ],
        "Done.",
        mcp_servers={"small": STDIO},
    )
    assert played.result.exit_ok, played.result.error
    tools = {tool.name: tool for tool in played.model.requests[0].tools}
    assert tools["mcp__small__add"].description == "Add two numbers."
    assert set(tools["mcp__small__add"].input_schema["properties"]) == {"a", "b"}  # type: ignore[arg-type]
    add, fail, wrong, where, flood, leave, theirs, ours = played.results
    assert (add.output, add.is_error) == ("5", False)
    assert fail.is_error
    assert "Error executing tool fail" in fail.output
    assert wrong.is_error
    pid, key, own, cwd = where.output.split()
    assert (key, own, cwd) == ("None", "mine", str(work))
    assert len(flood.output) < 40_000
    assert "characters were left out here" in flood.output
    assert (theirs.output, ours.output) == ("not the harness's", "the harness's")
    # Gone with the Host, and what it had started too.
    assert not alive(int(pid))
    assert not alive(int(leave.output))


async def test_over_http(play: Any, call: Any) -> None:
    with listening() as url:
        played = await play(
            [call("mcp__far__add", a=2, b=3), call("mcp__far__fail", why="so it is")],
            "Done.",
            mcp_servers={"far": McpServer(url=url, headers={"X-Own": "1"})},
        )
    assert played.result.exit_ok, played.result.error
    add, fail = played.results
    assert (add.output, add.is_error) == ("5", False)
    assert fail.is_error
    assert "Error executing tool fail" in fail.output


async def test_one_server_for_all_runs_and_a_new_one_where_it_died(work: Path, call: Any) -> None:
    where = [call("mcp__bare__where")]
    model = ScriptedModel([where, "1", where, "2", [call("mcp__bare__die")], "3", where, "4"])
    runner = InternalRunner(model, mcp_servers={"bare": BARE})
    spec = SubagentSpec(task="t", runner="internal")
    with anyio.fail_after(60):
        async with Host([runner], discover=False, cwd=work) as host:
            for number in "1234":
                result = await host.run(spec)
                assert result.summary == number, result.error
    outputs = [model.requests[at].messages[-1].content[0] for at in (1, 3, 5, 7)]
    first, second, died, after = (block.output for block in outputs)  # type: ignore[union-attr]
    assert first == second
    assert outputs[2].is_error  # type: ignore[union-attr]
    assert died
    assert after != first
    assert not alive(int(after))


async def test_a_call_has_a_limit_of_time(play: Any, call: Any) -> None:
    server = BARE.model_copy(update={"call_timeout": 0.5})
    played = await play([call("mcp__bare__hang")], "Done.", mcp_servers={"bare": server})
    [result] = played.results
    assert result.is_error
    assert "failed" in result.output
    assert played.result.exit_ok


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (
            McpServer(command="no-such-program"),
            "MCP server 'x' cannot be started: 'no-such-program",
        ),
        (McpServer(command="false"), "MCP server 'x' cannot be started"),
        (McpServer(command="sleep", args=("600",), start_timeout=0.3), "within 0.3 s: raise its"),
        (McpServer(url="http://127.0.0.1:9/mcp"), "MCP server 'x' cannot be started"),
    ],
    ids=["missing", "ends", "hangs", "nobody listens"],
)
async def test_a_server_that_does_not_start_is_told(play: Any, server: McpServer, why: str) -> None:
    result = (await play(mcp_servers={"x": server})).result
    assert result.stop_reason == "error"
    assert why in str(result.error)


async def test_without_the_extra(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    result = (await play(mcp_servers={"x": STDIO})).result
    assert "pip install 'gofer[mcp]'" in str(result.error)


async def test_the_scope_holds_for_its_tools_too(play: Any, call: Any) -> None:
    played = await play(
        [call("mcp__bare__add", a=1, b=1), call("mcp__bare__where")],
        "Done.",
        mcp_servers={"bare": BARE},
        spec={"tool_scope": ["mcp__bare__add"]},
    )
    assert [tool.name for tool in played.model.requests[0].tools] == ["mcp__bare__add"]
    results = {result.is_error: result.output for result in played.results}
    assert results[False] == "2"
    assert "no tool 'mcp__bare__where' here" in results[True]


def test_nothing_is_left_of_the_process_itself() -> None:
    """Killing gofer kills the servers too."""
    code = (
        "import anyio, os, signal\n"
        "from gofer import Host, SubagentSpec, ToolCall\n"
        "from gofer.testing import ScriptedModel\n"
        "from gofer_runners.internal import InternalRunner\n"
        "from gofer_runners.internal._mcp import McpServer\n"
        f"server = McpServer(command={sys.executable!r}, args={BARE.args!r})\n"
        "def end(request):\n"
        "    print(request.messages[-1].content[0].output, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "async def main():\n"
        "    turn = [ToolCall(id='1', name='mcp__s__where')]\n"
        "    runner = InternalRunner(ScriptedModel([turn, end]), mcp_servers={'s': server})\n"
        "    async with Host([runner], discover=False) as host:\n"
        "        await host.run(SubagentSpec(task='t', runner='internal'))\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    pid = int(done.stdout.split()[0])
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    assert select.select([fd], [], [], 20)[0]
    os.close(fd)


def test_a_server_is_a_command_or_a_url() -> None:
    for wrong in ({}, {"command": "x", "url": "http://x"}, {"command": "x", "more": 1}):
        with pytest.raises(ValidationError):
            McpServer(**wrong)  # type: ignore[arg-type]
