"""A model server on loopback whose model plays scripts, in four APIs at once.

A task chooses the script with a mark such as ``[[shell: touch here]]``; see :mod:`.scripts`.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from . import anthropic, chat, gemini, responses
from .events import Format
from .scripts import Conversation, Failure, Reply, play

__all__ = ["ModelServer", "Request", "serve"]

MODELS = ("stub-model", "gpt-5.5", "gemini-2.5-pro", "claude-sonnet-4-5")

ROUTES: tuple[tuple[str, Format], ...] = (
    (r"/chat/completions$", chat),
    (r"/responses$", responses),
    (r":(stream)?generateContent$", gemini),
    (r"/messages$", anthropic),
)


class _Dropped(Exception):
    """The script says: hang up here."""


@dataclass(frozen=True)
class Request:
    """What the server was asked: for a look at why an agent does what it does."""

    method: str
    path: str
    asked: Conversation | None = None
    reply: Reply | Failure | None = None


class ModelServer(ThreadingHTTPServer):
    """The server; ``closing`` is set when what still streams or hangs shall end."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.closing = threading.Event()
        self.requests: deque[Request] = deque(maxlen=100)

    @property
    def url(self) -> str:
        """Where it is, without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of agents that hang up."""


@contextmanager
def serve() -> Iterator[ModelServer]:
    """Run the server in a thread for the length of the block."""
    with ModelServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the server keeps its requests."""

    def do_GET(self) -> None:
        """List the models; say nothing of anything else."""
        path = urlsplit(self.path)
        self.server.requests.append(Request("GET", self.path))
        if not path.path.rstrip("/").endswith("/models"):
            self._send({})
        elif "client_version" in path.query:  # Codex wants more of a model than we would make up.
            self._send({"models": []})
        else:
            data = [{"id": name, "object": "model", "owned_by": "stub"} for name in MODELS]
            names = [{"name": f"models/{name}", "displayName": name} for name in MODELS]
            self._send({"object": "list", "data": data, "models": names})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Answer as the script says, in the format of the path."""
        path = urlsplit(self.path).path
        body = self._body()
        for pattern, api in ROUTES:
            if re.search(pattern, path, re.IGNORECASE):
                self._answer(api, path, body)
                return
        self.server.requests.append(Request("POST", self.path))
        # Some count tokens first; the rest is telemetry.
        self._send({"totalTokens": 11, "input_tokens": 11} if "count" in path else {})

    def _answer(self, api: Format, path: str, body: dict[str, Any]) -> None:
        asked = api.read(body)
        reply = play(asked)
        self.server.requests.append(Request("POST", self.path, asked, reply))
        if isinstance(reply, Failure):
            self._send(api.error(reply.status), reply.status)
            return
        model = str(body.get("model") or "stub-model")
        try:
            if body.get("stream") or "stream" in path.lower():
                self._stream(api.stream(reply, self._words(reply), model))
            else:
                self._send(api.whole(reply, "".join(self._words(reply)), model))
        except (_Dropped, ConnectionError):
            self.close_connection = True
            if not self.wfile.closed:
                self.connection.shutdown(socket.SHUT_RDWR)

    def _words(self, reply: Reply) -> Iterator[str]:
        """Go through the text at its pace, and end as the script says."""
        for word in reply.text:
            yield word
            if reply.pause and self.server.closing.wait(reply.pause):
                raise _Dropped
        if reply.end == "hang":
            self.server.closing.wait()
        if reply.end != "whole":
            raise _Dropped

    def _stream(self, events: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for text in events:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, value: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> dict[str, Any]:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b"".join(self._chunks())
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        try:
            value = json.loads(data or b"{}")
        except ValueError:  # somebody's telemetry
            return {}
        return value if isinstance(value, dict) else {}

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
