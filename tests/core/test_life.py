"""A child's life: how it ends whatever its runner raises, and what is kept of it afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import anyio
import pytest

from gofer import Host, Run, Runner, RunnerError, SubagentResult, SubagentSpec

INTERRUPTED = """
import sys
import anyio
import gofer
from anyio.lowlevel import checkpoint

backend, observed, when = sys.argv[1:]


class Interrupted(gofer.Runner):
    name = "interrupted"
    observed = observed == "observed"

    async def run(self, spec, run):
        if spec.task == "below":
            await anyio.sleep_forever()
        if when == "later":
            await checkpoint()
        if when == "with children":
            await run.host.spawn(gofer.SubagentSpec(task="below"), turn=run._life.new_turn())
            await checkpoint()
        if when == "in a group":
            raise BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError()])
        raise KeyboardInterrupt


async def main():
    config = {"default_runner": "interrupted", "max_depth": 2}
    async with gofer.Host([Interrupted()], config, discover=False) as host:
        await host.run(gofer.SubagentSpec(task="x"))


def interrupts(error):
    while isinstance(error, BaseExceptionGroup):
        error = (error.subgroup(KeyboardInterrupt) or error).exceptions[0]
    return isinstance(error, KeyboardInterrupt)


try:
    anyio.run(main, backend=backend)
except BaseException as error:
    print("interrupted" if interrupts(error) else repr(error))
"""


@pytest.mark.parametrize("when", ["at once", "later", "with children", "in a group"])
@pytest.mark.parametrize("observed", ["observed", "not observed"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_interrupt_in_a_runner_ends_the_program(backend: str, observed: str, when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, backend, observed, when],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "interrupted\n", done.stderr


class Held:
    """What a run holds on to."""

    def cancel(self) -> None: ...


class Keeping(Runner):
    """Leaves with its Run what only the run needs."""

    name = "keeping"

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.held: weakref.ref[Held] | None = None

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        held = Held()
        self.held = weakref.ref(held)
        run.on_cancel(held.cancel)
        self.runs.append(run)
        assert not run.cancel_requested.is_set()
        return run.result(spec.task)


@pytest.mark.anyio
async def test_what_only_the_run_needed_goes_with_it() -> None:
    runner = Keeping()
    async with Host([runner], discover=False) as host:
        child = await host.spawn(SubagentSpec(task="x", runner="keeping"))
        with anyio.fail_after(5):
            assert (await child.wait()).summary == "x"
        gc.collect()
        assert runner.held is not None
        assert runner.held() is None
        # A runner may keep its Run: it holds nothing for it either, and makes nothing more of it.
        (run,) = runner.runs
        late = Held()
        run.on_cancel(late.cancel)
        with pytest.raises(RunnerError, match="has its result already"):
            run.result("y")
        gone = weakref.ref(late)
        del late
        gc.collect()
        assert gone() is None
        child.cancel()
        assert child.result is not None
        assert child.result.summary == "x"
