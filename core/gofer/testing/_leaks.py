"""What a run may leave behind: tasks, threads, processes, descriptors."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import anyio
import psutil

from ._rule import Broken

__all__ = ["Belongings", "check_tasks", "piled_up", "tasks_now"]

_MARK = "CONFORMANCE_RUN"
_PAUSE = 0.02


def tasks_now() -> set[int]:
    """Return the ids of the tasks that run in this event loop."""
    return {task.id for task in anyio.get_running_tasks()}


async def check_tasks(before: set[int], leeway: float) -> None:
    """Check that no task runs that did not before; one that is about to end may.

    :raises Broken: one does.
    """
    ends = anyio.current_time() + leeway
    while True:
        left = [task for task in anyio.get_running_tasks() if task.id not in before]
        if not left:
            return
        if anyio.current_time() > ends:
            names = ", ".join(sorted(task.name or "a task" for task in left))
            raise Broken(f"its Host has closed, and it left behind the task {names}")
        await anyio.sleep(_PAUSE)


@dataclass(frozen=True)
class Belongings:
    """The threads, processes and descriptors that this process has at one moment."""

    threads: frozenset[threading.Thread]
    processes: frozenset[psutil.Process]
    descriptors: dict[int, str]

    @classmethod
    def now(cls) -> Belongings:
        """Return those there are."""
        return cls(
            frozenset(t for t in threading.enumerate() if not t.name.startswith("Trio thread")),
            frozenset(_processes()),
            _descriptors(),
        )

    def left(self, leeway: float) -> str:
        """Return, in words, what there is now beyond these; what is about to go is given time."""
        ends = time.monotonic() + leeway
        while True:
            later = Belongings.now()
            words = self._beyond(later)
            if not words or time.monotonic() > ends:
                _end(later.processes - self.processes)
                return words
            time.sleep(_PAUSE)

    def grow_again(self, again: Callable[[], None], leeway: float) -> bool:
        """Say whether a second run leaves as much once more: else it was something kept once."""
        first = Belongings.now()
        again()
        return bool(first.left(leeway))

    def _beyond(self, later: Belongings) -> str:
        found = [f"the thread {thread.name!r}" for thread in later.threads - self.threads]
        found += [f"the process {_command(p)}" for p in later.processes - self.processes]
        more = Counter(later.descriptors.values()) - Counter(self.descriptors.values())
        if len(later.descriptors) > len(self.descriptors):
            new = [text for fd, text in later.descriptors.items() if fd not in self.descriptors]
            found += [f"a descriptor of {text}" for text in new or list(more)]
        return ", ".join(found)

    @staticmethod
    @contextmanager
    def marked() -> Iterator[_Mark]:
        """Mark the environment, so that processes are found that nobody is the parent of."""
        mark = uuid.uuid4().hex
        os.environ[_MARK] = mark
        try:
            yield _Mark(mark)
        finally:
            del os.environ[_MARK]
            _end(_marked(mark))


async def piled_up(before: Belongings, tasks: int, count: int, leeway: float) -> str:
    """Return, in words, of what there are *count* more than before; what is about to go may go.

    :param tasks: how many tasks there were.
    """
    ends = anyio.current_time() + leeway
    while True:
        now = Belongings.now()
        more = {
            "tasks": len(tasks_now()) - tasks,
            "threads": len(now.threads - before.threads),
            "processes": len(now.processes - before.processes),
            "descriptors": len(now.descriptors) - len(before.descriptors),
        }
        words = ", ".join(f"{more[kind]} {kind}" for kind in more if more[kind] >= count)
        if not words or anyio.current_time() > ends:
            return words
        await anyio.sleep(_PAUSE)


@dataclass(frozen=True)
class _Mark:
    text: str

    def check(self) -> None:
        """Check that no process lives that was started with the mark.

        :raises Broken: one does.
        """
        left = _marked(self.text)
        if left:
            raise Broken(
                "it left behind, outside of the process's own tree, "
                f"the process {', '.join(map(_command, left))}"
            )


def _processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            # Python's own, which it keeps for its life.
            if not any("resource_tracker" in word for word in process.cmdline()):
                found.append(process)
    return found


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else []:
        with suppress(OSError):
            os.fstat(int(name))  # the one that the listing itself used is gone
            found[int(name)] = _target(name)
    return found


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return "something"


def _command(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "(gone)"
    return f"{process.pid} ({command[:100]})"


def _end(processes: Iterable[psutil.Process]) -> None:
    left = list(processes)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    with suppress(psutil.Error):
        psutil.wait_procs(left, timeout=2)
