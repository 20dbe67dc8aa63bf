"""What a child's result says, whatever its runner gave."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ._clean import built
from .errors import GoferError, PluginInternalError
from .final import FinalMessage
from .messages import Usage
from .subagents import SubagentResult, WorktreeReport

__all__ = ["CANCELLED", "checked", "failure", "partial", "settled"]


CANCELLED = "the child was cancelled before it ended"
"""The error of one that was cancelled, where no more is known."""


def failure(error: BaseException) -> str:
    """Return what *error* says, a group's errors one after another."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(failure(inner) for inner in error.exceptions))
    try:
        return str(error) if isinstance(error, GoferError) else f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, which cannot be shown"


def partial(
    stop_reason: str, error: str, final: FinalMessage, usage: Usage | None
) -> SubagentResult:
    """Return the result of a child that gave none, with what it had said until then."""
    return SubagentResult(
        subagent_id="",
        summary=final.text,
        fallback=final.fallback,
        stop_reason=stop_reason,
        usage=usage,
        error=error,
    )


def checked(
    result: SubagentResult, runner: str, made: dict[str, Any] | None = None
) -> SubagentResult:
    """Return a copy of *result* if it is a good one: others may have gone round its checks.

    :param made: the fields of a good one: where *result* still has them, it is not asked again.
    :raises PluginInternalError: it is none.
    """
    if type(result) is SubagentResult and vars(result) == made:
        return built(SubagentResult, made, set(made))
    try:
        return type(result).model_validate(vars(result))
    except ValidationError as error:
        raise PluginInternalError(
            f"runner {runner!r} gave a SubagentResult that is none: {error}"
        ) from error


def settled(
    result: SubagentResult,
    *,
    child_id: str,
    runner: str,
    worktree_path: str | None,
    report: WorktreeReport | None,
    timed_out: str | None,
) -> SubagentResult:
    """Return *result*, which nobody else has, as the Host gives it out.

    ``exit_ok`` exactly if the stop reason is ``end_turn`` and there is text; a failure always has
    an ``error``. *timed_out* says which limit ended the child, if one did.
    """
    stop_reason, error = result.stop_reason.strip() or "error", result.error
    has_text = bool(result.summary.strip())
    if stop_reason == "end_turn" and error is not None:
        # A failure that the runner reported must not read as a success.
        stop_reason = "error"
    if timed_out and not (stop_reason == "end_turn" and has_text):
        # Where it was then may be why it took so long.
        where = "" if error in (None, "", CANCELLED) else f"; {error}"
        stop_reason, error = "cancelled", timed_out + where
    if stop_reason == "end_turn" and not has_text:
        error = "the turn ended with no text: there is no report"
    if stop_reason == "error" and not error:
        error = f"runner {runner!r} reported an error and no cause"
    fields = {
        "subagent_id": child_id,
        "worktree_path": worktree_path,
        "worktree": report,
        "stop_reason": stop_reason,
        "error": error,
        "exit_ok": stop_reason == "end_turn" and has_text,
    }
    vars(result).update(fields)
    result.__pydantic_fields_set__.update(fields)
    return result
