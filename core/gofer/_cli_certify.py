"""``gofer certify``: is an installed runner fit to be used?"""

from __future__ import annotations

import json
import textwrap
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._cli_output import write
from .errors import PluginNotSupportedError

if TYPE_CHECKING:
    from .testing.report import Report, Verdict

__all__ = ["certify"]

_SIGNS = {
    "passed": "ok",
    "failed": "FAILED",
    "advised": "advice",
    "not declared": "-",
    "not checked": "?",
}
_WIDTH = 88


def certify(
    runner: Annotated[str, typer.Argument(metavar="RUNNER", help="Its name; see gofer plugins.")],
    agent: Annotated[str | None, typer.Option(help="The agent that each child is on.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of each child; may be repeated."),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="The model server.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name there.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:CLASS",
            help="A RunnerConformance whose methods say what the runner must be asked.",
        ),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="How many cases to try where they are drawn.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds that one run may take.")
    ] = None,
    leeway: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds for an end that should be at once.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="asyncio or trio; by default both.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="Check this rule alone; may be repeated.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="What could not be checked counts as failed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Check that RUNNER does what users of gofer rely on.

    Each rule is checked in a process of its own. Exit codes: 0 every rule holds that must, and
    every rule of a capability that it declares; 1 one does not; 2 there is no such runner, or it
    cannot be loaded.
    """
    if find_spec("hypothesis") is None:
        raise PluginNotSupportedError(
            "the conformance kit is not installed: pip install 'gofer[testing]'"
        )
    import anyio

    from .testing._certify import Order
    from .testing._certify import certify as check

    order = Order(
        runner,
        agent=agent,
        options=_options(option or []),
        base_url=base_url,
        model=model,
        tasks=tasks,
        examples=examples,
        deadline=deadline,
        leeway=leeway,
        backends=backend or (),
        rules=rule or (),
    )
    printer = _Printer()
    report = anyio.run(check, order, (lambda _: None) if as_json else printer.tell)
    unchecked = [verdict for verdict in report.verdicts if verdict.status == "not checked"]
    ok = report.ok and not (strict and unchecked)
    if as_json:
        write(json.dumps({**report.to_json(), "ok": ok}, indent=2))
    else:
        printer.end()
        write("")
        for words in _hint(report):
            write(words)
        write(_sum(report, ok=ok))
    raise typer.Exit(0 if ok else 1)


def _options(given: list[str]) -> dict[str, Any]:
    """Return the options by name; a value that is JSON is what it says, any other is a text."""
    options: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r}: KEY=VALUE is needed", param_hint="--option")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


class _Printer:
    """Prints the verdicts as they come: one line for a rule, on whatever event loops."""

    def __init__(self) -> None:
        self._tier = ""
        self._same: list[Verdict] = []

    def tell(self, verdict: Verdict) -> None:
        """Take the next verdict."""
        if self._same and self._same[0].rule != verdict.rule:
            self.end()
        self._same.append(verdict)

    def end(self) -> None:
        """Print the verdicts of one rule."""
        verdicts, self._same = self._same, []
        if verdicts and verdicts[0].tier != self._tier:
            write(("\n" if self._tier else "") + verdicts[0].tier)
            self._tier = verdicts[0].tier
        said: dict[tuple[str, str], list[Verdict]] = {}
        for verdict in verdicts:
            said.setdefault((verdict.status, verdict.words()), []).append(verdict)
        for same in said.values():
            where = "" if len(same) == len(verdicts) else f" on {same[0].backend}"
            line = f"  {_SIGNS[same[0].status]:<6}  {same[0].rule}{where}"
            if same[0].status == "not declared":
                write(f"{line}: {same[0].message}")
                continue
            write(line)
            for words in same[0].words().splitlines():
                for part in textwrap.wrap(words.strip(), _WIDTH) or [""]:
                    write(f"          {part}")


def _hint(report: Report) -> list[str]:
    """Return what to do about a runner that works on asyncio alone, as one that has to may."""
    failed = {verdict.backend for verdict in report.verdicts if verdict.status == "failed"}
    held = {verdict.backend for verdict in report.verdicts if verdict.status == "passed"}
    if failed != {"trio"} or "asyncio" not in held:
        return []
    words = (
        "Nothing failed on asyncio. If what it drives knows no other event loop, refuse trio in "
        "check() with a sentence, and certify it with --backend asyncio."
    )
    return [*textwrap.wrap(words, _WIDTH + 10), ""]


def _sum(report: Report, *, ok: bool) -> str:
    rules: dict[str, set[str]] = {}
    for verdict in report.verdicts:
        rules.setdefault(verdict.rule, set()).add(verdict.status)
    counts = {
        "hold": sum(status == {"passed"} for status in rules.values()),
        "failed": sum("failed" in status for status in rules.values()),
        "not checked": sum("not checked" in status for status in rules.values()),
        "not declared": sum("not declared" in status for status in rules.values()),
        "advice": sum("advised" in status for status in rules.values()),
    }
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    about = report.about
    whose = f"{report.runner} ({about['distribution']} {about['version']})"
    return f"{whose}: {'fit to be used' if ok else 'NOT fit to be used'}. Rules: {words}"
