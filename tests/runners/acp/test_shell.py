"""``gofer run --agent`` from a shell: what is printed, and what a signal leaves behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gofer._config_sources import user_file
from gofer._proc import descendants
from gofer.testing import fake_agent

from .support import lives, say, turn

SECONDS = 30


@pytest.fixture
def gofer(own_settings: Path) -> Any:
    """Return what starts ``gofer run`` with an agent ``fake`` that plays a script."""

    def start(script: dict[str, Any], *options: str) -> subprocess.Popen[str]:
        words = ", ".join(map(json.dumps, fake_agent.command(script)))
        path = user_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"[agents.fake]\ncommand = [{words}]\ncancel_grace = 0.5\nend_grace = 0.2\n"
        )
        return subprocess.Popen(
            [sys.executable, "-m", "gofer", "run", "--agent", "fake", *options, "do it"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_the_final_message_or_the_whole_result(gofer: Any) -> None:
    script = turn(say("first"), {"call": "c"}, say("last"))
    with gofer(script) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert (out, err, process.returncode) == ("last\n", "", 0)
    with gofer(script, "--json") as process:
        out, err = process.communicate(timeout=SECONDS)
    result = json.loads(out)
    assert (result["summary"], result["exit_ok"], process.returncode) == ("last", True, 0)
    assert result["session"]["resumed"] is False


def test_a_failure_and_its_cause(gofer: Any) -> None:
    with gofer(turn(say("part"), {"stderr": "boom\n"}, {"exit": 3})) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert out == "part\n"
    assert "agent fake: it exited with code 3" in err
    assert "boom" in err
    assert process.returncode == 1


def is_tool(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
@pytest.mark.parametrize("heeds", [True, False])
def test_a_signal_ends_it_with_all_that_its_agent_started(
    gofer: Any, number: int, code: int, heeds: bool
) -> None:
    last = {"wait": "cancel" if heeds else "forever"}
    tools = [
        {"start": ["/bin/sleep", "9001"], "session": True},
        {"start": ["/bin/sh", "-c", "(setsid sh -c 'trap \"\" TERM; sleep 9002; sleep 9003' &)"]},
    ]
    with gofer(turn(*tools, say("up"), last, options={"ignore_term": not heeds})) as process:
        below: set[int] = set()
        ends = time.monotonic() + SECONDS
        while sum(is_tool(pid) for pid in below) < 2:
            assert time.monotonic() < ends, below
            assert process.poll() is None, process.communicate()
            below = {pid for pid, _ in descendants(process.pid)}
        process.send_signal(number)
        out, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == code
        if number != signal.SIGKILL:
            assert out == "up\n"
    for pid in below:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            select.select([fd], [], [], SECONDS)
        finally:
            os.close(fd)
    assert not [pid for pid in below if lives(pid)]
