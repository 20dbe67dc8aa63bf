"""A whole program that has one turn with an agent, and no event loop: JSON over pipes."""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> None:
    """Start the command of the arguments, have a turn, and print what it says."""
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said: list[str] = []
        session = ""
        for method in ("initialize", "session/new", "session/prompt"):
            params = {
                "initialize": {"protocolVersion": 1, "clientCapabilities": {}},
                "session/new": {"cwd": "/", "mcpServers": []},
                "session/prompt": {
                    "sessionId": session,
                    "prompt": [{"type": "text", "text": "go"}],
                },
            }[method]
            message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                heard = json.loads(line)
                if "method" not in heard:
                    session = heard["result"].get("sessionId", session)
                    break
                said.append(heard["params"]["update"]["content"]["text"])
        process.stdin.close()
    print("".join(said))
