"""Certifying an installed runner: each rule in a process of its own, which is ended in time."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import anyio

from .._own_process import OwnProcess, own_process
from ..errors import PluginNotSupportedError, RunnerError
from ..processes import Supervisor
from ._rule import Rule, Tier
from .report import Report, Status, Verdict

__all__ = ["Order", "certify"]

_PROGRAM = """
import json, sys
order = json.loads(sys.stdin.buffer.readline())
sys.path[:] = order["path"]
from gofer.testing._installed import main
main(order)
"""

_START_SECONDS = 60.0
"""How long the interpreter, gofer and the runner may take to be there."""

_RUNS = 6


@dataclass(frozen=True)
class Order:
    """What is to be certified, and how.

    :param tasks: ``FILE.py:CLASS`` or ``MODULE:CLASS``, a RunnerConformance with the tasks.
    :param backends: the event loops; empty: those of the class with the tasks, else both.
    :param rules: the names of the rules; empty: all.
    """

    runner: str
    agent: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    base_url: str | None = None
    model: str | None = None
    tasks: str | None = None
    examples: int | None = None
    deadline: float | None = None
    leeway: float | None = None
    backends: Sequence[str] = ()
    rules: Sequence[str] = ()

    def line(self, rule: str | None, backends: Sequence[str]) -> bytes:
        """Return the order of one process."""
        order = {**vars(self), "rule": rule, "backends": list(backends), "path": sys.path}
        return json.dumps(order, default=list).encode() + b"\n"


async def certify(order: Order, tell: Callable[[Verdict], None] = lambda _: None) -> Report:
    """Check an installed runner against the rules.

    :param tell: is given each verdict, in the order of the rules, as soon as it can be.
    :raises PluginNotSupportedError: there is no such runner, rule or event loop, or it is broken.
    """
    from .rules import RULES

    chosen = _chosen(RULES, order.rules)
    async with AsyncExitStack() as stack:
        supervisor = None
        if sys.platform == "linux":
            supervisor = await stack.enter_async_context(Supervisor())
        about = await _about(supervisor, order)
        backends = _backends(order, about)
        report = Report(order.runner, about={**about, **_here()})
        verdicts: dict[str, list[Verdict]] = {}
        waiting = list(chosen)
        places = anyio.CapacityLimiter(max(1, min(4, os.cpu_count() or 1)))

        async def check(rule: Rule) -> None:
            async with places:
                verdicts[rule.name] = await _check(supervisor, order, rule, backends, about)
            while waiting and waiting[0].name in verdicts:
                for verdict in verdicts[waiting.pop(0).name]:
                    report.verdicts.append(verdict)
                    tell(verdict)

        async with anyio.create_task_group() as tasks:
            for rule in chosen:
                tasks.start_soon(check, rule)
    return report


def _chosen(rules: Sequence[Rule], names: Sequence[str]) -> list[Rule]:
    known = {rule.name: rule for rule in rules}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PluginNotSupportedError(
            f"there is no rule {unknown[0]!r}; the rules are: {', '.join(known)}"
        )
    return [rule for rule in rules if not names or rule.name in names]


def _backends(order: Order, about: dict[str, Any]) -> list[str]:
    wanted = list(order.backends or about["backends"])
    for backend in wanted:
        if backend not in ("asyncio", "trio"):
            raise PluginNotSupportedError(f"there is no event loop {backend!r}: asyncio or trio")
    missing = "trio" in wanted and find_spec("trio") is None
    if missing:
        raise PluginNotSupportedError(
            "trio is not installed: pip install 'gofer[testing]', or check on --backend asyncio"
        )
    return wanted


def _here() -> dict[str, str]:
    return {
        "gofer": version("gofer"),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
    }


async def _about(supervisor: Supervisor | None, order: Order) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    async with own_process(supervisor, _argv(), "the runner's process") as process:
        with anyio.move_on_after(_START_SECONDS) as scope:
            await process.send(order.line(None, ()))
            async for answer in _answers(process, 1):
                answers.append(answer)
        if not answers:
            await process.drained(1.0)
            why = f"takes more than {_START_SECONDS:g} s" if scope.cancelled_caught else (
                f"ends the interpreter: {process.exit_text}; {_last_line(process.stderr_tail)}"
            )  # fmt: skip
            raise PluginNotSupportedError(f"loading runner {order.runner!r} {why}")
    if "refused" in answers[0]:
        raise PluginNotSupportedError(answers[0]["refused"])
    return answers[0]


async def _check(
    supervisor: Supervisor | None,
    order: Order,
    rule: Rule,
    backends: Sequence[str],
    about: dict[str, Any],
) -> list[Verdict]:
    if rule.needs is not None and not about["capabilities"][rule.needs]:
        words = f"{rule.needs} is not declared"
        return [Verdict(rule.name, rule.tier, b, Status.not_declared, words) for b in backends]
    verdicts: list[Verdict] = []
    one = about["deadline"] + about["cancel_grace"] + about["leeway"]
    limit = _START_SECONDS + len(backends) * (_RUNS * about["deadline"] + 3 * one)
    why = ""
    try:
        async with own_process(supervisor, _argv(), f"rule {rule.name}") as process:
            with anyio.move_on_after(limit) as scope:
                await process.send(order.line(rule.name, backends))
                async for answer in _answers(process, len(backends)):
                    if "refused" in answer:
                        raise PluginNotSupportedError(answer["refused"])
                    verdicts.append(Verdict(**{**answer, "status": Status(answer["status"])}))
            if scope.cancelled_caught:
                why = f"it did not end within {limit:.0f} s, and was ended with all that it started"
            elif len(verdicts) < len(backends):
                await process.drained(1.0)
                why = (
                    f"the process ended in the middle: {process.exit_text}; "
                    f"{_last_line(process.stderr_tail)}"
                )
    except (RunnerError, OSError, anyio.BrokenResourceError) as error:
        why = f"no process could be started to check it in: {error}"
    bad = Status.advised if rule.tier is Tier.advice else Status.failed
    for backend in backends[len(verdicts) :]:
        verdicts.append(Verdict(rule.name, rule.tier, backend, bad, why))
    return verdicts


def _argv() -> list[str]:
    return [sys.executable, "-P", "-c", _PROGRAM]


async def _answers(process: OwnProcess, count: int) -> AsyncIterator[dict[str, Any]]:
    """Go through so many answers of a process, or until it ends."""
    unread = b""
    while count and (data := await process.receive()):
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            count -= 1
            yield json.loads(line)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
