"""What goes wrong between gofer and an agent, on either side."""

from __future__ import annotations

import json

from gofer import GoferError, RunnerError

__all__ = [
    "CANCELLED_REQUEST",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "NOT_FOUND",
    "AgentError",
    "Lost",
    "Refused",
]

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
    """The agent answered a request with a JSON-RPC error."""

    def __init__(self, method: str, code: object, message: str, data: object = None) -> None:
        details = f": {_short(data)}" if data not in (None, "", {}, []) else ""
        super().__init__(f"the agent refused {method}: {message} (code {code}){details}")
        self.method = method
        self.code = code
        self.said = f"{message}{details}"


class Lost(RunnerError):
    """The agent is gone: it ended, closed its pipes, or sent what cannot be read."""


def _short(data: object) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
    return text if len(text) <= 2000 else f"{text[:2000]}…"
