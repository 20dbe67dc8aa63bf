"""One model request, from ``on_request`` to ``on_response_complete``."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator
from types import CoroutineType, TracebackType
from typing import Any, Literal

import anyio

from ._dispatch import complete, pass_chunk, pass_request
from ._registry import Hook, Registry
from ._transcript import Transcript
from .blocks import BLOCK_TYPES, Block, ToolCall, ToolResult
from .errors import GoferError, ModelError
from .messages import Request, Response, Usage
from .model import Finish, Model
from .turn import StreamChunk, Turn

__all__ = ["CLOSING_SECONDS", "ErrorMode", "TurnStream"]

log = logging.getLogger("gofer")

CLOSING_SECONDS = 5.0
"""How long the end of an abandoned turn may take: closing its source, and its plugins."""

ErrorMode = Literal["raise", "report"]

_FINISH: dict[str, Any] = {"stop_reason": str, "usage": Usage | None, "model": str | None}


class Pair:
    """The two ends of a turn: ``on_request`` before it, ``on_response_complete`` once after."""

    def __init__(self, registry: Registry, turn: Turn) -> None:
        self.turn = turn
        self.transcript = Transcript(last=turn.observed)
        self.response: Response | None = None
        self._registry = registry
        self._started = time.perf_counter()

    async def open(self, request: Request, *, copied: bool = False) -> Request:
        """Return a copy of *request* as the plugins want it; itself, where it is one already."""
        if not copied:
            request = request.for_turn(self.turn)
        request._turn = self.turn
        await pass_request(self._registry.on_request, request)
        return request

    async def close(
        self, stop_reason: str, usage: Usage | None = None, model: str | None = None
    ) -> None:
        """Make the response and show it to every plugin; a second call does nothing.

        :raises PluginError: a plugin failed. :raises PluginErrors: several did.
        """
        if self.response is not None:
            return
        self.response = Response(
            blocks=self.transcript.blocks(),
            messages=self.transcript.messages(),
            stop_reason=stop_reason,
            usage=usage,
            model=model,
            duration=time.perf_counter() - self._started,
        )
        self.response._turn = self.turn
        hooks = iter(self._registry.on_response_complete)
        ends = time.monotonic() + CLOSING_SECONDS
        try:
            await complete(hooks, self.response)
        except anyio.get_cancelled_exc_class():
            # It was cancelled in one plugin: the others are told all the same.
            with anyio.move_on_after(max(0.0, ends - time.monotonic()), shield=True):
                await self._complete_quietly(hooks, self.response)
            raise

    async def close_quietly(self, stop_reason: str, usage: Usage | None = None) -> None:
        """Close where another outcome counts more than a plugin's failure: log that."""
        try:
            await self.close(stop_reason, usage)
        except Exception as error:
            log.warning("turn %s: %s", self.turn.id, error, exc_info=error)

    async def _complete_quietly(self, hooks: Iterator[Hook], response: Response) -> None:
        try:
            await complete(hooks, response)
        except Exception as error:
            log.warning("turn %s: %s", self.turn.id, error, exc_info=error)


