"""What goes wrong between gofer and an agent, on either side."""

from __future__ import annotations

from gofer import GoferError, RunnerError

from ._text import as_json, cut

__all__ = [
    "CANCELLED_REQUEST",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "NOT_FOUND",
    "PARSE_ERROR",
    "AgentError",
    "Lost",
    "Refused",
]

PARSE_ERROR = -32700
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_FOUND = -32002
CANCELLED_REQUEST = -32800


class Refused(GoferError):
    """A request of the agent's is answered with an error; ``code`` is JSON-RPC's."""

    def __init__(self, message: str, code: int = INVALID_PARAMS) -> None:
        super().__init__(message)
        self.code = code


class AgentError(RunnerError):
    """The agent answered a request with a JSON-RPC error, in whatever form.

    ``code`` is its code, None where there is none; ``said`` its message and its data.
    """

    def __init__(self, method: str, error: object) -> None:
        fields = error if isinstance(error, dict) else {"message": error}
        self.code = fields.get("code")
        message = _shown(fields.get("message")) or "no reason given"
        code = "" if self.code is None else f" (code {cut(as_json(self.code))})"
        data = _shown(fields.get("data"))
        details = f": {data}" if data not in ("", "[]") else ""
        super().__init__(f"the agent refused {method}: {message}{code}{details}")
        self.said = f"{message}{details}"


class Lost(RunnerError):
    """The agent is gone: it ended, closed its pipes, or sent what cannot be read."""


def _shown(value: object) -> str:
    """Return a text as it is, anything else as JSON; nothing for what is empty."""
    if isinstance(value, str):
        return cut(value) if value.strip() else ""
    return "" if value is None or value == {} else cut(as_json(value))
