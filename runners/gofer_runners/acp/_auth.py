"""Logging in: which way, when, and what to tell whom it is missing to."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gofer import RunnerError

from ._connection import Connection
from ._errors import AgentError
from ._schema import AuthMethod, Initialized
from ._text import cut

__all__ = ["Login", "wanted"]

_AUTH_REQUIRED = -32000
_UNAUTHORIZED = 401
_SAYS_SO = re.compile(
    r"authenticat|unauthori[sz]ed|\bauth\w* (is )?required|\bnot (yet )?logged in|"
    r"\blog ?in (is )?(first|required|needed)|\b(please|must|to) (log|sign) ?in\b",
    re.IGNORECASE,
)


class Login:
    """The ways to log in that an agent offers, and the one that is tried.

    :param method: the configured one; None: one that needs nobody at the screen, if there is one.
    :param variables: the environment that the agent has.
    """

    def __init__(
        self, agent: str, known: Initialized, method: str | None, variables: Mapping[str, str]
    ) -> None:
        self._agent = agent
        self._offered = known.auth_methods
        self._configured = method
        self._variables = variables

    @property
    def configured(self) -> bool:
        """Whether the user named a way: then it is gone before anything is asked."""
        return self._configured is not None

    async def go(self, connection: Connection, cause: AgentError | None = None) -> None:
        """Log in, once.

        :param cause: the refusal that asked for it.
        :raises RunnerError: there is no way, or it failed; says which login or variable is missing.
        """
        method = self._configured or self._quiet()
        if method is None:
            raise self.missing(cause)
        try:
            await connection.request("authenticate", {"methodId": method})
        except AgentError as error:
            raise self.missing(error) from None

    def missing(self, cause: AgentError | None) -> RunnerError:
        """Return the error that says what to do."""
        ways = []
        for method in self._offered:
            needs = f" (set {', '.join(method.variables)})" if method.variables else ""
            ways.append(f"{method.id}{needs}: {method.description or method.name or 'a login'}")
        offered = cut("; ".join(ways)) or "the agent names no way to log in"
        said = f": {cause}" if cause is not None else ""
        return RunnerError(
            f"agent {self._agent!r} wants a login{said}. Log in with the agent's own command, set "
            f"its key, or name the method as auth_method in its settings. It offers: {offered}"
        )

    def _quiet(self) -> str | None:
        """Return a way to log in by a key that is there already."""
        for method in self._offered:
            names = method.variables
            if names and all(self._variables.get(name) for name in names):
                return method.id
        return next((method.id for method in self._offered if _by_key(method)), None)


def wanted(error: AgentError) -> bool:
    """Return whether an agent refuses because nobody is logged in."""
    return error.code in (_AUTH_REQUIRED, _UNAUTHORIZED) or bool(_SAYS_SO.search(error.said))


def _by_key(method: AuthMethod) -> bool:
    words = f"{method.id} {method.name}".lower().replace("_", "-").replace(" ", "-")
    return method.type in (None, "agent") and "api-key" in words
