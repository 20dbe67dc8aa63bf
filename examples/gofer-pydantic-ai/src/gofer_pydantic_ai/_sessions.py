"""The conversations that can be resumed."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Sequence

from gofer import SessionInfo
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

__all__ = ["Sessions"]


class Sessions:
    """Keeps conversations, as JSON: at most *most*, of *size* bytes together; the oldest go."""

    def __init__(self, most: int, size: int) -> None:
        self._most = most
        self._size = size
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._used: set[str] = set()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def open(self, wanted: str | None) -> tuple[SessionInfo, list[ModelMessage]]:
        """Return the session *wanted* and its messages; a new one, and why, if it is not to be had.

        It is the caller's until :meth:`close`.
        """
        kept = None if wanted is None or wanted in self._used else self._kept.get(wanted)
        if wanted is None or kept is None:
            why = None
            if wanted is not None and wanted in self._used:
                why = f"session {wanted!r} is in use by another child"
            elif wanted is not None:
                why = f"there is no session {wanted!r} here, or not any more"
            info = SessionInfo(id=uuid.uuid4().hex, reason=why)
            messages: list[ModelMessage] = []
        else:
            info = SessionInfo(id=wanted, resumed=True)
            messages = ModelMessagesTypeAdapter.validate_json(kept)
        self._used.add(info.id)
        return info, messages

    def keep(self, info: SessionInfo, messages: Sequence[ModelMessage]) -> None:
        """Keep what the conversation has become."""
        self._drop(info.id)
        data = ModelMessagesTypeAdapter.dump_json(list(messages))
        self._kept[info.id] = data
        self.bytes += len(data)
        while len(self._kept) > self._most or self.bytes > self._size:
            self._drop(next(iter(self._kept)))

    def close(self, info: SessionInfo) -> None:
        """Let another child have it."""
        self._used.discard(info.id)

    def _drop(self, session: str) -> None:
        self.bytes -= len(self._kept.pop(session, b""))
