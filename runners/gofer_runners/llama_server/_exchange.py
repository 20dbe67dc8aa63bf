"""One request to a server, and its answer."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from gofer import Block, ModelError

from . import _failures
from ._assemble import Assembler
from ._endpoint import Endpoint
from ._sse import EVENT_LIMIT

if TYPE_CHECKING:
    import httpx

    from ._embedded import EmbeddedServer

__all__ = ["Exchange", "Target"]

log = logging.getLogger(__name__)

_ERROR_BODY = 64 * 1024
# How long a server may keep a stream open after it said why the response ended, whatever it
# still says.
_AFTER_FINISH = 5.0
_CLOSING = 2.0
# Content codings that are read, though none is asked for. One at a time: a few bytes that are
# packed more than once, or by what packs closer, may unpack into more than a memory holds.
_CODINGS = frozenset({"", "identity", "gzip", "deflate"})


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask: the server, the model's name if one is known, the key if there is one."""

    endpoint: Endpoint
    model: str | None
    key: str | None
    embedded: EmbeddedServer | None = None


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        target: Target,
        read_timeout: float | None,
        load_timeout: float,
    ) -> None:
        self.endpoint = target.endpoint
        self._client = client
        self._key = target.key
        self._read_timeout = read_timeout
        self._load_timeout = load_timeout
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if target.key:
            self._headers["Authorization"] = f"Bearer {target.key}"
        # llama-server closes the connection after a stream while it says that it keeps it, so
        # that the next request may meet a closed one. Over TLS connections are worth a retry.
        self._keeps = target.endpoint.secure
        if not self._keeps:
            self._headers["Connection"] = "close"
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._first = self._head = b""
        self._exhausted = False
        self._ends: float | None = None

    # Asking

    async def post(self, body: bytes, *, named: bool) -> None:
        """Send the request; return when the server answers it with success."""
        await self._ask("POST", self.endpoint.chat, body, named)

    async def first_model(self) -> str | None:
        """Return the name of the server's first model; None where it has no list of them."""
        try:
            await self._ask("GET", self.endpoint.models, None, True)
            body = await self._body(EVENT_LIMIT)
        except ModelError as error:
            if error.status in (404, 405, 501):
                return None
            raise
        finally:
            await self.close()
        try:
            listed = json.loads(body)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, dict):
            listed = listed.get("data") or listed.get("models")
        for entry in listed if isinstance(listed, list) else ():
            name = entry.get("id") or entry.get("name") if isinstance(entry, dict) else entry
            if name and isinstance(name, str):
                return name
        return None

    async def _ask(self, method: str, url: str, body: bytes | None, named: bool) -> None:
        deadline: float | None = None
        delay = 0.05
        while True:
            response = self._response = await self._send(method, url, body)
            # Our own reading, not httpx's layers of it: there is a block per chunk.
            coding = response.headers.get("content-encoding", "").strip().lower()
            packed = coding in _CODINGS - {"", "identity"}
            self._chunks = aiter(response.aiter_bytes() if packed else response.stream)  # type: ignore[arg-type]
            self._exhausted = False
            self._ends = None
            if coding not in _CODINGS:
                await self.close()
                raise ModelError(
                    f"{self.endpoint.shown} answered in the content coding {coding!r:.100}, which "
                    "it was not asked for: have the server or its proxy send plain answers",
                    response.status_code,
                )
            if response.is_success:
                return
            said = await self._error_body()
            await self.close()
            status = response.status_code
            if status != 503 or not _failures.is_loading(said):
                raise _failures.answered(
                    self.endpoint, url, status, said, key=self._key, named=named
                )
            now = anyio.current_time()
            if deadline is None:
                deadline = now + self._load_timeout
                log.warning(
                    "%s is loading its model; waiting for it, %g s at most",
                    self.endpoint.shown, self._load_timeout,
                )  # fmt: skip
            if now >= deadline:
                raise ModelError(
                    f"{self.endpoint.shown} has not loaded its model after "
                    f"{self._load_timeout:g} s: try again later, or raise load_timeout",
                    status,
                    _failures.excerpt(said, self._key),
                )
            await anyio.sleep(min(delay, deadline - now))
            delay = min(2 * delay, 2.0)

    async def _send(self, method: str, url: str, body: bytes | None) -> httpx.Response:
        import httpx

        while True:
            connected = not self._keeps
            extensions: dict[str, Any] = {}

            async def trace(event: str, info: object) -> None:
                nonlocal connected
                connected = connected or event == "connection.connect_tcp.started"

            if self._keeps:
                extensions["trace"] = trace
            try:
                return await self._client.send(
                    self._client.build_request(
                        method, url, content=body, headers=self._headers, extensions=extensions
                    ),
                    stream=True,
                )
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                if connected:
                    raise self._not_reached(error, begun=False) from error
                # The server closed a kept connection as we took it: once more, on a new one.
                self._keeps = False
                self._headers["Connection"] = "close"
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise self._not_reached(error, begun=False) from error

    # Reading

    async def read(self, finished: bool = False) -> bytes | None:
        """Return the next bytes, or None at the end.

        *finished*: the response is whole, so that nothing depends on what may still come, and it
        may come for a few seconds more, counted from the first such call.
        """
        if self._first:
            first, self._first = self._first, b""
            return first
        if not finished:
            return await self._next()
        if self._ends is None:
            self._ends = anyio.current_time() + _AFTER_FINISH
        data = None
        with anyio.CancelScope(deadline=self._ends):
            try:
                data = await self._next()
            except ModelError:
                return None
        return data

    async def _next(self) -> bytes | None:
        assert self._chunks is not None
        try:
            return await self._chunks.__anext__()
        except StopAsyncIteration:
            self._exhausted = True
            return None
        except Exception as error:
            import httpx

            if not isinstance(error, httpx.HTTPError | httpx.StreamError | OSError):
                raise
            raise self._not_reached(error, begun=True) from error

    async def _body(self, limit: int) -> bytes:
        """Return the whole body."""
        pieces: list[bytes] = []
        size = 0
        while (data := await self.read()) is not None:
            pieces.append(data)
            size += len(data)
            if size > limit:
                raise ModelError(
                    f"the answer of {self.endpoint.shown} is larger than {limit} bytes"
                )
        return b"".join(pieces)

    async def _error_body(self) -> bytes:
        """Return the body of a refusal, or what comes of it in good time."""
        pieces: list[bytes] = []
        with anyio.move_on_after(_AFTER_FINISH):
            while (data := await self.read(finished=True)) is not None:
                pieces.append(data)
                if sum(map(len, pieces)) > _ERROR_BODY:
                    break
        return b"".join(pieces)

    async def document(self) -> bytes | None:
        """Return the body if it is no event stream: some servers answer with one document."""
        started = b""
        while not started.strip():
            data = await self._next()
            if data is None:
                break
            started = started[-16:] + data
        self._first = started
        self._head = started[:200]
        if started and started.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in b"{[<":
            return None
        return await self._body(EVENT_LIMIT)

    def read_document(self, document: bytes, assembler: Assembler) -> list[Block]:
        """Return the blocks of a whole completion."""
        try:
            completion = json.loads(document)
        except (ValueError, RecursionError):
            completion = None
        if isinstance(completion, dict):
            blocks = assembler.take(completion)
            if assembler.error is not None:
                return blocks
            if isinstance(completion.get("choices"), list):
                assembler.done = True
                return blocks
        raise ModelError(
            f"{self.endpoint.shown} answered with no completion: "
            f"{_failures.excerpt(document, self._key)[:200] or 'an empty body'}. "
            "Is base_url (GOFER_BASE_URL) the address of an OpenAI-compatible API?",
            self._status,
            _failures.excerpt(document, self._key),
        )

    @property
    def _status(self) -> int | None:
        return self._response.status_code if self._response is not None else None

    def check(self, assembler: Assembler) -> None:
        """Raise the ModelError of a response that is not whole."""
        if assembler.error is not None:
            raise _failures.answered(
                self.endpoint, self.endpoint.chat, None, assembler.error, key=self._key
            )
        if not assembler.finished:
            cut = ", ".join(name or "no name yet" for name in assembler.cut_calls)
            raise ModelError(
                f"the stream of {self.endpoint.shown} ended without a finish reason"
                + (", inside a tool call: " + cut if cut else "")
                + (
                    ""
                    if assembler.frames
                    else f"; it began: {_failures.excerpt(self._head, self._key)}"
                ),
                self._status,
            )

    def _not_reached(self, error: Exception, *, begun: bool) -> ModelError:
        return _failures.not_reached(error, self.endpoint, seconds=self._read_timeout, begun=begun)

    # Closing

    async def drain(self) -> None:
        """Read what is left after the response, so that a kept connection can be used again."""
        if self._keeps and not self._exhausted:
            with anyio.move_on_after(_CLOSING):
                while await self.read(finished=True) is not None:
                    pass

    async def close(self) -> None:
        """Close the connection, or give it back if the answer was read to its end."""
        response, chunks = self._response, self._chunks
        self._response = self._chunks = None
        if response is None or chunks is None:
            return
        with anyio.move_on_after(_CLOSING, shield=True):
            await response.aclose()
            if self._exhausted:
                return
            # Generators inside httpx are left by exhausting them: nothing else closes the inner
            # ones, and a closed connection has at most one buffer left to give.
            try:
                while True:
                    await chunks.__anext__()
            except StopAsyncIteration:
                pass
            except Exception as error:
                log.debug("closing a stream: %r", error)
