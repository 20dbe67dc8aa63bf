"""A llama.cpp server of our own, in a child process, for as long as a context lasts."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from gofer import ModelError

from . import _weights

__all__ = ["EmbeddedServer", "embedded_server"]

GRACE = 5.0  # seconds for the child to end by itself once its stdin is closed
TAIL = 64 * 1024  # bytes of the child's log that are kept
QUOTED = 2000  # characters of it that an error carries


class EmbeddedServer:
    """A running server: where it is, and what it takes to be answered.

    ``base_url`` ends in ``/v1``; ``model`` is the name that the server gives its model; each
    request needs ``api_key``. ``slots`` requests are answered at once, further ones wait;
    ``context`` is the number of tokens that each slot holds.
    """

    def __init__(self, process: Process, log: _Log, address: str, settings: dict[str, Any]) -> None:
        self._process = process
        self._log = log
        self.base_url: str = f"{address}/v1"
        self.model: str = settings["alias"]
        self.api_key: str = settings["api_key"]
        self.slots: int = settings["slots"]
        self.context: int = settings["context"]
        self.file = Path(settings["file"])

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The process's exit code, minus its signal's number, or None while it runs."""
        return self._process.returncode

    async def failure(self) -> ModelError | None:
        """Return why the server is gone, with the end of its log, or None while it runs."""
        # Its connections break a moment before its end is known.
        with anyio.move_on_after(0.2):
            await self._process.wait()
        if self._process.returncode is None:
            return None
        return await _ended(self._process, self._log, "the embedded llama.cpp server")


@asynccontextmanager
async def embedded_server(
    model_file: Path | None = None,
    *,
    slots: int = 4,
    context: int = 4096,
    threads: int | None = None,
    alias: str | None = None,
    chat_template: Path | None = None,
    startup_timeout: float = 120.0,
) -> AsyncIterator[EmbeddedServer]:
    """Run a llama.cpp server on a free port of the loopback interface.

    The server ends with the context, and also if this process is killed. Without a model file,
    by argument or in ``GOFER_MODEL_FILE``, it serves SmolLM2-135M-Instruct, which is fetched once.

    :param model_file: a GGUF file of the user's own.
    :param slots: how many requests are answered at once.
    :param context: tokens that each slot holds.
    :param threads: for computing; by default half of the processors.
    :param alias: the model's name; by default the file's, or ``smollm2-135m``.
    :param chat_template: a Jinja file in place of the template inside a file of the user's own.
    :param startup_timeout: seconds for the process to start and load the model.
    :raises ModelError: xllamacpp is not installed, there is no such file or it is not a model,
        or the server did not start; the message says what to do.
    """
    _require_xllamacpp()
    file = _weights.own_file(model_file)
    if file is None:
        file = await _weights.default_file()
        alias = alias or "smollm2-135m"
        chat_template = chat_template or Path(__file__).with_name("chat_template.jinja")
    settings = {
        "parent": os.getpid(),
        "file": str(file),
        "alias": alias or file.stem,
        "api_key": secrets.token_urlsafe(24),  # other users of this machine reach the port too
        "slots": slots,
        "context": context,
        "threads": threads or max(1, _processors() // 2),  # more only spin when others compute
        "chat_template": _read(chat_template) if chat_template else None,
    }
    process = await _spawn()
    log = _Log()
    address: str | None = None
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            assert process.stderr is not None
            tasks.start_soon(log.drain, process.stderr)
            try:
                address = await _start(process, log, settings, startup_timeout)
                yield EmbeddedServer(process, log, address, settings)
            except Exception as error:
                failure = error  # raised below, so that no group of exceptions is put around it
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process, graceful=address is not None)
    if failure is not None:
        raise failure


async def _spawn() -> Process:
    # -P: no module of this package's folder can stand in for a library's.
    command = [sys.executable, "-P", str(Path(__file__).with_name("_serve.py"))]
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    try:
        with anyio.CancelScope(shield=True):  # half started, it would be nobody's
            process = await anyio.open_process(
                command, creationflags=flags, start_new_session=sys.platform != "win32"
            )
    except OSError as error:
        raise ModelError(f"the embedded llama.cpp server cannot be started: {error}") from error
    return process


async def _start(process: Process, log: _Log, settings: dict[str, Any], timeout: float) -> str:
    """Tell the child what to serve; return the address once it does."""
    assert process.stdin is not None
    assert process.stdout is not None
    said: dict[str, str] = {}
    with anyio.move_on_after(timeout) as limit:
        try:
            await process.stdin.send(json.dumps(settings).encode() + b"\n")
            line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 65536)
            said = json.loads(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead):
            await process.wait()
    if limit.cancelled_caught:
        raise log.as_error(
            f"the embedded llama.cpp server did not load {settings['file']} within {timeout:g} s;"
            " a smaller model loads faster"
        )
    if "address" in said:
        return said["address"]
    if "error" in said:
        await log.complete()
        raise log.as_error(
            f"the embedded llama.cpp server could not serve {settings['file']}: {said['error']}"
        )
    raise await _ended(
        process, log, f"while it loaded {settings['file']}, the embedded llama.cpp server"
    )


async def _end(process: Process, graceful: bool) -> None:
    """End the child and close what leads to it."""
    assert process.stdin is not None
    await process.stdin.aclose()
    if graceful:
        with anyio.move_on_after(GRACE):
            await process.wait()
    for end in (process.terminate, process.kill):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                end()
            with anyio.move_on_after(GRACE):
                await process.wait()
    await process.aclose()


async def _ended(process: Process, log: _Log, who: str) -> ModelError:
    await log.complete()
    code = process.returncode
    assert code is not None
    if code >= 0:
        return log.as_error(f"{who} ended with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return log.as_error(f"{who} was ended by {name}")


class _Log:
    """The end of what the child wrote to stderr."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._complete = anyio.Event()

    async def drain(self, stream: ByteReceiveStream) -> None:
        try:
            async for data in stream:
                self._kept += data
                del self._kept[:-TAIL]
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self._complete.set()

    async def complete(self) -> None:
        """Wait until the child's last words are here, if they come soon."""
        with anyio.move_on_after(1):
            await self._complete.wait()

    def as_error(self, message: str) -> ModelError:
        text = self._kept.decode(errors="replace").strip()
        quoted = text[-QUOTED:]
        return ModelError(f"{message}\n{quoted}" if quoted else message, body=text or None)


def _require_xllamacpp() -> None:
    """Raise ModelError, with what to do, where xllamacpp is not installed."""
    if importlib.util.find_spec("xllamacpp") is not None:
        return
    if reason := _no_wheel():
        raise ModelError(
            f"the embedded llama.cpp server is not to be had {reason}: start a server of your own"
            " and set GOFER_BASE_URL to its address"
        )
    raise ModelError(
        "no model server: install the embedded one with: pip install 'gofer[local]', or set"
        " GOFER_BASE_URL to the address of a server"
    )


def _no_wheel() -> str | None:
    """Say for what of this platform xllamacpp has no wheel, or return None."""
    machine = platform.machine().lower()
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "for free-threaded Python"
    if sys.platform == "linux" and "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        return "for Linux with musl"
    wanted = {
        "linux": {"x86_64", "aarch64"},
        "darwin": {"x86_64", "arm64"},
        "win32": {"amd64", "x86_64"},
    }
    if machine not in wanted.get(sys.platform, set()):
        return f"for {platform.system()} on {platform.machine()}"
    return None


def _processors() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(template: Path) -> str:
    try:
        return template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the chat template {template} cannot be read: {error}") from error
