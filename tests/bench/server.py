"""A model server that costs as little as it can: raw sockets, and answers written beforehand.

``/<chunks>/<milliseconds>/v1/chat/completions`` answers after that time with so many pieces of
text, each in an HTTP chunk of its own as llama-server sends them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WORD = "word "

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
_PATH = re.compile(rb"POST /(\d+)/(\d+)/")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"connection: close", re.IGNORECASE)


@contextmanager
def running() -> Iterator[str]:
    """Run the server in a process of its own, and give its address."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


@functools.cache
def _answer(chunks: int) -> bytes:
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
    frames = [
        {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in [*([({"content": WORD}, None)] * chunks), ({}, "stop")]
    ]
    events = [f"data: {json.dumps(frame)}\n\n".encode() for frame in frames]
    events.append(b"data: [DONE]\n\n")
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        close = False
        while not close:
            head = await reader.readuntil(b"\r\n\r\n")
            path, length = _PATH.match(head), _LENGTH.search(head)
            assert path is not None
            await reader.readexactly(int(length[1]) if length else 0)
            close = _CLOSE.search(head) is not None
            await asyncio.sleep(int(path[2]) / 1000)
            kept = b"close" if close else b"keep-alive"
            writer.write(_HEAD + b"Connection: " + kept + b"\r\n")
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n" + _answer(int(path[1])))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has what it wanted
    finally:
        writer.close()


async def _main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    async with await asyncio.start_server(_serve, sock=listener, backlog=4096):
        print(listener.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
