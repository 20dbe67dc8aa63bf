"""Raw JSON over the pipes of an agent, on an event loop, and nothing else; also as a program."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import anyio
from anyio.abc import Process

__all__ = ["Raw", "cold_turn", "main"]


class Raw:
    """The least that can have a turn with an agent: a line out, lines in."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._out, self._in = process.stdin, process.stdout
        self._rest = b""
        self._number = 0

    async def ask(self, method: str, params: dict[str, Any]) -> tuple[Any, list[str]]:
        """Return the result, and the text that came before it."""
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self._out.send(json.dumps(message).encode() + b"\n")
        said: list[str] = []
        while True:
            *lines, self._rest = (self._rest + await self._in.receive()).split(b"\n")
            for line in lines:
                heard = json.loads(line)
                if "method" not in heard:
                    return heard["result"], said
                said.append(heard["params"]["update"]["content"]["text"])

    async def begin(self) -> None:
        """Introduce ourselves."""
        await self.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})

    async def turn(self) -> str:
        """Have one turn in a new session."""
        session, _ = await self.ask("session/new", {"cwd": "/", "mcpServers": []})
        prompt = [{"type": "text", "text": "go"}]
        _, said = await self.ask(
            "session/prompt", {"sessionId": session["sessionId"], "prompt": prompt}
        )
        return "".join(said)


async def cold_turn(argv: list[str]) -> str:
    """Start an agent, have a turn, end it, and return what it said."""
    async with await anyio.open_process(argv, stderr=subprocess.DEVNULL) as process:
        raw = Raw(process)
        await raw.begin()
        said = await raw.turn()
        assert process.stdin is not None
        await process.stdin.aclose()
        await process.wait()
    return said


def main() -> None:
    """Have one turn with the command of the arguments, and print what it says."""
    print(anyio.run(cold_turn, sys.argv[1:]))
