"""The example of a parent loop: it delegates, by tools that are not its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "parent_loop.py"


class Server(ThreadingHTTPServer):
    """Plays both: the parent, which is asked at once, and the child, which is asked in streams."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []

    def parent(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        wanted = [
            ("subagent_call", json.dumps({"input": "Count the files."})),
            ("subagent_call", "{broken"),
            ("collect_subagent", "{}"),
        ]
        if len(results) == len(wanted):
            return {"role": "assistant", "content": " | ".join(results)}
        name, arguments = wanted[len(results)]
        function = {"name": name, "arguments": arguments}
        call = {"id": f"c{len(results)}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if body.get("stream"):
            delta = {"choices": [{"delta": {"content": "There are 3."}, "finish_reason": "stop"}]}
            data, kind = f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n", "text/event-stream"
        else:
            choice = {"message": self.server.parent(body["messages"]), "finish_reason": "stop"}
            data, kind = json.dumps({"choices": [choice]}), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data.encode())


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *arguments],
        cwd=cwd, env=dict(os.environ), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_it_is_short() -> None:
    code = EXAMPLE.read_text().partition('"""\n\nimport')[2]
    assert len(code.splitlines()) < 40


def test_it_delegates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with serving() as server:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        done = run(url, "m", "How many files are here?", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, broken, refused = done.stdout.strip().split(" | ")
    assert json.loads(first) == {"output": "There are 3.", "stop_reason": "end_turn"}
    assert "Expecting property name" in broken
    assert "subagent_id" in refused
    parent, child = server.bodies[0], server.bodies[1]
    names = {tool["function"]["name"] for tool in parent["tools"]}
    assert names >= {"spawn_subagent", "collect_subagent", "subagent_call"}
    assert child["messages"][-1] == {"role": "user", "content": "Count the files."}
    assert "read_file" in {tool["function"]["name"] for tool in child["tools"]}


def test_without_a_server_it_says_how(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "python examples/parent_loop.py" in done.stdout


@pytest.mark.parametrize("told", ["variable", "argument"])
def test_the_command_without_an_agent_has_the_harness_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    with serving() as server:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        options = ["--base-url", url, "--model", "m"]
        if told == "variable":
            monkeypatch.setenv("GOFER_BASE_URL", url)
            monkeypatch.setenv("GOFER_MODEL", "m")
            options = []
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "gofer", "run", "Count.", *options],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "There are 3.\n"), done.stderr
    [body] = server.bodies
    assert body["messages"][-1]["content"] == "Count."
    assert "run_shell" in {tool["function"]["name"] for tool in body["tools"]}
