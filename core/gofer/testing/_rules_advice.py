"""Advice: what makes a runner pleasant to use, and no failure where it is not so."""

from __future__ import annotations

from ..errors import GoferError
from ..runner import Capabilities
from ..subagents import SubagentResult
from ._kit import Kit, cut
from ._rule import Broken, NotChecked, Rule, Tier

__all__ = ["RULES"]

_OPTION = "no-such-option-of-any-runner"


def emits_what_it_says(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            record = await scene.say("apricot")
        assert record.result is not None
        if not record.result.summary.strip():
            raise NotChecked("it said nothing")
        if not record.blocks:
            raise Broken(
                "its report is a summary alone: plugins see nothing of it, and who watches sees "
                "it only at the end. Give it to run.emit, block by block"
            )

    kit.once(check)


def reports_its_final_message(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            record = await scene.say("apricot")
        returned, final = record.returned, record.final.text
        if not final.strip() or not isinstance(returned, SubagentResult):
            raise NotChecked("it emitted no text")
        if returned.summary.strip() != final.strip():
            raise Broken(
                f"its summary is {cut(returned.summary, 100)!r}, and the final message of what it "
                f"emitted {cut(final, 100)!r}: leave summary out of run.result(), so that one "
                "rule holds for all runners"
            )

    kit.once(check)


def refuses_unknown_options(kit: Kit) -> None:
    async def check() -> None:
        subject = kit.subject
        spec = subject.spec(subject.task_that_says("apricot"))
        async with kit.scene() as scene:
            try:
                options = {**spec.options, _OPTION: True}
                record = await scene.run(spec.model_copy(update={"options": options}))
            except GoferError as error:
                said = str(error)
            else:
                assert record.result is not None
                if record.result.exit_ok:
                    raise Broken(
                        "it ran with an option that it does not know: who misspells one is told "
                        "nothing. Refuse it with a PluginValidationError"
                    )
                said = record.result.error or ""
            if _OPTION not in said:
                without = await scene.run(spec)
                if without.result is None or not without.result.exit_ok:
                    raise NotChecked("it does no ordinary task")
        if _OPTION not in said:
            raise Broken(
                f"it refused an option that it does not know, and does not name it: {cut(said)}"
            )

    kit.once(check)


def tells_its_usage(kit: Kit) -> None:
    async def check() -> None:
        async with kit.scene() as scene:
            record = await scene.say("apricot")
        if record.result is not None and record.result.exit_ok and record.result.usage is None:
            raise Broken(
                "its result does not tell how many tokens were used: where that is known, give "
                "usage to run.result(), so that costs can be summed"
            )

    kit.once(check)


def declares_its_capabilities(kit: Kit) -> None:
    if kit.capabilities == Capabilities():
        raise Broken(
            "it declares no capability, so that none was checked: set capabilities = "
            "gofer.Capabilities(...)"
        )


RULES = (
    Rule("declares_its_capabilities", Tier.advice,
         "It declares what it can do.",
         declares_its_capabilities),
    Rule("emits_what_it_says", Tier.advice,
         "Its text goes through run.emit or run.stream, where plugins and people see it come.",
         emits_what_it_says),
    Rule("reports_its_final_message", Tier.advice,
         "Its summary is the final message of what it emitted.",
         reports_its_final_message),
    Rule("refuses_unknown_options", Tier.advice,
         "An option that it does not know is refused by name.",
         refuses_unknown_options),
    Rule("tells_its_usage", Tier.advice,
         "Its result tells how many tokens were used.",
         tells_its_usage),
)  # fmt: skip
