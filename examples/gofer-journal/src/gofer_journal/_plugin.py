"""The plugin: it watches in all four hooks, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import anyio
import platformdirs
from gofer import (
    Host,
    Request,
    Response,
    Run,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    Turn,
    hookimpl,
)
from pydantic import BaseModel, ConfigDict, Field

from . import _entries
from ._entries import Entry
from ._file import JournalFile

__all__ = ["JournalPlugin"]


class Settings(BaseModel):
    """The settings in ``[tool.gofer.plugins.journal]``.

    :param path: the file; a relative path is below the Host's directory. By default
        ``journal.jsonl`` in the user's state folder.
    :param content: write what is said, not its size alone.
    :param line_limit: bytes of a line; longer texts are cut.
    """

    model_config = ConfigDict(extra="forbid")

    path: Path | None = Field(None, description="the path of a file")
    content: bool = False
    line_limit: int = Field(64 * 1024, ge=4096)


class JournalPlugin:
    """Writes each child's life as JSON lines: started, request, block, response, ended.

    Each line has the ``event``, the ``time``, the ``child`` and its ``session``. It only watches:
    what cannot be written is logged once, and no run fails for it.

    The parameters are those of :class:`Settings`.
    """

    name: ClassVar[str] = "journal"
    Config = Settings

    def __init__(
        self, path: str | Path | None = None, *, content: bool = False, line_limit: int = 65536
    ) -> None:
        self._path = Path(path).expanduser() if path is not None else None
        self._content = content
        self._limit = line_limit
        self._file: JournalFile | None = None

    def bind(self, host: Host) -> None:
        """Write into a file of *host*'s own."""
        default = platformdirs.user_state_path("gofer") / "journal.jsonl"
        self._file = JournalFile(host.cwd / (self._path or default), self._limit)

    @hookimpl(wrapper=True, tryfirst=True)
    def run_subagent(
        self, spec: SubagentSpec, run: Run
    ) -> Generator[None, Awaitable[SubagentResult] | None, Awaitable[SubagentResult] | None]:
        """See the whole life of a child, whoever runs it."""
        running = yield
        return None if running is None else self._watch(spec, run, running)

    async def _watch(
        self, spec: SubagentSpec, run: Run, running: Awaitable[SubagentResult]
    ) -> SubagentResult:
        began = time.perf_counter()
        # Shielded, so that what is there to be awaited is awaited. The Host closes the file.
        with anyio.CancelScope(shield=True):
            await run.host.resource((self, "file"), self._closing)
        self._write("started", run.id, run.session, _entries.started(spec, run, self._content))
        result: SubagentResult | BaseException | None = None
        try:
            result = await running
        except BaseException as error:
            result = error
            raise
        finally:
            seconds = time.perf_counter() - began
            entry = _entries.ended(result, seconds, self._content)
            self._write("ended", run.id, run.session, entry)
        return result

    @asynccontextmanager
    async def _closing(self) -> AsyncIterator[None]:
        file = self._file
        try:
            yield
        finally:
            if file is not None:
                file.close()

    @hookimpl(trylast=True)
    def on_request(self, request: Request) -> None:
        """See a request as the other plugins left it."""
        self._note("request", request.turn, _entries.request(request, self._content))

    @hookimpl(trylast=True)
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        """See a block as the other plugins left it."""
        self._note("block", chunk.turn, _entries.block(chunk.block, self._content))

    @hookimpl(trylast=True)
    def on_response_complete(self, response: Response) -> None:
        """See how a request was answered."""
        self._note("response", response.turn, _entries.response(response))

    def _note(self, event: str, turn: Turn, entry: Entry) -> None:
        # The parent's own turns are no child's, and a probe is nobody's.
        if turn.subagent_id is not None and not turn.probe:
            self._write(event, turn.subagent_id, turn.session, entry)

    def _write(self, event: str, child: str, session: str, entry: Entry) -> None:
        if self._file is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            head = {"event": event, "time": now, "child": child, "session": session}
            self._file.write(head | entry)
