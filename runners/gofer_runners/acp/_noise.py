"""What an agent writes to stdout that is no message."""

from __future__ import annotations

from gofer import RunnerError

__all__ = ["Noise"]

_MOST = 1024 * 1024
"""How many bytes that are no message may come before the first message."""

_SHOWN = 500


class Noise:
    """Counts it, and keeps the beginning of what came before the first message."""

    def __init__(self) -> None:
        self.count = 0
        self._spoken = False
        self._bytes = 0
        self._begins = b""

    def spoken(self) -> None:
        """Take it that a message has come: who has spoken once may make noise as he likes."""
        self._spoken = True

    def add(self, line: bytes | None = None) -> None:
        """Count one; *line*, where it was a line as a whole.

        :raises RunnerError: it is too much of it: that is no agent.
        """
        self.count += 1
        if self._spoken or line is None:
            return
        self._begins = (self._begins + line + b"\n")[:_SHOWN]
        self._bytes += len(line)
        if self._bytes > _MOST:
            raise RunnerError(
                "it does not speak the Agent Client Protocol, or needs an argument for that, "
                f"such as --acp{self.instead}"
            )

    @property
    def instead(self) -> str:
        """What came in place of a first message, as the end of a sentence; empty: nothing."""
        if self._spoken or not self._begins:
            return ""
        return f"; its stdout begins:\n{self._begins.decode(errors='replace').strip()}"
