"""Runners that are right but for one thing: at least one for each rule of the conformance kit."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import anyio
import sniffio
import trio

from gofer import (
    Capabilities,
    GoferError,
    PluginValidationError,
    Run,
    RunnerError,
    SessionInfo,
    SubagentResult,
    SubagentSpec,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    hookimpl,
)

from .right import ALL, Right, Sessions

__all__ = ["HANGS", "WRONG", "clean_up"]

W = TypeVar("W", bound=type[Right])

WRONG: dict[type[Right], str] = {}
"""Each wrong runner, and the rule that it breaks."""

HANGS: set[type[Right]] = set()
"""Those that make the kit wait until its deadline."""

_left: list[Callable[[], object]] = []


def clean_up() -> None:
    """End what wrong runners have left."""
    while _left:
        _left.pop()()


def breaks(rule: str) -> Callable[[W], W]:
    def mark(runner: W) -> W:
        WRONG[runner] = rule
        return runner

    return mark


def hangs(runner: W) -> W:
    runner.cancel_grace = 0.0
    runner.capabilities = replace(ALL, cancels=False)  # type: ignore[misc]
    HANGS.add(runner)
    return runner


class Mended(Right):
    """Says the same, and changes the result afterwards."""

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        result = await super().run(spec, run)
        return result.model_copy(update=self.update(run, result))

    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {}


# What comes of a run


@breaks("is_a_runner")
class HasANegativeGrace(Right):
    cancel_grace = -1.0
    capabilities = replace(ALL, cancels=False)


@breaks("does_an_ordinary_task")
class RefusesEverything(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"stop_reason": "refusal"} if run.prompt.startswith("say") else {}


@breaks("does_an_ordinary_task")
class SaysSomethingElse(Right):
    async def say(self, run: Run, text: str) -> None:
        await super().say(run, text.replace("apricot", "apple"))


@breaks("does_an_ordinary_task")
class ForgetsToAwait(Right):
    async def say(self, run: Run, text: str) -> None:
        await super().say(run, text)
        run.emit(Text(text="and more"))  # type: ignore[unused-coroutine]


class AtNul(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if "\0" in run.prompt:
            await self.at_nul()
        return await super().run(spec, run)

    async def at_nul(self) -> None:
        raise ValueError("embedded null byte")


@breaks("answers_any_task")
class RaisesAtNul(AtNul):
    pass


@breaks("answers_any_task")
class RaisesAtNulBeforeItRuns(Right):
    def run(self, spec: SubagentSpec, run: Run) -> Awaitable[SubagentResult]:  # type: ignore[override]
        if "\0" in run.prompt:
            raise ValueError("embedded null byte")
        return super().run(spec, run)


@breaks("answers_any_task")
@hangs
class HangsAtNul(AtNul):
    async def at_nul(self) -> None:
        await anyio.sleep_forever()


@breaks("answers_any_task")
@hangs
class HangsAtNulForGood(AtNul):
    async def at_nul(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()


@breaks("answers_any_task")
@hangs
class BlocksAtNul(AtNul):
    async def at_nul(self) -> None:
        threading.Event().wait()


@breaks("answers_any_task")
class ExitsAtHuge(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if len(run.prompt) > 131_072:
            sys.exit("argument list too long")
        return await super().run(spec, run)


@breaks("answers_any_task")
class RaisesAtABlankPrompt(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        _ = run.prompt.split()[0]
        return await super().run(spec, run)


@breaks("answers_any_spec")
class RaisesAtAnAgent(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if spec.agent:
            raise KeyError(spec.agent)
        return await super().run(spec, run)


@breaks("answers_any_spec")
class ChecksBadly(Right):
    def check(self, spec: SubagentSpec, host: object) -> None:
        assert not spec.name


@breaks("names_its_child")
class NamesAnother(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"subagent_id": "sub-99"}


@breaks("result_is_well_formed")
class CountsBackwards(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"usage": Usage(input_tokens=-1)}


@breaks("result_is_well_formed")
class ReturnsADict(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        result: Any = await super().run(spec, run)
        return dict(result) if result.stop_reason == "cancelled" else result


@breaks("result_agrees_with_itself")
class IsFineWhenCancelled(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"exit_ok": True}


@breaks("result_agrees_with_itself")
class GivesABlankStopReason(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"stop_reason": " "} if result.stop_reason == "cancelled" else {}


# Blocks


class EmitsMore(Right):
    async def say(self, run: Run, text: str) -> None:
        await self.more(run)
        await super().say(run, text)

    async def more(self, run: Run) -> None:
        raise NotImplementedError


@breaks("blocks_are_well_formed")
class EmitsBlankIds(EmitsMore):
    async def more(self, run: Run) -> None:
        await run.emit(ToolCall(id=" ", name="look"))
        await run.emit(ToolResult(tool_call_id=" ", output=""))


@breaks("blocks_are_well_formed")
class EmitsSurrogates(Right):
    async def work(self, spec: SubagentSpec, run: Run) -> None:
        if run.prompt == "long":
            await run.emit(Text.model_construct(text="a \ud800 b "))
        await super().work(spec, run)


@breaks("blocks_are_well_formed")
class ChangesBlocks(EmitsMore):
    async def more(self, run: Run) -> None:
        call = ToolCall(id="1", name="look", arguments={})
        await run.emit(call)
        call.arguments["at"] = "it"
        await run.emit(ToolResult(tool_call_id="1", output=""))


@breaks("calls_have_their_results")
class LeavesCallsOpen(EmitsMore):
    async def more(self, run: Run) -> None:
        await run.emit(ToolCall(id="1", name="look"))


@breaks("calls_have_their_results")
class AnswersFirst(EmitsMore):
    async def more(self, run: Run) -> None:
        await run.emit(ToolResult(tool_call_id="1", output=""))
        await run.emit(ToolCall(id="1", name="look"))


@breaks("calls_have_their_results")
class AnswersTwice(EmitsMore):
    async def more(self, run: Run) -> None:
        await run.emit(ToolCall(id="1", name="look"))
        await run.emit(ToolResult(tool_call_id="1", output="1"))
        await run.emit(ToolResult(tool_call_id="1", output="2"))


@breaks("nothing_comes_after_the_end")
class SpeaksInTheLastRun(EmitsMore):
    last: Run | None = None

    async def more(self, run: Run) -> None:
        last, self.last = self.last, run
        if last is not None:
            with suppress(GoferError):
                await last.emit(Text(text="One thing more."))


@breaks("keeps_to_what_hooks_left")
class KeepsItsOwnText(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        said = run.prompt.removeprefix("say ")
        return {"summary": said} if said != run.prompt else {}


@breaks("works_on_the_prompt_that_hooks_left")
class ReadsTheSpec(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if run.prompt.strip():
            run.prompt = spec.task
        return await super().run(spec, run)


@breaks("a_refused_block_ends_the_run")
class BearsRefusals(Right):
    async def work(self, spec: SubagentSpec, run: Run) -> None:
        if run.prompt != "long":
            await super().work(spec, run)
        for number in range(100) if run.prompt == "long" else ():
            await anyio.lowlevel.checkpoint()
            with suppress(GoferError):
                await run.emit(Text(text=f"{number:5}"))


@breaks("a_refused_block_ends_the_run")
class SaysNotWhy(Right):
    async def work(self, spec: SubagentSpec, run: Run) -> None:
        try:
            await super().work(spec, run)
        except GoferError:
            raise RunnerError("something went wrong") from None


# Cancellation


class CleansUp(Right):
    cancel_grace = 0.0
    capabilities = replace(ALL, cancels=False)

    async def work(self, spec: SubagentSpec, run: Run) -> None:
        try:
            await super().work(spec, run)
            if spec.timeout is not None:
                await anyio.sleep_forever()
        finally:
            if run.cancel_requested.is_set():
                with anyio.CancelScope(shield=True):
                    await self.clean_up(spec)

    async def clean_up(self, spec: SubagentSpec) -> None:
        raise NotImplementedError


@breaks("cancelling_ends_it")
class CleansUpForLong(CleansUp):
    async def clean_up(self, spec: SubagentSpec) -> None:
        if spec.timeout is None:
            await anyio.sleep(0.35)


@breaks("a_time_limit_ends_it")
class TakesItsTime(CleansUp):
    async def clean_up(self, spec: SubagentSpec) -> None:
        if spec.timeout is not None:
            await anyio.sleep(0.35)


@breaks("cancelling_ends_it")
class RaisesWhenCancelled(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        result = await super().run(spec, run)
        if result.stop_reason == "cancelled" and run.prompt == "long":
            raise InterruptedError("SIGTERM")
        return result


@breaks("cancelling_keeps_what_was_written")
class LosesItWhenCancelled(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"summary": ""} if result.stop_reason == "cancelled" else {}


@breaks("works_on_after_a_cancellation")
class StaysCancelled(Right):
    spoilt = False

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if self.spoilt:
            raise RunnerError("the connection is closed")
        result = await super().run(spec, run)
        self.spoilt = result.stop_reason == "cancelled"
        return result


class Leaves(EmitsMore):
    """Leaves something behind, once in a Host: for each child it would pile up as well."""

    left = False

    async def more(self, run: Run) -> None:
        if not self.left:
            self.left = True
            await self.leave(run)

    async def leave(self, run: Run) -> None:
        raise NotImplementedError


@breaks("leaves_nothing_behind")
class LeavesATask(Leaves):
    async def leave(self, run: Run) -> None:
        if sniffio.current_async_library() == "trio":
            trio.lowlevel.spawn_system_task(trio.sleep_forever)
        else:
            task = asyncio.create_task(asyncio.sleep(1000))
            _left.append(lambda: task)


@breaks("leaves_nothing_behind")
class LeavesAThread(Leaves):
    async def leave(self, run: Run) -> None:
        end = threading.Event()
        threading.Thread(target=end.wait, daemon=True).start()
        _left.append(end.set)


@breaks("leaves_nothing_behind")
class LeavesADescriptor(Leaves):
    async def leave(self, run: Run) -> None:
        number = os.open(os.devnull, os.O_RDONLY)
        _left.append(lambda: os.close(number))


@breaks("leaves_nothing_behind")
class LeavesAProcess(Leaves):
    async def leave(self, run: Run) -> None:
        process = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
        _left.append(process.wait)
        _left.append(process.kill)


@breaks("leaves_nothing_behind")
class LeavesAnOrphan(Leaves):
    async def leave(self, run: Run) -> None:
        subprocess.run(["sh", "-c", "setsid sleep 5 > /dev/null 2>&1 &"], check=True)  # noqa: ASYNC221


# Children together


@breaks("children_do_not_mix")
class KeepsTextInItself(Right):
    async def say(self, run: Run, text: str) -> None:
        self.text = text
        await anyio.lowlevel.checkpoint()
        await super().say(run, self.text)


@breaks("children_do_not_mix")
class HasOneSession(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"session": SessionInfo(id="right-0")} if run.spec.resume is None else {}


@breaks("a_failure_harms_no_other")
class TakesOthersAlong(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        try:
            return await super().run(spec, run)
        except Exception:
            for child in run.host.children:
                if child.id != run.id:
                    child.cancel()
            raise


@breaks("starts_fresh_in_another_host")
class KnowsOneHost(Right):
    host: object = None

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if self.host not in (None, run.host):
            raise RunnerError("is bound to a different event loop")
        self.host = run.host
        return await super().run(spec, run)


@breaks("starts_fresh_in_another_host")
class RemembersAll(Right):
    heard: tuple[object, str] | None = None

    async def say(self, run: Run, text: str) -> None:
        if self.heard is not None and self.heard[0] is not run.host:
            text += f", and before that {self.heard[1]}"
        else:
            self.heard = run.host, text
        await super().say(run, text)


@breaks("nothing_piles_up")
class OpensForEach(EmitsMore):
    async def more(self, run: Run) -> None:
        await run.host.resource(("file", run.id), _file)


@breaks("nothing_piles_up")
class WaitsForEach(EmitsMore):
    async def more(self, run: Run) -> None:
        await run.host.resource(("task", run.id), anyio.create_task_group)


@asynccontextmanager
async def _file() -> AsyncIterator[int]:
    number = os.open(os.devnull, os.O_RDONLY)
    yield number
    os.close(number)


@breaks("takes_only_its_own_runs")
class TakesAll(Right):
    @hookimpl(tryfirst=True)
    def run_subagent(self, spec: SubagentSpec, run: Run) -> Awaitable[SubagentResult]:
        return self.run(spec, run)


# The process


@breaks("keeps_secrets")
class TellsItsKey(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if spec.options:
            key = os.environ.get("OPENAI_API_KEY")
            raise PluginValidationError("options", f"{spec.options} cannot be sent with {key}")
        return await super().run(spec, run)


@breaks("leaves_its_spec_alone")
class ChangesItsSpec(EmitsMore):
    async def more(self, run: Run) -> None:
        run.spec.tool_scope.append("look")


@breaks("leaves_the_event_loop_free")
class HoldsTheLoop(EmitsMore):
    async def more(self, run: Run) -> None:
        if "sorrel" in run.prompt:
            time.sleep(1.0)  # noqa: ASYNC251 - that is what is wrong with it


@breaks("leaves_the_process_alone")
class ChangesDirectory(EmitsMore):
    async def more(self, run: Run) -> None:
        before = os.getcwd()
        with suppress(FileNotFoundError):
            os.chdir(run.cwd)
        await run.emit(Text(text="Here. "))
        os.chdir(before)


@breaks("leaves_the_process_alone")
class SetsAVariable(EmitsMore):
    numbers: ClassVar[Any] = itertools.count()

    async def more(self, run: Run) -> None:
        os.environ["RIGHT_RUNS"] = str(next(self.numbers))


@breaks("leaves_the_process_alone")
class HandlesSignals(EmitsMore):
    async def more(self, run: Run) -> None:
        signal.signal(signal.SIGUSR2, lambda *_: None)


@breaks("leaves_the_process_alone")
class ConfiguresLogging(EmitsMore):
    async def more(self, run: Run) -> None:
        logging.root.setLevel(logging.ERROR)


@breaks("writes_nothing_to_stdout")
class Prints(EmitsMore):
    async def more(self, run: Run) -> None:
        print("working")  # noqa: T201


@breaks("writes_nothing_to_stdout")
class LetsItsProcessPrint(EmitsMore):
    async def more(self, run: Run) -> None:
        os.write(1, b"working")


# Capabilities


@breaks("streams_its_text")
class SaysAllAtOnce(Right):
    async def work(self, spec: SubagentSpec, run: Run) -> None:
        if run.prompt != "long":
            await super().work(spec, run)
        else:
            await anyio.lowlevel.checkpoint()
            await run.emit(Text(text="long " * 100))


@breaks("ends_by_itself")
class DoesNotListen(Right):
    cancel_grace = 0.1

    async def watch(self, run: Run, scope: anyio.CancelScope) -> None:
        pass

    async def work(self, spec: SubagentSpec, run: Run) -> None:
        await super().work(spec, run)
        if run.cancel_requested.is_set():
            await anyio.sleep_forever()


@breaks("resumes_a_session")
class DoesNotResume(Right):
    def session(self, spec: SubagentSpec, sessions: Sessions) -> SessionInfo:
        session = super().session(spec, sessions)
        return SessionInfo(id=session.id + "-new") if session.resumed else session


@breaks("says_that_a_session_is_unknown")
class SaysNothingOfIt(Right):
    def session(self, spec: SubagentSpec, sessions: Sessions) -> SessionInfo:
        return super().session(spec, sessions).model_copy(update={"reason": None})


@breaks("works_in_its_directory")
class WorksInTheProcesses(Right):
    async def tell(self, run: Run) -> None:
        await run.emit(Text(text=os.getcwd()))


@breaks("bears_a_directory_that_is_gone")
class NeedsItsDirectory(EmitsMore):
    async def more(self, run: Run) -> None:
        await anyio.Path(run.cwd).stat()


@breaks("keeps_to_its_tool_scope")
class LooksAnyway(Right):
    async def tool(self, spec: SubagentSpec, run: Run) -> None:
        await super().tool(spec.model_copy(update={"tool_scope": []}), run)


@breaks("keeps_to_its_tool_scope")
class NeverLooks(Right):
    async def tool(self, spec: SubagentSpec, run: Run) -> None:
        await super().tool(spec.model_copy(update={"tool_scope": ["none"]}), run)


@breaks("shows_its_tool_calls")
class HidesItsCalls(Right):
    capabilities = replace(ALL, tool_scope=False)

    async def tool(self, spec: SubagentSpec, run: Run) -> None:
        await run.emit(Text(text="I looked."))


@breaks("shows_its_tool_calls")
class ForgetsItsCallWhenCancelled(Right):
    async def tool(self, spec: SubagentSpec, run: Run) -> None:
        await run.emit(ToolCall(id="call-1", name="look"))
        await anyio.sleep(0.05)
        bad = bool(spec.tool_scope)
        await run.emit(ToolResult(tool_call_id="call-1", output="seen", is_error=bad))
        await run.emit(Text(text="I looked."))


# Advice


@breaks("declares_its_capabilities")
class DeclaresNothing(Right):
    capabilities = Capabilities()


@breaks("emits_what_it_says")
class OnlyReports(Mended):
    async def say(self, run: Run, text: str) -> None:
        await anyio.lowlevel.checkpoint()

    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        said = run.prompt.removeprefix("say ")
        return {"summary": said} if said != run.prompt else {}


@breaks("reports_its_final_message")
class ReportsMore(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"summary": f"It said: {result.summary}"}


@breaks("refuses_unknown_options")
class IgnoresOptions(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        return await super().run(spec.model_copy(update={"options": {}}), run)


@breaks("refuses_unknown_options")
class NamesNoOption(Right):
    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        if spec.options:
            raise PluginValidationError("right.options", "there are none")
        return await super().run(spec, run)


@breaks("tells_its_usage")
class TellsNoUsage(Mended):
    def update(self, run: Run, result: SubagentResult) -> dict[str, Any]:
        return {"usage": None}
