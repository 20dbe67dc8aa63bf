"""One child for a script or a notebook, without a Host of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal
from pydantic import ValidationError

from ._config_errors import reason
from ._config_sources import dotted
from .config import Config
from .errors import PluginValidationError
from .host import Host
from .subagents import SubagentResult, SubagentSpec

__all__ = ["run"]


def run(
    task: str,
    *,
    agent: str | None = None,
    runner: str | None = None,
    plugins: Sequence[object] = (),
    config: Config | Mapping[str, Any] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    **spec: Any,
) -> SubagentResult:
    """Run one child to its end, in a Host that is opened and closed for it.

    Where an event loop runs already, as in a notebook, the Host gets a thread of its own; the
    call waits for it all the same.

    :param task: the prompt.
    :param agent: the agent, by name; ``runner``: the runner, by name; see :class:`SubagentSpec`.
    :param plugins: further plugins; ``config``: settings; ``cwd``: the directory; see
        :class:`Host`.
    :param spec: further fields of :class:`SubagentSpec`.
    :raises GoferError: the child could not be started. What fails later is in the result.
    """
    try:
        order = SubagentSpec(task=task, agent=agent, runner=runner, **spec)
    except ValidationError as error:
        problem = error.errors()[0]
        field, *below = problem["loc"]
        where = f"SubagentSpec.{dotted(problem['loc'])}"
        why = reason(problem, SubagentSpec)
        if field == "worktree" and not below:
            why += ": say worktree=gofer.WorktreeConfig(path=...)"
        raise PluginValidationError(where, why) from None

    async def main() -> SubagentResult:
        async with Host(plugins, config, cwd=cwd) as host:
            return await host.run(order)

    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:  # no event loop runs in this thread
        return anyio.run(main)
    with start_blocking_portal() as portal:
        future = portal.start_task_soon(main)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
