"""A model server for loops: each answer calls a tool, until the conversation is long enough.

``/<turns>/<calls>/v1/chat/completions`` answers with that many calls of ``read_file`` until all
turns but the last have had theirs, and with a report then. No call is like another.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

REPORT = "All of it was read."

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_PATH = re.compile(rb"POST /(\d+)/(\d+)/")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)

_RESULT = re.compile(rb'"role": ?"tool"')


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


def _answer(turns: int, calls: int, done: int) -> bytes:
    if done >= (turns - 1) * calls:
        deltas = [({"content": REPORT}, None), ({}, "stop")]
    else:
        deltas = [({"tool_calls": [_call(at, done + at)]}, None) for at in range(calls)]
        deltas.append(({}, "tool_calls"))
    events = [
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': why}]})}\n\n"
        for delta, why in deltas
    ]
    data = [event.encode() for event in (*events, "data: [DONE]\n\n")]
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in data) + b"0\r\n\r\n"


def _call(index: int, number: int) -> dict[str, object]:
    arguments = json.dumps({"path": "a.txt", "line": number + 1})
    function = {"name": "read_file", "arguments": arguments}
    return {"index": index, "id": f"c{number}", "type": "function", "function": function}


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path, length = _PATH.match(head), _LENGTH.search(head)
            assert path is not None
            body = await reader.readexactly(int(length[1]) if length else 0)
            writer.write(_HEAD + _answer(int(path[1]), int(path[2]), len(_RESULT.findall(body))))
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
