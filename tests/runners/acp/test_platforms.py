"""Elsewhere than on Linux: the runner is there, and says what it lacks."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from .support import bench, say, turn

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("platform", ["darwin", "win32"])
async def test_a_sentence_says_that_agents_need_linux(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(turn(say("x"))) as b:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", platform)
            result = await b.run()
    assert result.stop_reason == "error"
    assert result.error == (
        f"agent processes need Linux for now, not {platform}: "
        "use the llama-server or the internal runner"
    )


def test_it_can_be_imported_where_the_system_has_less() -> None:
    program = """
        import os, signal, sys
        import gofer.host, anyio.to_thread, subprocess
        for name in dir(os):
            if name in ("O_DIRECTORY", "O_NOFOLLOW", "O_PATH", "O_NONBLOCK", "O_CLOEXEC",
                        "pidfd_open", "memfd_create", "fork", "killpg", "setsid", "waitpid",
                        "fchmod", "fchown", "WNOHANG"):
                delattr(os, name)
        for name in ("SIGCHLD", "SIGKILL", "SIGHUP", "pidfd_send_signal", "pthread_sigmask"):
            delattr(signal, name)
        sys.platform = "win32"
        sys.modules["fcntl"] = sys.modules["termios"] = None
        import gofer_runners.acp, gofer.processes, gofer.agents
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