class TurnStream:
    """The blocks of one model request, as the hooks leave them.

    An async context manager and an async iterator. Entering it runs ``on_request``; the end of
    the iteration runs ``on_response_complete``, and so does leaving early.
    """

    def __init__(
        self,
        registry: Registry,
        request: Request,
        model: Model,
        turn: Turn,
        *,
        errors: ErrorMode = "raise",
        tool_scope: Collection[str] = (),
        on_block: Callable[[Block], None] | None = None,
        on_end: Callable[[Usage | None], None] | None = None,
    ) -> None:
        self._registry = registry
        self._request = request
        self._model = model
        self._turn = turn
        self._report = errors == "report"
        self._tool_scope = tool_scope
        self._on_block = on_block
        self._on_end = on_end
        self._pair = Pair(registry, turn)
        self._source: AsyncIterator[Block | Finish] | None = None
        self._entered = False
        self._ended = False

    @property
    def turn(self) -> Turn:
        """Whose stream it is."""
        return self._turn

    @property
    def response(self) -> Response:
        """The whole response.

        :raises GoferError: the stream has not ended yet.
        """
        if self._pair.response is None:
            raise GoferError("there is no response yet: iterate the stream to its end first")
        return self._pair.response

    async def __aenter__(self) -> TurnStream:
        if self._entered:
            raise GoferError("a stream is one turn: ask host.stream for another one")
        self._entered = True
        request = await self._pair.open(self._request)
        if self._tool_scope:
            request.tools = [tool for tool in request.tools if tool.name in self._tool_scope]
        try:
            self._source = self._opened(request)
        except Exception:
            await self._fail()
            raise
        return self

    def _opened(self, request: Request) -> AsyncIterator[Block | Finish]:
        source: object = self._model.stream(request)
        if not isinstance(source, AsyncIterable):
            if isinstance(source, CoroutineType):
                source.close()
            raise ModelError(
                f"{type(self._model).__name__}.stream gave a {type(source).__name__}: "
                "it must be an async generator function, or return an async iterator"
            )
        return aiter(source)

    def __aiter__(self) -> TurnStream:
        if self._source is None and not self._ended:
            raise GoferError("enter the stream first: async with host.stream(...) as stream")
        return self

    async def __anext__(self) -> Block:
        source = self._source
        if self._ended or source is None:
            raise StopAsyncIteration
        try:
            item = await source.__anext__()
            if type(item) is Finish:
                self._check_finish(item)
                self._ended = True
                await self._close_source()
            else:
                block = await self._through_hooks(item)  # type: ignore[arg-type]
                if self._on_block is not None:
                    self._on_block(block)
                return block
        except StopAsyncIteration:
            error = ModelError(
                f"the stream of {type(self._model).__name__} ended without a Finish: "
                "a model yields one as its last item"
            )
            await self._fail()
            raise error from None
        except Exception:
            await self._fail()
            raise
        if self._on_end is not None:
            self._on_end(item.usage)
        await self._pair.close(item.stop_reason, item.usage, item.model)
        raise StopAsyncIteration

    async def _through_hooks(self, item: Block) -> Block:
        chunk = StreamChunk(item, self._turn)
        hooks = self._registry.on_stream_chunk
        if not isinstance(item, BLOCK_TYPES):
            raise ModelError(
                f"{type(self._model).__name__} yielded a {type(item).__name__}, which is no block"
            )
        if self._tool_scope and isinstance(item, ToolCall) and item.name not in self._tool_scope:
            chunk.block = ToolResult(
                tool_call_id=item.id,
                output=f"no tool {item.name!r} here; yours are: {', '.join(self._tool_scope)}",
                is_error=True,
            )
        if hooks:
            await pass_chunk(hooks, chunk, report=self._report)
        block = chunk.block
        self._pair.transcript.add(item, block)
        return block

    def _check_finish(self, finish: Finish) -> None:
        for name, kind in _FINISH.items():
            value = getattr(finish, name)
            if not isinstance(value, kind):
                raise ModelError(
                    f"{type(self._model).__name__} ended with a Finish whose {name} is "
                    f"{value!r:.100}: that is none"
                )

    async def _fail(self) -> None:
        self._ended = True
        await self._close_source()
        await self._pair.close_quietly("error")

    async def _close_source(self) -> None:
        source, self._source = self._source, None
        close = getattr(source, "aclose", None)
        if close is None:
            return
        with anyio.move_on_after(CLOSING_SECONDS, shield=True):
            try:
                await close()
            except Exception as error:
                log.warning("turn %s: closing its source failed: %s", self._turn.id, error)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = True
        if self._pair.response is not None:
            return
        await self._close_source()
        with anyio.move_on_after(CLOSING_SECONDS, shield=True):
            if error is None:
                await self._pair.close("cancelled")
            else:
                await self._pair.close_quietly("cancelled")
