"""The process of the embedded server: started by ``_embedded``, never imported by anything.

One JSON line on stdin says what to serve, one on stdout where it is served, or why it is not.
From then on stdin is a lifeline: when it closes, whatever became of the parent, this process ends.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any


def main() -> int:
    """Serve until stdin closes; return 1 where nothing can be served."""
    settings = json.loads(sys.stdin.buffer.readline())
    # C++ code may print: what it prints goes to the log, and only the answer to stdout.
    answer = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    parent = _watch_parent(settings["parent"])
    _end_with_stdin()
    try:
        server = _serve(settings)
        said = {"address": server.listening_address}
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    try:
        answer.write(json.dumps(said) + "\n")
        answer.close()
    except OSError:
        return 1  # the parent left while we were loading
    if "error" in said:
        return 1
    _wait_for_end(parent)
    return 0


def _serve(settings: dict[str, Any]) -> Any:
    """Load the model and return the running server."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["file"]
    params.model_alias = {settings["alias"]}
    params.api_keys = [settings["api_key"]]
    params.port = 0
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]  # it is split between the slots
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_ram_mib = 0  # by default up to 8 GiB of old prompts
    params.use_jinja = True
    params.ui = False
    params.verbosity = 2
    if settings["chat_template"] is not None:
        params.chat_template = settings["chat_template"]
    return xllamacpp.Server(params)


def _watch_parent(pid: int) -> int | None:
    """Return a descriptor that becomes readable when *pid* ends, where there are such."""
    # A process that the parent forked may hold the lifeline open after the parent's end.
    if sys.platform != "linux":
        return None
    try:
        watched = os.pidfd_open(pid)
    except OSError:
        return None
    if os.getppid() != pid:
        os._exit(1)
    return watched


def _end_with_stdin() -> None:
    """Have the kernel end this process when stdin closes, where it can."""
    # While it loads, xllamacpp keeps the interpreter's lock: no Python code would notice.
    if sys.platform != "linux":
        return
    import fcntl
    import signal

    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which ends the process
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # closed before this was set
        os._exit(1)


def _wait_for_end(parent: int | None) -> None:
    """Return when stdin is closed or the parent has ended."""
    if parent is not None:
        select.select([0, parent], [], [])
        return
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    code = main()
    os._exit(code)  # no finalizers: the server has no way to stop its threads
