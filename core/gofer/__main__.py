"""The program ``gofer``; ``python -m gofer`` is the same."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

_OBJECTS = 100_000
"""How many more objects there have to be before garbage is looked for."""


def main() -> None:
    """Do what the process was started for, and exit with the code for that."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:  # while it loads there is nothing to be ended, and an interrupt can break imports
        signal.signal(signal.SIGINT, _leave)
    # What is loaded stays: searching it for garbage would take a tenth of the time of a short run.
    gc.set_threshold(_OBJECTS)
    from ._cli_plain import read

    try:
        asked = read(sys.argv[1:], os.environ)
        if asked is not None:
            from ._cli_begin import begin_plain

            begin_plain(asked)
        from .cli import main as any_other
    finally:  # who called this may go on
        if heeds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    any_other()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
