"""Agents that stop what supervises them: no turn and no end waits long, and nothing is left."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import anyio
import pytest

from gofer import Text
from gofer._proc import descendants

from .support import bench, lives, say, settings, turn

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="supervision is Linux's"),
]

# The shell is the agent's child, the agent the reaper's, and that the supervisor's.
TOOL = """
trap '' TERM HUP
parent() { while read key value; do [ $key = PPid: ] && echo $value; done < /proc/$1/status; }
reaper=$(parent $PPID)
supervisor=$(parent $reaper)
kill -STOP %s
kill -USR1 $PPID
exec sleep 4003
"""
WHOM = ["$reaper", "$supervisor", "$supervisor $reaper"]
THEN: dict[str, list[dict[str, Any]]] = {
    "end_turn": [{"end": "end_turn"}],
    "cancelled": [say("up"), {"wait": "forever"}],
    "error": [{"exit": 3}],
}
CASES = [(whom, then) for whom in WHOM for then in THEN]


@pytest.mark.parametrize(("whom", "stop_reason"), CASES)
async def test_an_agent_that_stops_its_supervisors_ends_with_its_host(
    whom: str, stop_reason: str
) -> None:
    tool = {"start": ["/bin/sh", "-c", TOOL % whom], "session": True}
    steps = [say("one"), tool, {"wait": "client"}, *THEN[stop_reason]]
    script = turn(*steps, options={"ignore_term": True, "ignore_eof": True})
    began = time.monotonic()
    async with bench(agents={"fake": settings(script)}) as b:

        def cancel(chunk: Any) -> None:
            if isinstance(chunk.block, Text) and chunk.block.text == "up":
                seen.update(pid for pid, _ in descendants(os.getpid()))
                for child in b.host.children:
                    child.cancel()

        seen: set[int] = set()
        b.watcher.react = cancel
        with anyio.fail_after(15):
            result = await b.run()
        seen |= {pid for pid, _ in descendants(os.getpid())}
        assert result.stop_reason == stop_reason
        assert result.summary.startswith("one")
    assert time.monotonic() - began < 15
    assert seen
    assert not [pid for pid in seen if lives(pid)]
