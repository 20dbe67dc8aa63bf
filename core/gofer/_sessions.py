"""What gofer remembers of a conversation."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

__all__ = ["Session", "Sessions"]

_LIMIT = 1024


@dataclass(slots=True)
class Session:
    """One conversation of a parent: the last message it sent, and agents' sessions to resume."""

    name: str
    last_input: str | None = None
    agent_sessions: dict[str, str] = field(default_factory=dict)


class Sessions:
    """The sessions of one Host: the 1024 used last; an older one is forgotten."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __getitem__(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(name)
            if len(self._sessions) > self._limit:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(name)
        return session
