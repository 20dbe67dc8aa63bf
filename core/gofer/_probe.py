"""Loads one plugin, runner or command, in a process of its own, and tells what came of it.

Who asks is in ``_probing``. The answer is a line of JSON on stdout that begins with a mark;
anything else there was written by the plugin. What ends the process, or takes longer than it may,
gives no answer, and a traceback on stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from contextlib import suppress
from typing import Any

import anyio

from ._discovery import COMMANDS, Found, PluginInfo, told
from .errors import ConfigError, PluginNotSupportedError
from .host import Host

__all__ = ["main"]


def main(order: dict[str, Any]) -> None:
    """Load what *order* names, tell what came of it, and wait for the end."""
    lifeline, stdout, stderr = os.dup(0), os.dup(1), os.dup(2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    # Neither needs any Python to run: one that hangs or crashes tells where.
    faulthandler.enable(stderr)
    faulthandler.dump_traceback_later(order["timeout"], exit=True, file=stderr)
    answer = _load(order)
    faulthandler.cancel_dump_traceback_later()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the plugin may have put anything there
            stream.flush()
    data = f"\n{order['mark']}{json.dumps(answer)}\n".encode()
    while data:
        data = data[os.write(stdout, data) :]
    # Nothing is lost by a process that ends before all is read.
    os.read(lifeline, 1)
    os._exit(0)


def _load(order: dict[str, Any]) -> dict[str, Any]:
    info = PluginInfo(**order["info"], status="available")
    entry = Found(info, order["value"], order["built_in"])
    try:
        if info.group == COMMANDS:
            from ._cli_commands import load_command

            with suppress(PluginNotSupportedError):  # the entry says it
                load_command(entry)
        else:
            anyio.run(_load_in_a_host, entry)
    except BaseException as error:
        # KeyboardInterrupt is nobody's here, as nobody watches this process.
        entry.fail(
            f"loading {entry.value} raised {told(error)}",
            f"Report it to the authors of {info.distribution}",
        )
    return {
        "status": info.status,
        "error": info.error,
        "remedy": info.remedy,
        "hooks": list(info.hooks),
    }


async def _load_in_a_host(entry: Found) -> None:
    async with Host(discover=False, strict=False) as host:
        try:
            host._plugins.take(entry)
        except ConfigError as error:
            entry.fail(str(error), "Correct the setting")
