"""How the supervisor's program is started: early, while gofer loads what it needs itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Launched", "early"]

_SOURCES = Path(__file__).parents[1]
_PROGRAM = """\
import sys
sys.path.append(sys.argv.pop(1))
from gofer._supervisor import main
main()
"""


class Launched:
    """The program of ``_supervisor``, and gofer's end of the channel to it.

    :raises OSError: it cannot be started.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            parent = os.pidfd_open(os.getpid())
        except OSError:
            parent = -1  # the end of the control socket has to do
        numbers = [theirs.fileno(), parent]
        try:
            self.program = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_SOURCES), *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[fd for fd in numbers if fd >= 0],
                start_new_session=True,
                cwd="/",
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if parent >= 0:
                os.close(parent)
        ours.setblocking(False)
        self.control = ours

    def hang_up(self) -> None:
        """Close the channel: the program ends, with all that it still has."""
        # Where gofer was forked, a copy of it is open elsewhere: closing it would tell nobody.
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()

    def kill(self) -> None:
        """Kill the program, where it has not ended, and take its status."""
        self.hang_up()
        self.program.kill()
        self.program.wait()


@contextmanager
def early(wanted: bool) -> Iterator[Launched | None]:
    """Start the program, if it is *wanted*, before the parts of gofer that use it are loaded.

    A ``Supervisor`` that took it over has ended it when the block is left; else it ends then.
    """
    launched: Launched | None = None
    if wanted and sys.platform == "linux":
        with suppress(OSError):  # who needs it tries again, and tells
            launched = Launched()
    try:
        yield launched
    finally:
        if launched is not None and launched.program.returncode is None:
            launched.kill()
