"""Rules on what comes of a run: a result that is true, or an error that says why."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio.lowlevel

from ..errors import GoferError
from ..hooks import hookimpl
from ..messages import Request
from ..runner import Capabilities, Run, Runner
from ..subagents import SubagentResult, SubagentSpec
from ._kit import Kit, Scene, cut, shown
from ._rule import Broken, Rule, Tier
from ._watch import Record, is_ours

__all__ = ["RULES", "outcomes"]


def is_a_runner(kit: Kit) -> None:
    runner: Any = kit.runner
    if not isinstance(runner, Runner):
        raise Broken(f"make_runner() returned a {type(runner).__name__}: subclass gofer.Runner")
    name = getattr(runner, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise Broken(f"its name is {name!r}: a text is needed, that of its entry point")
    grace = runner.cancel_grace
    if not isinstance(grace, int | float) or not math.isfinite(grace) or grace < 0:
        raise Broken(f"its cancel_grace is {grace!r}: seconds are needed, 0 or more")
    if not isinstance(kit.capabilities, Capabilities):
        raise Broken(f"its capabilities are {kit.capabilities!r}: a gofer.Capabilities is needed")


def does_an_ordinary_task(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            record = await scene.say("apricot")
        assert record.result is not None
        if record.forgotten is not None:
            raise Broken(
                f"it called run.emit without await at {record.forgotten}, so that the block was "
                "lost: write await run.emit(...)"
            )
        if not record.result.exit_ok:
            raise Broken(
                f"it ended with {record.result.stop_reason!r}, its error being: "
                f"{record.result.error}" + _what_to_do(record)
            )
        if kit.defines("task_that_says") and not record.says("apricot"):
            raise Broken(
                f"it was given task_that_says('apricot') and said {cut(record.result.summary)!r}"
            )

    kit.once(check)


def _what_to_do(record: Record) -> str:
    result = record.returned
    if isinstance(result, SubagentResult) and result.error is None and not result.summary.strip():
        return ". Give its text to await run.emit(gofer.Text(text=...)), or to run.result(summary)"
    return ""


async def _answer(kit: Kit, spec: SubagentSpec) -> None:
    async with kit.scene() as scene:
        try:
            record = await scene.run(spec)
        except GoferError:
            return
        _check_raised(record)


def _check_raised(record: Record) -> None:
    if record.failed is not None and not is_ours(record.failed):
        raise Broken(f"it raised {shown(record.failed)}: raise a GoferError that says what to do")


def answers_any_task(kit: Kit) -> None:
    from ._cases import TASKS, tasks

    def check(task: str) -> None:
        kit.once(partial(_answer, kit, kit.subject.spec(task)))

    kit.explore(tasks(), check)
    kit.each(TASKS, check)
    kit.each([" ", ""], partial(_with_prompt, kit))


def _with_prompt(kit: Kit, prompt: str) -> None:
    class Blanks:
        name = "gofer-conformance-blanks"

        @hookimpl(wrapper=True)
        def run_subagent(self, run: Run) -> Any:
            run.prompt = prompt
            return (yield)

    async def check() -> None:
        async with kit.scene(Blanks()) as scene:
            _check_raised(await scene.say("apricot"))

    kit.once(check)


def answers_any_spec(kit: Kit) -> None:
    from ._cases import SPECS, spec_fields

    def check(fields: dict[str, Any]) -> None:
        spec = kit.subject.spec(kit.subject.task_that_says("apricot"))
        # With its checks: no lone surrogate comes further than a spec.
        kit.once(partial(_answer, kit, SubagentSpec.model_validate({**dict(spec), **fields})))

    kit.explore(spec_fields(), check)
    kit.each(SPECS, check)


async def _plain(kit: Kit, task: str, scene: Scene) -> Record:
    return await scene.run(kit.subject.spec(task))


async def _refused(kit: Kit, scene: Scene) -> Record:
    spec = kit.subject.spec(kit.subject.task_that_says("apricot"))
    options = {**spec.options, "no-such-option-of-any-runner": [1, None]}
    return await scene.run(spec.model_copy(update={"options": options}))


async def _cancelled(kit: Kit, scene: Scene) -> Record:
    record = await scene.spawn(kit.subject.spec(kit.subject.task_that_is_long()))
    assert record.child is not None
    with anyio.move_on_after(kit.subject.deadline):
        await record.reached(1)
    scene.allow()
    record.child.cancel()
    record.result = await record.child.wait()
    return record


class _Refuses:
    """A plugin that refuses every request and so ends the run in the middle."""

    name = "gofer-conformance-refuses"

    @hookimpl
    async def on_request(self, request: Request) -> None:
        await anyio.lowlevel.checkpoint()
        if not request.turn.observed:
            raise GoferError("refused by the conformance kit")


def outcomes(kit: Kit, look: Callable[[Record], None]) -> None:
    """Bring about every kind of end that a run can have, and look at each."""
    subject = kit.subject
    called = subject.task_that_calls_a_tool()
    ways: dict[str, Callable[[Scene], Awaitable[Record]]] = {
        "an ordinary task": partial(_plain, kit, subject.task_that_says("apricot")),
        "a long task": partial(_plain, kit, subject.task_that_is_long()),
        "a task with an option that it does not know": partial(_refused, kit),
        "a long task that was cancelled after its first block": partial(_cancelled, kit),
    }
    if called is not None:
        ways["a task that calls a tool"] = partial(_plain, kit, called[0])

    async def bring(way: Callable[[Scene], Awaitable[Record]], *plugins: object) -> None:
        async with kit.scene(*plugins) as scene:
            try:
                record = await way(scene)
            except GoferError:
                return
            look(record)

    for case, way in ways.items():
        try:
            kit.once(partial(bring, way))
        except Broken as error:
            raise error.of_case(case) from error.__cause__
    try:
        kit.once(partial(bring, ways["an ordinary task"], _Refuses()))
    except Broken as error:
        raise error.of_case("an ordinary task whose request is refused") from error.__cause__


def names_its_child(kit: Kit) -> None:
    def look(record: Record) -> None:
        returned = record.returned
        if isinstance(returned, SubagentResult) and returned.subagent_id != record.id:
            raise Broken(
                f"its result is of child {returned.subagent_id!r}, and the child was "
                f"{record.id!r}: return run.result(...)"
            )

    outcomes(kit, look)


def result_is_well_formed(kit: Kit) -> None:
    outcomes(kit, _check_form)


def _check_form(record: Record) -> None:
    returned = record.returned
    if (returned is None and record.raised is not None) or not record.taken:
        return
    if not isinstance(returned, SubagentResult):
        raise Broken(f"it returned a {type(returned).__name__}: return run.result(...)")
    try:
        again = type(returned).model_validate_json(returned.model_dump_json())
    except Exception as error:
        raise Broken(f"its result does not survive JSON: {shown(error)}") from error
    if again != returned:
        raise Broken(f"its result is another one after a way through JSON: {cut(repr(again))}")
    for name, count in dict(returned.usage or ()).items():
        if count is not None and count < 0:
            raise Broken(f"its usage says {name} = {count}")
    if returned.session is not None and not returned.session.id.strip():
        raise Broken("its result tells of a session whose id is blank: leave session out")


def result_agrees_with_itself(kit: Kit) -> None:
    outcomes(kit, _check_agreement)


def _check_agreement(record: Record) -> None:
    returned = record.returned
    if not isinstance(returned, SubagentResult):
        return
    reason, error = returned.stop_reason, returned.error
    if not isinstance(reason, str) or not reason.strip() or any(map(str.isspace, reason)):
        raise Broken(f"its stop_reason is {reason!r}: end_turn, max_tokens, cancelled, error, …")
    if error is not None and not error.strip():
        raise Broken("its error is blank: say what was wrong, or leave it out")
    if reason == "end_turn" and error is not None:
        raise Broken(f"its stop_reason is 'end_turn', and yet it has an error: {error}")
    if reason == "error" and error is None:
        raise Broken("its stop_reason is 'error', and it does not say which: give an error")
    if returned.exit_ok and (reason != "end_turn" or not returned.summary.strip()):
        raise Broken(
            f"it says exit_ok with stop_reason {reason!r} and the summary "
            f"{cut(returned.summary)!r}: leave exit_ok to the Host"
        )


RULES = (
    Rule("is_a_runner", Tier.must,
         "It is a gofer.Runner with a name, a cancel_grace of 0 or more, and Capabilities.",
         is_a_runner),
    Rule("does_an_ordinary_task", Tier.must,
         "An ordinary task ends with end_turn and a text: without that, nothing can be checked.",
         does_an_ordinary_task),
    Rule("answers_any_task", Tier.must,
         "Any task, of any text and length, gives a result or a GoferError: no other exception, "
         "and no hang.",
         answers_any_task),
    Rule("answers_any_spec", Tier.must,
         "Any agent, option, session or tool scope, known to it or not, gives a result or a "
         "GoferError.",
         answers_any_spec),
    Rule("names_its_child", Tier.must,
         "Its result has the id of the child that it ran.",
         names_its_child),
    Rule("result_is_well_formed", Tier.must,
         "What it returns is a SubagentResult that survives JSON, with counts of 0 or more.",
         result_is_well_formed),
    Rule("result_agrees_with_itself", Tier.must,
         "Stop reason, error and exit_ok do not contradict each other.",
         result_agrees_with_itself),
)  # fmt: skip
