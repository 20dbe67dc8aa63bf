"""What keeps a check from hanging: a thread that watches the event loop, and breaks it."""

from __future__ import annotations

import gc
import math
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import anyio
from anyio.abc import TaskStatus

from ._places import place

__all__ = ["Guard", "Interrupted", "quietly"]

_TICK = 0.05
_HELD = 10
"""How many ticks in a row the loop may stand still. Ticks, not seconds: on a machine that has no
time for the loop, the thread that counts has none either."""

_AGAIN = 20
"""After how many ticks what has not broken is broken again: it may catch even that."""

# One that debuggers, pytest-timeout and event loops leave alone.
_SIGNAL = getattr(signal, "SIGVTALRM", None)


class Interrupted(BaseException):
    """Raised in the main thread, wherever that is, to end what does not end."""


class Guard:
    """Watches one event loop while it runs; a context manager around it.

    ``allow(seconds)`` says how long it may go on from now; then it is broken, if it runs in the
    main thread of a system that has signals. ``broken`` says where it was then; ``held`` where it
    stood still before, if it did.
    """

    def __init__(self) -> None:
        self.broken: str | None = None
        self.held: str | None = None
        self._until = math.inf
        self._beats = 0
        self._beating = False
        self._over = threading.Event()
        self._main = threading.main_thread()
        self._ident = threading.get_ident()
        self._breaks = _SIGNAL is not None and threading.current_thread() is self._main
        self._handler: Any = None
        self._thread = threading.Thread(target=self._watch, name="gofer conformance", daemon=True)

    def __enter__(self) -> Guard:
        if self._breaks:
            assert _SIGNAL is not None
            self._handler = signal.signal(_SIGNAL, self._interrupt)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        while self._thread.is_alive():
            try:
                self._thread.join()
            except Interrupted:
                continue
        if self._breaks:
            assert _SIGNAL is not None
            signal.signal(_SIGNAL, self._handler)

    def allow(self, seconds: float) -> None:
        """Let the loop go on for so long from now."""
        self._until = time.monotonic() + seconds

    async def pulse(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Show that the loop runs, until cancelled; one of its tasks."""
        self._beating = True
        task_status.started()
        try:
            while True:
                self._beats += 1
                await anyio.sleep(_TICK / 2)
        finally:
            self._beating = False

    def _watch(self) -> None:
        seen, still, past = 0, 0, 0
        while not self._over.wait(_TICK):
            still = still + 1 if self._beating and self._beats == seen else 0
            seen = self._beats
            if still >= _HELD and self.held is None:
                self.held = self._place()
            if time.monotonic() > self._until:
                if past % _AGAIN == 0:
                    self._break(blocked=still >= _HELD)
                past += 1

    def _break(self, *, blocked: bool) -> None:
        if self.broken is None:
            self.broken = f"it blocks the event loop at {self._place()}" if blocked else ""
        if self._breaks:
            assert _SIGNAL is not None
            signal.pthread_kill(self._ident, _SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._over.is_set():
            raise Interrupted

    def _place(self) -> str:
        frames = traceback.extract_stack(sys._current_frames().get(self._ident))
        return place(frames) or f"{frames[-1].filename}:{frames[-1].lineno}"


def quietly(function: Callable[[], object]) -> None:
    """Call *function*, and collect what was torn apart, so that nobody hears of it later."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings(action="ignore"):
            function()
            gc.collect()
    finally:
        sys.unraisablehook = hook
