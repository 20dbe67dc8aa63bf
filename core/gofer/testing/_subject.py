"""What the conformance kit must be told of a runner, and may be told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import Config
from ..runner import Capabilities, Runner
from ..subagents import SubagentSpec

__all__ = ["Subject"]


class Subject(ABC):
    """A runner that is to be checked: how it is made, and which tasks make it show something.

    Only :meth:`make_runner` must be there. The methods that return a task know what the kit cannot:
    what *this* runner must be asked so that it does a certain thing. By default they ask in
    plain English, which an agent understands, and what then does not happen is reported as not
    checked; where a subclass defines the task, it must happen.
    """

    capabilities: Capabilities | None = None
    """What the runner can do; None: what it declares itself."""

    backends: tuple[str, ...] = ("asyncio", "trio")
    """The event loops that it works on."""

    max_examples: int = 25
    """How many cases each rule that draws its cases tries, at most."""

    deadline: float = 10.0
    """Seconds that one run may take; a longer one hangs. A rule may take six times as long."""

    leeway: float = 2.0
    """Seconds within which a run that is cancelled, and has no grace left, must have ended."""

    discover: bool = False
    """Whether its Host has what is installed too, or only the runner and :meth:`plugins`."""

    @abstractmethod
    def make_runner(self) -> Runner:
        """Return a new runner."""

    def plugins(self) -> Sequence[object]:
        """Return what else its Host must have: a runner whose model it uses, for example."""
        return ()

    def config(self) -> Mapping[str, Any] | Config:
        """Return the settings of its Host: its agents, for example."""
        return {}

    def spec(self, task: str, **fields: Any) -> SubagentSpec:
        """Return a spec for *task*; add here what every run needs, such as an agent."""
        return SubagentSpec(task=task, **fields)

    def task_that_says(self, text: str) -> str:
        """Return a task whose answer contains *text*, and no other text of such a kind."""
        return f"Answer with exactly these words and nothing else: {text}"

    def task_that_is_long(self) -> str:
        """Return a task whose answer is long (hundreds of characters) and takes a moment."""
        return "Write the whole numbers from 1 to 300 as digits, separated by spaces."

    def task_that_tells_cwd(self) -> str:
        """Return a task whose answer contains the path of the directory that it works in."""
        return "Find out the absolute path of your working directory, and answer with it alone."

    def task_that_calls_a_tool(self) -> tuple[str, str] | None:
        """Return a task that has the runner execute a tool of its own, and that tool's name."""
        return None
