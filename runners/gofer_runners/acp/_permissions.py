"""What an agent may do: its questions, answered by a policy."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import anyio

__all__ = ["CANCELLED", "Ask", "Permission", "Policy", "answer", "decide"]

log = logging.getLogger("gofer.acp")

Policy = Literal["approve", "read-only", "deny", "ask"]

CANCELLED = {"outcome": {"outcome": "cancelled"}}

_READS = frozenset({"read", "search", "think"})
_ALLOW = ("allow_once", "allow_always")
_REJECT = ("reject_once", "reject_always")


@dataclass(frozen=True)
class Permission:
    """One question of an agent: may it make this call?

    ``child`` is the id of the child that asks; ``kind`` is ``edit``, ``execute``, and so on, None
    where the agent did not say; ``call`` is all that it told of the call.
    """

    child: str
    agent: str
    tool_call_id: str | None
    title: str | None
    kind: str | None
    call: dict[str, Any]


Ask = Callable[[Permission], bool | Awaitable[bool]]


async def decide(
    permission: Permission, policy: Policy, ask: Ask | None, deadline: float, default: bool
) -> bool:
    """Return whether it is allowed.

    :param ask: who is asked under ``ask``: may be plain or async; without one, and where it does
        not answer within *deadline* seconds or fails, *default* holds.
    """
    if policy == "approve":
        return True
    if policy == "read-only":
        return permission.kind in _READS
    if policy == "deny" or ask is None:
        return default if policy == "ask" else False
    with anyio.move_on_after(deadline):
        try:
            said = ask(permission)
            return bool(await said if inspect.isawaitable(said) else said)
        except Exception as error:
            log.warning("asking for %r failed: %s", permission.title, error, exc_info=error)
            return default
    log.warning("nobody answered within %g s whether %r is allowed", deadline, permission.title)
    return default


def answer(options: Any, allowed: bool) -> tuple[dict[str, Any], bool]:
    """Return the answer to send, and whether it allows the call.

    An option is chosen by its kind, the narrower first, never by its place or its id. Where none
    of the wanted kind is offered the answer is ``cancelled``.
    """
    listed = options if isinstance(options, list) else []
    offered = [option for option in listed if isinstance(option, dict)]
    for kind in _ALLOW if allowed else _REJECT:
        for option in offered:
            option_id = option.get("optionId")
            if option.get("kind") == kind and isinstance(option_id, str):
                return {"outcome": {"outcome": "selected", "optionId": option_id}}, allowed
    return CANCELLED, False
