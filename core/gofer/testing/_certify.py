"""Certifying an installed runner: each rule in a process of its own, which is ended in time."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import anyio

from .._own_process import OwnProcess, own_process
from ..errors import PluginNotSupportedError, RunnerError
from ..processes import Supervisor
from ._kit import RULE_RUNS
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

SUPERVISED = sys.platform == "linux"

_START_SECONDS = 60.0
"""How long the interpreter, gofer and the runner may take to be there."""


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
        if SUPERVISED:
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
    """Ask what the runner is.

    :raises PluginNotSupportedError: it is not there, or cannot be loaded.
    """
    answers, why = await _ask(supervisor, order.line(None, ()), 1, _START_SECONDS)
    if not answers:
        raise PluginNotSupportedError(f"runner {order.runner!r} cannot be loaded: {why}")
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
    one = about["deadline"] + about["cancel_grace"] + about["leeway"]
    limit = _START_SECONDS + len(backends) * (RULE_RUNS * about["deadline"] + 3 * one)
    answers, why = await _ask(supervisor, order.line(rule.name, backends), len(backends), limit)
    verdicts = []
    for answer in answers:
        if "refused" in answer:
            why = answer["refused"]
        else:
            verdicts.append(Verdict(**{**answer, "status": Status(answer["status"])}))
    bad = Status.advised if rule.tier is Tier.advice else Status.failed
    for backend in backends[len(verdicts) :]:
        verdicts.append(Verdict(rule.name, rule.tier, backend, bad, why))
    return verdicts


async def _ask(
    supervisor: Supervisor | None, line: bytes, count: int, seconds: float
) -> tuple[list[dict[str, Any]], str]:
    """Give an order to a process of its own; return its answers and, if one is missing, why."""
    answers: list[dict[str, Any]] = []
    argv = [sys.executable, "-P", "-c", _PROGRAM]
    try:
        async with own_process(supervisor, argv, "the runner's process") as process:
            with anyio.move_on_after(seconds) as scope:
                await process.send(line)
                await _receive(process, answers, count)
            if scope.cancelled_caught:
                why = f"it takes more than {seconds:.0f} s, and was ended with all that it started"
            else:
                if len(answers) < count:
                    await process.wait()
                    await process.drained(1.0)
                said = _last_line(process.stderr_tail)
                why = (
                    f"its process ended: {process.exit_text}{said}. A runner must not end the "
                    "interpreter"
                )
    except (RunnerError, OSError, anyio.BrokenResourceError) as error:
        why = f"no process could be started for it: {error or type(error).__name__}"
    return answers, why


async def _receive(process: OwnProcess, answers: list[dict[str, Any]], count: int) -> None:
    """Read so many answers of a process, or until it ends."""
    unread = b""
    while len(answers) < count and (data := await process.receive()):
        *lines, unread = (unread + data).split(b"\n")
        answers += map(json.loads, lines)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f"; its last words were: {lines[-1][:300]}" if lines else ""
