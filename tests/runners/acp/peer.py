"""An agent's ends of the pipes, in the hands of a test: no process, but a Process all the same."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from gofer.processes import Process
from gofer_runners.acp._connection import Connection


class Peer:
    """What a test does in the agent's stead, and what it saw of gofer."""

    def __init__(self) -> None:
        self._stdin, theirs_in = os.pipe()
        theirs_out, self._stdout = os.pipe()
        theirs_err, self._stderr = os.pipe()
        self._lifeline, lifeline = socket.socketpair()
        lifeline.setblocking(False)
        for fd in (self._stdin, theirs_in, theirs_out, theirs_err):
            os.set_blocking(fd, False)
        self.process = Process("agent x", theirs_in, theirs_out, theirs_err, lifeline)
        self.connection = Connection(self.process, self._notified, self._requested)
        self.seen: list[Any] = []
        self.hold: anyio.Event | None = None
        self._got = b""

    async def _notified(self, method: str, params: dict[str, Any]) -> None:
        if self.hold is not None:
            await self.hold.wait()
        self.seen.append((method, params))

    async def _requested(self, number: Any, method: str, params: dict[str, Any]) -> None:
        self.seen.append((number, method, params))

    # What the agent does

    def write(self, data: bytes) -> None:
        """Write to stdout, as much as fits into the pipe."""
        assert os.write(self._stdout, data) == len(data)

    def send(self, *messages: Any) -> None:
        self.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def answer(self, number: Any, result: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": number, "result": result})

    def complain(self, data: bytes) -> None:
        os.write(self._stderr, data)

    async def read(self) -> Any:
        """Return the next message that gofer sent."""
        while b"\n" not in self._got:
            try:
                data = os.read(self._stdin, 65536)
            except BlockingIOError:
                await anyio.wait_readable(self._stdin)
                continue
            assert data, "gofer closed the agent's stdin"
            self._got += data
        line, _, self._got = self._got.partition(b"\n")
        return json.loads(line)

    def close(self, *names: str) -> None:
        """Close stdin, stdout or stderr."""
        for name in names:
            fd = getattr(self, f"_{name}")
            if fd >= 0:
                os.close(fd)
                setattr(self, f"_{name}", -1)

    def exit(self, status: int, *, keep_open: bool = False) -> None:
        """End, perhaps with somebody else holding the pipes."""
        if not keep_open:
            self.close("stdin", "stdout", "stderr")
        self._lifeline.sendall(json.dumps({"exit": status}).encode() + b"\n")

    def gone(self) -> None:
        self._lifeline.sendall(b'{"left": []}\n')
        self._lifeline.close()


@asynccontextmanager
async def peer(*, serve: bool = True) -> AsyncIterator[Peer]:
    """Open the pipes, and have gofer's end of them served."""
    peer = Peer()
    try:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.process._attend)
                if serve:
                    tasks.start_soon(peer.connection.serve)
                try:
                    yield peer
                finally:  # a test that fails must not hang
                    tasks.cancel_scope.cancel()
                    peer.gone()
                    peer.process._attending.cancel()
    finally:
        peer.close("stdin", "stdout", "stderr")
        peer._lifeline.close()
        peer.process._close()
