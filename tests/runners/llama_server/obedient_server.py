"""A model server that does what the last message says: ``say TEXT``, or ``long``; else it repeats.

A program of its own, so that what it needs is not taken for something that a client left behind.
It writes its URL to stdout, and ends with its stdin.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers every POST as a chat completion that is streamed."""

    def do_POST(self) -> None:
        """Say what was asked for."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = asked["messages"][-1]["content"]
        texts = (
            [f"{n:5}" for n in range(100)] if prompt == "long" else [prompt.removeprefix("say ")]
        )
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for text in texts:
            self.frame({"choices": [{"delta": {"content": text}}]})
            if len(texts) > 1:
                time.sleep(0.001)  # a moment in which it can be cancelled
        self.frame({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 1, "completion_tokens": len(texts), "total_tokens": 1}
        self.frame({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def frame(self, data: dict[str, Any]) -> None:
        """Send one event."""
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


class Server(ThreadingHTTPServer):
    """A client that goes away in the middle is what is tested."""

    def handle_error(self, *_: object) -> None:
        """Say nothing of it."""


def main() -> None:
    """Serve until stdin ends."""
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
