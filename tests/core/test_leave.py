"""Leaving at once loses nothing that leaving slowly would have kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = """
import atexit, sys
from gofer._leave import leave

class Unseen:
    def __del__(self):
        print("taken apart")

unseen = Unseen()
atexit.register(print, "second")
atexit.register(print, "first")
sys.stdout.write("said\\n")
sys.stderr.write("noted")
"""
WAITS = """
import threading

going = threading.Event()
threading.Thread(target=lambda: going.wait() and print("from a thread")).start()
"""


def ended(code: str, **streams: object) -> subprocess.CompletedProcess[str]:
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        words, text=True, timeout=60, check=False, env=buffered, **given
    )


def test_what_is_to_be_done_at_the_end_is_done_and_nothing_is_taken_apart() -> None:
    done = ended(f"{SAYS}leave(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\nfirst\nsecond\n", "noted")


def test_where_a_thread_still_works_the_interpreter_waits_for_it() -> None:
    done = ended(f"{SAYS}{WAITS}leave(3)\ngoing.set()\nsys.exit(4)")
    expected = ["from a thread", "said", "first", "second", "taken apart"]
    assert done.returncode == 4
    assert sorted(done.stdout.split("\n")[:-1]) == sorted(expected)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_cannot_be_written_is_told_by_the_interpreter() -> None:
    with open("/dev/full", "w") as full:
        done = ended(f"{SAYS}leave(3)", stdout=full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr


def test_closed_streams_are_no_reason_to_stay() -> None:
    done = ended(f"{SAYS}sys.stdout = sys.stderr = None\nleave(3)")
    assert done.returncode == 3
