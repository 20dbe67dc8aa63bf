"""An installed runner under the conformance kit, in a process of its own: the program of it.

Who starts it is in ``_certify``. It reads one order, a line of JSON, from stdin, and writes an
answer to each question, a line of JSON too, to what was its stdout.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio

from .._discovery import RUNNERS, Found, configured, find, load
from ..config import Config, load_config
from ..errors import GoferError, PluginNotSupportedError
from ..host import Host
from ..runner import Runner
from ..subagents import SubagentSpec
from ._kit import Kit
from ._subject import Subject
from .report import judge
from .rules import RULES

__all__ = ["installed", "main"]


class Installed(Subject):
    """What is installed under a name, with its settings, in a Host that finds what else there is.

    No plugins of others are in that Host: what they do is not the runner's.
    """

    discover = True
    _order: dict[str, Any]
    _config: Config
    _factory: Any

    def make_runner(self) -> Runner:
        """Return a new one; where the entry point is an object, that."""
        made = self._factory
        if isinstance(made, type):
            made = configured(made, self._config, "runners", self._order["runner"])
        return made  # type: ignore[no-any-return]

    def config(self) -> Config:
        """Return the settings that hold here."""
        return self._config

    def spec(self, task: str, **fields: Any) -> SubagentSpec:
        """Return a spec with the agent and the options that were asked for."""
        spec = super().spec(task, **fields)
        options = {**self._order["options"], **spec.options}
        return spec.model_copy(
            update={"options": options, "agent": spec.agent or self._order["agent"]}
        )


def installed(order: dict[str, Any]) -> Installed:
    """Return the runner that *order* names.

    :raises PluginError: it is not installed, or broken, or refuses a plain task.
    :raises ConfigError: its settings, or others, are wrong.
    """
    name = order["runner"]
    overrides = {key: order[key] for key in ("base_url", "model") if order[key] is not None}
    config = load_config(Path.cwd(), overrides)
    anyio.run(_check, order, config)
    found = find(config.disable, config.allow, groups=(RUNNERS,))
    usable = [entry for entry in found if entry.info.status == "available"]
    entry = next(entry for entry in usable if entry.info.name == name)
    # Once more, with the runners alone.
    allow = [f"{one.info.distribution}:{one.info.name}" for one in usable]
    kind: Any = Installed
    if order["tasks"]:
        told = _tasks(order["tasks"])
        kind = type("Installed", (Installed, told), {"capabilities": None})
    subject: Installed = kind()
    subject._order = order
    subject._config = load_config(Path.cwd(), {**overrides, "allow": allow})
    subject._factory = load(entry)
    for attribute in ("deadline", "leeway"):
        if order[attribute] is not None:
            setattr(subject, attribute, order[attribute])
    return subject


async def _check(order: dict[str, Any], config: Config) -> None:
    async with Host(config=config) as host:
        runner = host.runner(order["runner"])
        if not order["tasks"]:
            # What it lacks for any child, such as the name of an agent, is said once.
            spec = SubagentSpec(
                task="Say hello.",
                runner=order["runner"],
                agent=order["agent"],
                options=order["options"],
            )
            runner.check(spec, host)


def _tasks(place: str) -> type[Subject]:
    """Return the class at *place*, ``FILE.py:CLASS`` or ``MODULE:CLASS``."""
    module_name, _, name = place.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location("gofer_certify_tasks", module_name)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
        found = getattr(module, name)
    except (ImportError, OSError, ValueError, AttributeError) as error:
        raise PluginNotSupportedError(
            f"--tasks {place}: {type(error).__name__}: {error}; FILE.py:CLASS is needed, a "
            "subclass of gofer.testing.RunnerConformance"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Subject)):
        raise PluginNotSupportedError(
            f"--tasks {place}: {name} is no subclass of gofer.testing.RunnerConformance"
        )
    return found


def about(subject: Installed) -> dict[str, Any]:
    """Return what is known of the runner before anything is checked."""
    kit = Kit(subject, "asyncio")
    entry = _entry(subject)
    return {
        "distribution": entry.info.distribution,
        "version": entry.info.version,
        "capabilities": asdict(kit.capabilities),
        "cancel_grace": float(kit.runner.cancel_grace),
        "deadline": subject.deadline,
        "leeway": subject.leeway,
        "backends": list(subject.backends),
    }


def _entry(subject: Installed) -> Found:
    name = subject._order["runner"]
    return next(entry for entry in find(groups=(RUNNERS,)) if entry.info.name == name)


def main(order: dict[str, Any]) -> None:
    """Answer *order*: what the runner is, or what comes of a rule, one event loop after another."""
    answers = os.dup(1)
    # What the runner writes there must not be taken for an answer, nor may it read orders.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def answer(value: dict[str, Any]) -> None:
        data = json.dumps(value).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]

    try:
        subject = installed(order)
    except GoferError as error:
        answer({"refused": str(error)})
    else:
        if order["rule"] is None:
            answer(about(subject))
        for rule in RULES:
            if rule.name == order["rule"]:
                for backend in order["backends"]:
                    answer(asdict(judge(rule, subject, backend, order["examples"])))
    # A thread that the runner has left would keep the interpreter from ending.
    os._exit(0)
