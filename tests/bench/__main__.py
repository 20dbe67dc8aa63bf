"""Benchmarks: ``python tests/bench [--only NAME] [--quick]``.

Each row sets gofer beside its floor in the same run; look at the ratios, not at the figures of
one machine. A benchmark is no test: the exit code says only whether all of them ran.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

if __package__:  # python -m tests.bench
    sys.path.insert(0, str(Path(__file__).parent))

import agents
import anyio
import delegation
import discovery
import dispatch
import fan_out
import imports
import internal
import spawn
import streaming
from harness import HEAD

BENCHMARKS = {
    "dispatch": dispatch,
    "streaming": streaming,
    "spawn": spawn,
    "fan_out": fan_out,
    "delegation": delegation,
    "internal": internal,
    "imports": imports,
    "discovery": discovery,
    "agents": agents,
}


def main() -> None:
    """Run what was asked for, and print each row as it comes."""
    parser = argparse.ArgumentParser(prog="python tests/bench", description=__doc__)
    parser.add_argument("--only", choices=BENCHMARKS, action="append", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller numbers")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("GOFER_")]:
        del os.environ[name]
    # Whole processes are measured: an installed package is not compiled anew in each.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_DATA_HOME"] = home
        print(HEAD)
        for name in options.only or BENCHMARKS:
            anyio.run(_show, name, options.quick)


async def _show(name: str, quick: bool) -> None:
    async for row in BENCHMARKS[name].rows(quick):
        print(row, flush=True)


if __name__ == "__main__":
    main()
