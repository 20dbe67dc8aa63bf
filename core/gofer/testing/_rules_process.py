"""Rules on the process that a runner is a guest in: its secrets, its event loop, its stdout."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TextIO

from ..errors import GoferError
from ._kit import Kit, Scene, cut
from ._process_state import ProcessState
from ._rule import Broken, Rule, Tier
from ._rules_results import outcomes
from ._watch import Record

__all__ = ["RULES"]

_SECRETS = (
    "GOFER_API_KEY",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "DATABASE_PASSWORD",
)
_SECRET_NAME = re.compile("KEY|TOKEN|SECRET|PASSWORD")


@contextmanager
def _secrets() -> Iterator[dict[str, str]]:
    """Put secrets into the environment; yield all that are there, by name."""
    added = {name: f"sk-conformance-{name.lower()}" for name in _SECRETS if name not in os.environ}
    os.environ.update(added)
    try:
        yield {
            name: value
            for name, value in os.environ.items()
            if _SECRET_NAME.search(name) and len(value) >= 12
        }
    finally:
        for name in added:
            os.environ.pop(name, None)


def keeps_secrets(kit: Kit) -> None:
    def look(record: Record) -> None:
        said = record.text()
        for name, secret in secrets.items():
            if secret in said:
                raise Broken(f"the value of ${name} is in what it said or returned")

    with _secrets() as secrets:
        outcomes(kit, look)


def leaves_its_spec_alone(kit: Kit) -> None:
    def look(record: Record) -> None:
        if record.changed is not None:
            raise Broken(f"it changed the spec that it was given: {cut(record.changed)}")

    outcomes(kit, look)


async def _ordinary(kit: Kit, word: str = "apricot") -> None:
    async with kit.scene() as scene:
        await _both(kit, scene, word)


async def _both(kit: Kit, scene: Scene, word: str = "apricot") -> None:
    with suppress(GoferError):
        await scene.say(word)
        await scene.run(kit.subject.spec(kit.subject.task_that_is_long()))


def leaves_the_event_loop_free(kit: Kit) -> None:
    # What is imported at the first use is imported now: that takes its time once.
    kit.once(partial(_ordinary, kit))
    kit.once(partial(_ordinary, kit, "sorrel"))
    if kit.held is not None:
        raise Broken(
            f"it held up the event loop for half a second or more, at {kit.held}: let a thread do "
            "what takes long, by anyio.to_thread.run_sync; in a long loop, await "
            "anyio.lowlevel.checkpoint() now and then"
        )


def leaves_the_process_alone(kit: Kit) -> None:
    changes: list[str] = []

    async def check() -> None:
        before = ProcessState.now()

        def compare() -> None:
            changes.extend(before.changes(ProcessState.now()))

        async with kit.scene(at_each_step=compare) as scene:
            await _both(kit, scene)
            compare()

    # What an import does to the process is not done at every run.
    kit.once(partial(_ordinary, kit))
    kit.once(check)
    if changes:
        raise Broken(f"{changes[0]}, and other code in the process relies on it")


@contextmanager
def _stdout() -> Iterator[TextIO]:
    """Send what is written to stdout, by this process and those it starts, to a file."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        python, saved = sys.stdout, None
        with suppress(OSError, ValueError):
            python.flush()
        with suppress(OSError):
            saved = os.dup(1)
            os.dup2(file.fileno(), 1)
        sys.stdout = file
        try:
            yield file
        finally:
            sys.stdout = python
            if saved is not None:
                os.dup2(saved, 1)
                os.close(saved)


def writes_nothing_to_stdout(kit: Kit) -> None:
    with _stdout() as file:
        kit.once(partial(_ordinary, kit))
        file.flush()
        file.seek(0)
        written = file.read()
    if written:
        raise Broken(
            f"it wrote to stdout: {cut(written, 100)!r}. That belongs to the program: use logging, "
            "and give a process its own pipe"
        )


RULES = (
    Rule("keeps_secrets", Tier.must,
         "No value of the environment that looks like a secret gets into a block, a result or "
         "an error.",
         keeps_secrets),
    Rule("leaves_its_spec_alone", Tier.must,
         "It does not change the spec that it was given.",
         leaves_its_spec_alone),
    Rule("leaves_the_event_loop_free", Tier.must,
         "It never holds up the event loop for half a second.",
         leaves_the_event_loop_free),
    Rule("leaves_the_process_alone", Tier.must,
         "Working directory, environment, umask, signal handlers, standard streams and the root "
         "logger stay as they are, while it runs too.",
         leaves_the_process_alone),
    Rule("writes_nothing_to_stdout", Tier.must,
         "Neither it nor a process that it starts writes to stdout.",
         writes_nothing_to_stdout),
)  # fmt: skip
