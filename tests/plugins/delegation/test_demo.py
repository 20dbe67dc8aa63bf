"""``gofer demo`` as a person runs it: on the embedded model, on a server, and without either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

GOFER = [sys.executable, "-m", "gofer", "demo"]


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GOFER, *args],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


class Server(BaseHTTPRequestHandler):
    """Thinks, then calls the one tool it is offered; a child gets a plain answer."""

    calls_tools = True

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.reply("application/json", json.dumps({"data": [{"id": "large"}]}))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        deltas: list[dict[str, Any]] = []
        if "tools" in asked and self.calls_tools:
            (tool,) = asked["tools"]
            assert asked["tool_choice"] == "required"
            assert asked["messages"][-1]["role"] in ("user", "tool")
            name = tool["function"]["name"]
            arguments = {"task": "Ask."} if name == "spawn_subagent" else {"subagent_id": "sub-0"}
            function = {"name": name, "arguments": json.dumps(arguments)}
            deltas += [{"reasoning_content": "hm "}, {"reasoning_content": "so"}]
            deltas.append({"tool_calls": [{"index": 0, "id": "c", "function": function}]})
        else:
            deltas.append({"content": "Titan."})
        frames = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"
        self.reply("text/event-stream", body)

    def reply(self, kind: str, body: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def server() -> Iterator[type[Server]]:
    handler = type("Handler", (Server,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        handler.url = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield handler
        listening.shutdown()
        thread.join()


OUTPUT = """\
Pending gauge: 0 of 1024 children awaiting collection

Turn 1: the parent delegates, and spawning does not block
  child id from the tool result: sub-0
  pending 1 of 1024, spawns so far 1
  thinking blocks: {thoughts}

The child runs its own turn while the parent waits
  the child delivered its result

Turn 2: the parent collects the summary through the same pipeline
  collected summary: "{summary}"
  pending 0 of 1024, spawns so far 1
  thinking blocks: {thoughts}

Spawn log, 1 entry
  parent session "unset", worktree "none"
"""


@pytest.mark.model
def test_on_the_embedded_model(embedded_model: Path) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    summary = done.stdout.partition('collected summary: "')[2].partition('"\n')[0]
    assert summary.strip()
    assert done.stdout == OUTPUT.format(thoughts=0, summary=summary)


@pytest.mark.parametrize("by", ["option", "variable"])
def test_on_any_server(server: type[Server], by: str) -> None:
    done = (
        run("--base-url", server.url, "--model", "large")
        if by == "option"
        else run(GOFER_BASE_URL=server.url)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == OUTPUT.format(thoughts=2, summary="Titan.")


def test_a_model_that_calls_no_tool_is_named_as_such(server: type[Server]) -> None:
    server.calls_tools = False
    done = run("--base-url", server.url)
    assert done.returncode == 1
    assert done.stderr.startswith("the model was to call spawn_subagent and did not")
    assert "Traceback" not in done.stderr


def test_without_a_server_one_line_says_how_to_get_one() -> None:
    done = run(GOFER_BASE_URL="http://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    assert "GOFER_BASE_URL" in done.stdout


def test_without_the_extra_one_line_says_how_to_get_it() -> None:
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'xllamacpp' else real(name, *a)\n"
        "sys.argv = ['gofer', 'demo']; from gofer.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "gofer[local]" in done.stdout
