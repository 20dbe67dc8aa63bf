"""A small HTTP server that behaves as each test wants, recorded answers, and the real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

FIXTURES = Path(__file__).parents[2] / "fixtures" / "llama-server"


class Exchange:
    """One request that came in, and the means to answer it in whatever way."""

    def __init__(
        self, method: str, path: str, headers: dict[str, str], body: bytes, to: SocketStream
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self._to = to

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def send(self, data: bytes) -> None:
        await self._to.send(data)

    async def head(self, status: int = 200, **headers: str) -> None:
        """Send a head; without a length, the body ends with the connection."""
        headers = {"content_type": "text/event-stream", "connection": "close", **headers}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([f"HTTP/1.1 {status} Whatever", *lines, "", ""]).encode())

    async def answer(
        self,
        status: int,
        body: bytes | str | dict[str, Any],
        kind: str = "application/json",
        **headers: str,
    ) -> None:
        """Send a whole answer."""
        if isinstance(body, dict):
            body = json.dumps(body)
        data = body.encode() if isinstance(body, str) else body
        await self.head(status, content_type=kind, content_length=str(len(data)), **headers)
        await self.send(data)

    async def stream(self, *frames: Any) -> None:
        """Send an event stream; a frame is sent as JSON, bytes as they are."""
        await self.head()
        for frame in frames:
            if not isinstance(frame, bytes):
                frame = b"data: " + json.dumps(frame).encode() + b"\n\n"
            await self.send(frame)

    async def say(self, *texts: str, finish: str | None = "stop", done: bool = True) -> None:
        """Send an event stream that says *texts*."""
        frames: list[Any] = [{"choices": [{"delta": {"content": text}}]} for text in texts]
        if finish:
            frames.append({"choices": [{"delta": {}, "finish_reason": finish}]})
        await self.stream(*frames, *([b"data: [DONE]\n\n"] if done else []))

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while True:
                await self._to.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass

    async def hang_up(self) -> None:
        """Close the connection."""
        await self._to.aclose()


@dataclass
class Server:
    """Where the server is, and the requests that it got."""

    url: str
    requests: list[Exchange] = field(default_factory=list)
    connections: int = 0


Handler = Callable[[Exchange], Awaitable[None]]
Serve = Callable[[Handler], AbstractAsyncContextManager[Server]]


async def _receive(connection: SocketStream) -> Exchange | None:
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            data += await connection.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return None
    head, body = data.split(b"\r\n\r\n", 1)
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await connection.receive()
    method, path, _ = first.split(" ")
    return Exchange(method, path, headers, body, connection)


@asynccontextmanager
async def _serve(handler: Handler) -> AsyncIterator[Server]:
    async def connected(connection: SocketStream) -> None:
        server.connections += 1
        async with connection:
            while exchange := await _receive(connection):
                server.requests.append(exchange)
                try:
                    await handler(exchange)
                except anyio.BrokenResourceError:
                    return
                if exchange.headers.get("connection") == "close":
                    return

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server = Server(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, connected)
        with anyio.fail_after(20):
            yield server
        tasks.cancel_scope.cancel()


@pytest.fixture
def serve() -> Serve:
    """Return what serves HTTP with a handler, as an async context manager."""
    return _serve


@pytest.fixture
def recorded() -> Callable[[str], dict[str, Any]]:
    """Return what reads a recorded answer: its status, headers and body."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
        return found

    return read
