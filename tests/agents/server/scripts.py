"""What the model does: a task names one of these scripts, as ``[[name]]`` or ``[[name: detail]]``.

The last one named counts. All but the first words of a script that calls tools depend on how many
results came back since, so that a script plays on over several requests.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .tools import Call, Offered, call_shell, call_write, example

__all__ = [
    "ANSWER",
    "FIRST",
    "LAST",
    "SCRIPTS",
    "THOUGHT",
    "Conversation",
    "Failure",
    "Reply",
    "Said",
    "play",
]

ANSWER = ("The answer ", "of the ", "scripted model ", "is forty-two.")
THOUGHT = ("Six times ", "seven, so.")
FIRST = ("Before that, ", "a tool.")
SECOND = ("And now ", "a second one.")
LAST = ("All is done ", "and this ", "is the report.")
TITLE = ("A title",)

MARK = re.compile(r"\[\[([a-z0-9-]+)(?:: (.*?))?\]\]", re.S)


@dataclass(frozen=True)
class Said:
    """One message of a request, whatever the format; *result* if it brings a tool's."""

    role: str
    text: str
    result: bool = False


@dataclass(frozen=True)
class Conversation:
    """What a model is asked: messages, tools, and the schema that the answer shall have."""

    messages: Sequence[Said]
    tools: Sequence[Offered] = ()
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Reply:
    """What the model says, and how it ends.

    :param pause: seconds between two pieces of text.
    :param end: whether the reply ends as it should; ``drop`` cuts the connection after the text,
        ``hang`` leaves it open and silent.
    """

    text: Iterable[str] = ANSWER
    thought: Sequence[str] = ()
    call: Call | None = None
    stop: Literal["done", "length", "refusal"] = "done"
    pause: float = 0.0
    end: Literal["whole", "drop", "hang"] = "whole"


@dataclass(frozen=True)
class Failure:
    """An HTTP status instead of a reply."""

    status: int


@dataclass(frozen=True)
class _Turn:
    """Where a script stands: its detail, the tools, and the results that came so far."""

    detail: str = ""
    tools: Sequence[Offered] = field(default=())
    results: int = 0


Script = Callable[[_Turn], Reply | Failure]


def _always(reply: Reply | Failure) -> Script:
    return lambda turn: reply


def _no_tool(turn: _Turn) -> Reply:
    return Reply(text=["No such tool among ", ", ".join(tool.name for tool in turn.tools)])


def _shell(turn: _Turn, rounds: int = 1, command: str = "") -> Reply:
    """Run the command that the task names, that many times, and report."""
    if turn.results >= rounds:
        return Reply(text=LAST)
    call = call_shell(turn.tools, command or turn.detail or "echo from the shell")
    if call is None:
        return _no_tool(turn)
    return Reply(text=FIRST if turn.results == 0 else SECOND, call=call)


def _write(turn: _Turn) -> Reply:
    """Write the file that the task names, by its whole path, and report."""
    if turn.results:
        return Reply(text=LAST)
    call = call_write(turn.tools, turn.detail, "written by the model\n")
    return Reply(text=FIRST, call=call) if call else _no_tool(turn)


def _slow(turn: _Turn) -> Reply:
    """Say a word every tenth of a second, until somebody hangs up."""
    return Reply(text=(f"word {number} " for number in itertools.count()), pause=0.1)


def _large(turn: _Turn) -> Reply:
    """Say a megabyte, in which nothing repeats: some agents stop a model that repeats itself."""
    lines = (f"{number:x} {number * 7919:x} {number * 104729:b}\n" for number in range(30_000))
    return Reply(text=["".join(itertools.islice(lines, 200)) for _ in range(150)])


SCRIPTS: dict[str, Script] = {
    "answer": _always(Reply()),
    "think": _always(Reply(thought=THOUGHT)),
    "shell": _shell,
    "shell-twice": lambda turn: _shell(turn, rounds=2),
    "write": _write,
    "slow": _slow,
    "hang": _always(Reply(text=(), end="hang")),
    "stall": _always(Reply(text=ANSWER[:2], end="hang")),
    "slow-shell": lambda turn: _shell(turn, command=f"{turn.detail or 'true'}; sleep 300"),
    "large": _large,
    "large-shell": lambda turn: _shell(turn, command="seq 150000"),
    "empty": _always(Reply(text=())),
    "length": _always(Reply(stop="length")),
    "refusal": _always(Reply(text=ANSWER[:1], stop="refusal")),
    "drop": _always(Reply(text=ANSWER[:2], end="drop")),
    **{f"http-{status}": _always(Failure(status)) for status in (400, 401, 429, 500)},
}


def play(asked: Conversation) -> Reply | Failure:
    """Return what the model does now."""
    # Without tools it is a question of the agent's own, such as for a title.
    if not asked.tools:
        return Reply(text=[json.dumps(example(asked.schema))] if asked.schema else TITLE)
    name, detail, since = "answer", "", 0
    for place, message in enumerate(asked.messages):
        if message.role == "user" and (found := MARK.findall(message.text)):
            name, detail = found[-1]
            since = place + 1
    if name not in SCRIPTS:
        return Reply(text=[f"no script {name}; there are ", ", ".join(SCRIPTS)])
    results = sum(message.result for message in asked.messages[since:])
    return SCRIPTS[name](_Turn(detail, asked.tools, results))
