"""What the tests of the ACP runner share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail where a test leaves a child process or a descriptor behind."""
    if "rig" in request.fixturenames:  # which outlives the test, and looks itself
        yield
        return
    own = psutil.Process()
    children, fds = len(own.children()), len(os.listdir("/proc/self/fd"))
    yield
    assert len(own.children()) <= children
    assert len(os.listdir("/proc/self/fd")) <= fds + 1
