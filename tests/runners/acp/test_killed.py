"""gofer killed in the middle of random scripts: a few of those that ``kill_soak.py`` plays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("kill_soak.py")


@pytest.mark.skipif(sys.platform != "linux", reason="supervision is Linux's")
def test_killing_gofer_at_a_random_moment_leaves_no_process() -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--count", "20", "--jobs", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["kills"] == 20
    assert figures["processes left"] == 0
    # It would prove nothing, had there been nothing to leave.
    assert figures["processes below gofer when it was killed"] > 20
    assert figures["killed in the middle of a turn"] > 5
