"""How a request of the agent's is refused."""

from __future__ import annotations

from gofer import GoferError

__all__ = [
    "CANCELLED_REQUEST",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "NOT_FOUND",
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
