"""What is written by hand where there is no gofer: httpx and json, and nothing else."""

from __future__ import annotations

import json

import anyio
import httpx

__all__ = ["ask", "ask_at_once", "client"]

_BODY = {"messages": [{"role": "user", "content": "x"}], "stream": True}


def client() -> httpx.AsyncClient:
    """Return a client with the default limits; without any for time, and without TLS's set-up."""
    return httpx.AsyncClient(timeout=None, verify=False, trust_env=False)


async def ask(http: httpx.AsyncClient, url: str) -> str:
    """Return the text of one streamed response."""
    words: list[str] = []
    async with http.stream("POST", url, json=_BODY) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                break
            word = json.loads(line[6:])["choices"][0]["delta"].get("content")
            if word:
                words.append(word)
    return "".join(words)


async def ask_at_once(number: int, url: str, clients: int = 1) -> list[str]:
    """Ask *number* times at once, through so many clients."""
    texts: list[str] = []

    async def child(http: httpx.AsyncClient) -> None:
        texts.append(await ask(http, url))

    pool = [client() for _ in range(clients)]
    async with anyio.create_task_group() as group:
        for key in range(number):
            group.start_soon(child, pool[key % clients])
    for http in pool:
        await http.aclose()
    return texts
