"""The program ``gofer``; ``python -m gofer`` is the same."""

from __future__ import annotations

import gc
import os
import sys

from ._cli_plain import read

__all__ = ["main"]

_OBJECTS = 100_000
"""How many more objects there have to be before garbage is looked for."""


def main() -> None:
    """Do what the process was started for, and exit with the code for that."""
    # What is loaded stays, and searching it for garbage, again and at the end, would take a sixth
    # of the time of a short run.
    gc.set_threshold(_OBJECTS)
    try:
        asked = read(sys.argv[1:], os.environ)
        if asked is not None:
            from ._cli_begin import begin_plain

            begin_plain(asked)
        from .cli import main as any_other

        any_other()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
