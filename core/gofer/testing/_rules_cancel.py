"""Rules on the end that others bring about: cancellation, time limits, and what is left then."""

from __future__ import annotations

from functools import partial

import anyio

from .._clean import clean_text
from ._cases import Moment, cancel_at, moments
from ._kit import Kit, cut, shown
from ._leaks import Belongings, check_tasks, tasks_now
from ._rule import Broken, NotChecked, Rule, Tier
from ._watch import is_ours

__all__ = ["RULES"]


def cancelling_ends_it(kit: Kit) -> None:
    limit = max(kit.runner.cancel_grace, 0.0) + kit.subject.leeway

    async def cancel(moment: Moment) -> None:
        async with kit.scene() as scene:
            spec = kit.subject.spec(kit.subject.task_that_is_long())
            record, _, seconds = await cancel_at(scene, spec, moment)
        if seconds > limit:
            raise Broken(
                f"it took {seconds:.1f} s to end; its cancel_grace is "
                f"{kit.runner.cancel_grace:g} s, and the kit's leeway {kit.subject.leeway:g} s"
            )
        if record.failed is not None and not is_ours(record.failed):
            raise Broken(f"it raised {shown(record.failed)}: let the cancellation pass")

    kit.explore(moments(), kit.in_loop(cancel))


def cancelling_keeps_what_was_written(kit: Kit) -> None:
    async def cancel(moment: Moment) -> None:
        async with kit.scene() as scene:
            spec = kit.subject.spec(kit.subject.task_that_is_long())
            record, at_work, _ = await cancel_at(scene, spec, moment)
        written, result = " ".join(clean_text(record.final.text).split()), record.result
        if not at_work or not written:
            raise NotChecked(
                "it said nothing before it was cancelled: define task_that_is_long, a task that "
                "takes a moment to do"
            )
        assert result is not None
        if not result.exit_ok and written not in " ".join(result.summary.split()):
            raise Broken(
                f"it had written {cut(written, 100)!r} when it was cancelled, and the result has "
                f"{cut(result.summary, 100)!r}: leave summary out of run.result()"
            )

    kit.explore(moments(), kit.in_loop(cancel))


def works_on_after_a_cancellation(kit: Kit) -> None:
    async def cancel(moment: Moment) -> None:
        async with kit.scene() as scene:
            first = await scene.say("apricot")
            assert first.result is not None
            if not first.result.exit_ok:
                raise NotChecked("it does no ordinary task")
            spec = kit.subject.spec(kit.subject.task_that_is_long())
            await cancel_at(scene, spec, moment)
            after = await scene.say("quince")
        assert after.result is not None
        if not after.result.exit_ok:
            raise Broken(
                f"a child was cancelled, and the next one ended with "
                f"{after.result.stop_reason!r}: {after.result.error}"
            )

    kit.explore(moments(), kit.in_loop(cancel))


_TIMEOUT = 0.2


def a_time_limit_ends_it(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            spec = kit.subject.spec(kit.subject.task_that_is_long(), timeout=_TIMEOUT)
            started = anyio.current_time()
            record = await scene.end(await scene.spawn(spec))
            seconds = anyio.current_time() - started
            limit = _TIMEOUT + max(scene.runner.cancel_grace, 0.0) + kit.subject.leeway
        if seconds > limit:
            raise Broken(f"its timeout was {_TIMEOUT:g} s, and it ended after {seconds:.1f} s")
        result = record.result
        assert result is not None
        if not result.exit_ok and not result.error and result.stop_reason == "cancelled":
            raise Broken("it ran into its timeout, and the result does not say so")

    kit.once(check)


def leaves_nothing_behind(kit: Kit) -> None:
    async def cancel(moment: Moment) -> None:
        before = tasks_now()
        async with kit.scene() as scene:
            spec = kit.subject.spec(kit.subject.task_that_is_long())
            await cancel_at(scene, spec, moment)
        await check_tasks(before, kit.subject.leeway)

    async def finish() -> None:
        before = tasks_now()
        async with kit.scene() as scene:
            await scene.say("apricot")
        await check_tasks(before, kit.subject.leeway)

    with Belongings.marked() as mark:
        # What is opened once in the life of a process is opened now.
        kit.once(finish)
        kit.once(partial(cancel, Moment(blocks=1)))

        def check(moment: Moment | None) -> None:
            body = finish if moment is None else partial(cancel, moment)
            before = Belongings.now()
            kit.once(body)
            left = before.left(kit.subject.leeway)
            if left and before.grow_again(lambda: kit.once(body), kit.subject.leeway):
                raise Broken(
                    f"it left behind {left}: end what a run starts in the run itself, and start "
                    "processes by gofer.processes, which ends them whatever happens"
                )

        check(None)
        kit.explore(moments(), check)
        mark.check()


RULES = (
    Rule("cancelling_ends_it", Tier.must,
         "Cancelled at any moment, it ends within its cancel_grace, and raises nothing of its own.",
         cancelling_ends_it),
    Rule("cancelling_keeps_what_was_written", Tier.must,
         "What it had written when it was cancelled is in the result.",
         cancelling_keeps_what_was_written),
    Rule("works_on_after_a_cancellation", Tier.must,
         "A child that was cancelled, at whatever moment, does not spoil the next one.",
         works_on_after_a_cancellation),
    Rule("a_time_limit_ends_it", Tier.must,
         "The spec's timeout ends it, and the result says so.",
         a_time_limit_ends_it),
    Rule("leaves_nothing_behind", Tier.must,
         "Finished or cancelled at any moment, it leaves no task, thread, process or descriptor "
         "when its Host has closed.",
         leaves_nothing_behind),
)  # fmt: skip
