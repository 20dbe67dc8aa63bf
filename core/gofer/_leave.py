"""Exits without taking apart first, piece by piece, what was loaded: that is for nobody."""

from __future__ import annotations

import atexit
import os
import sys
import threading

__all__ = ["leave"]


def leave(code: int) -> None:
    """Exit with *code* as ``sys.exit`` does, but faster; return where that is not to be had.

    It calls what was registered with ``atexit`` and writes what stdout and stderr still hold. Only
    what relies on the garbage collection of the interpreter's last moment, such as a file that
    nobody closed, would notice: to be called where there is none.
    """
    if threading.active_count() > 1:
        return  # the interpreter waits for them
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter tells
    os._exit(code)
