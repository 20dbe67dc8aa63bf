"""Rules on children together: in one Host, one after another, in different Hosts."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from ..errors import GoferError
from ..hooks import hookimpl
from ..subagents import SubagentSpec
from ..turn import StreamChunk
from ._kit import Kit, Scene
from ._leaks import Belongings, piled_up, tasks_now
from ._rule import Broken, NotChecked, Rule, Tier
from ._watch import Record
from .scripted import ScriptedRunner

__all__ = ["RULES"]

_WORDS = ("apricot", "quince", "medlar", "rowan", "juniper", "tamarind")
_OTHER = "gofer-conformance-other"


async def _together(scene: Scene, specs: list[SubagentSpec]) -> list[Record]:
    records = [await scene.spawn(spec) for spec in specs]
    for record in records:
        await scene.end(record)
    return records


def children_do_not_mix(kit: Kit) -> None:
    from hypothesis import strategies as st

    async def check(words: list[str]) -> None:
        subject = kit.subject
        async with kit.scene() as scene:
            tasks = {word: subject.task_that_says(word) for word in words}
            if any(word in tasks[other] for word in words for other in words if other != word):
                raise NotChecked("task_that_says names other texts than the one it is to say")
            records = await _together(scene, [subject.spec(task) for task in tasks.values()])
        heard = False
        for word, record in zip(words, records, strict=True):
            heard = heard or record.says(word)
            for other in words:
                if other != word and record.says(other):
                    raise Broken(
                        f"children that ran at the same time were to say {', '.join(words)}, and "
                        f"the one with {word!r} said {other!r}"
                    )
        sessions = [r.result.session.id for r in records if r.result and r.result.session]
        if len(set(sessions)) < len(sessions):
            raise Broken(f"two children that ran at the same time had one session: {sessions}")
        if not heard:
            raise NotChecked("no child said what it was asked to say: define task_that_says")

    kit.explore(
        st.lists(st.sampled_from(_WORDS), min_size=2, max_size=5, unique=True),
        kit.in_loop(check),
    )


class _Spoils:
    """Raises at the first block of one child."""

    name = "gofer-conformance-spoils"
    child: str | None = None

    @hookimpl
    async def on_stream_chunk(self, chunk: StreamChunk) -> None:
        await anyio.lowlevel.checkpoint()
        if self.child is not None and chunk.turn.subagent_id == self.child:
            raise GoferError("spoilt by the conformance kit")


def a_failure_harms_no_other(kit: Kit) -> None:
    async def check() -> None:
        plugin, subject = _Spoils(), kit.subject
        async with kit.scene(plugin) as scene:
            alone = await scene.say("apricot")
            assert alone.result is not None
            if not alone.result.exit_ok:
                raise NotChecked("it does no ordinary task")
            others = [
                await scene.spawn(subject.spec(subject.task_that_is_long())),
                await scene.spawn(subject.spec(subject.task_that_says("quince"))),
            ]
            spoilt = await scene.spawn(subject.spec(subject.task_that_is_long()))
            plugin.child = spoilt.id
            cancelled = await scene.spawn(subject.spec(subject.task_that_is_long()))
            with anyio.move_on_after(subject.deadline):
                await cancelled.reached(1)
            assert cancelled.child is not None
            cancelled.child.cancel()
            for record in [*others, spoilt, cancelled]:
                await scene.end(record)
        for record in others:
            assert record.result is not None
            if record.result.stop_reason in ("cancelled", "error"):
                raise Broken(
                    "one child was cancelled and another failed, and a third, which had nothing "
                    f"to do with them, ended with {record.result.stop_reason!r}: "
                    f"{record.result.error}"
                )

    kit.once(check)


def starts_fresh_in_another_host(kit: Kit) -> None:
    runner = kit.subject.make_runner()
    outcomes: list[Record] = []

    async def check(*words: str) -> None:
        for word in words:
            async with kit.scene(runner=runner) as scene:
                outcomes.append(await scene.say(word))

    # Twice in one event loop, then in another: what it keeps may belong to the first.
    kit.once(lambda: check("apricot", "quince"))
    kit.once(lambda: check("medlar"))
    results = [record.result for record in outcomes]
    assert all(result is not None for result in results)
    if results[0] is None or not results[0].exit_ok:
        raise NotChecked("it does no ordinary task")
    places = ("the first Host", "a second Host", "a Host in another event loop")
    for place, result, record in zip(places, results, outcomes, strict=True):
        if result is not None and not result.exit_ok:
            raise Broken(
                f"it worked in the first Host, and in {place} the same runner ended with "
                f"{result.stop_reason!r}: {result.error}"
            )
        for word, earlier in zip(("apricot", "quince"), outcomes, strict=False):
            if record is earlier:
                break
            if record.says(word):
                raise Broken(f"in {place} it said what it had been asked to say in an earlier one")


_WARMING, _MORE = 3, 5


def nothing_piles_up(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            for _ in range(_WARMING):
                await scene.say("apricot")
            before, tasks = Belongings.now(), len(tasks_now())
            for _ in range(_MORE):
                await scene.say("apricot")
            more = await piled_up(before, tasks, _MORE, kit.subject.leeway)
        if more:
            raise Broken(
                f"after {_MORE} more children, one after another in one Host, there are {more} "
                "more: what belongs to a child must end with it"
            )

    kit.once(check)


def takes_only_its_own_runs(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene(ScriptedRunner("of another", name=_OTHER)) as scene:
            spec = SubagentSpec(task="not for you", runner=_OTHER)
            record = await scene.run(spec)
        assert record.result is not None
        if record.result.summary != "of another":
            raise Broken(
                f"it took a run of runner {_OTHER!r}: return None from run_subagent unless "
                "spec.runner is its name"
            )

    kit.once(check)


RULES = (
    Rule("children_do_not_mix", Tier.must,
         "Children that run at the same time each have their own text, blocks and session.",
         children_do_not_mix),
    Rule("a_failure_harms_no_other", Tier.must,
         "A child that fails, or is cancelled, does not end another.",
         a_failure_harms_no_other),
    Rule("starts_fresh_in_another_host", Tier.must,
         "One runner works in a second Host, and in another event loop, as in the first, and "
         "knows nothing of it.",
         starts_fresh_in_another_host),
    Rule("nothing_piles_up", Tier.must,
         "A child that has ended leaves nothing in its Host: no task, thread, process or "
         "descriptor for each.",
         nothing_piles_up),
    Rule("takes_only_its_own_runs", Tier.must,
         "It takes the runs that name it, and no others.",
         takes_only_its_own_runs),
)  # fmt: skip
