"""A model behind an OpenAI-compatible ``/v1/chat/completions``."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

from gofer import Block, ConfigError, Finish, GoferError, Host, ModelError, Request

from ._assemble import Assembler
from ._clients import Clients
from ._endpoint import Endpoint
from ._exchange import Exchange, Target
from ._sse import EventReader
from ._wire import encode

if TYPE_CHECKING:
    from ._embedded import EmbeddedServer

__all__ = ["LlamaServer"]

log = logging.getLogger(__name__)

_RESOURCE = "gofer_runners.llama_server"


class LlamaServer:
    """The model of an OpenAI-compatible server: llama-server, vLLM, Ollama, OpenAI, and others.

    What is not given is taken from the settings of the Host that uses it, or without a Host from
    ``GOFER_BASE_URL``, ``GOFER_MODEL`` and ``GOFER_API_KEY``. Where no address is set anywhere, a
    Host starts a llama.cpp server of its own. Without a model's name, the server is asked for its
    first one.

    :param base_url: the address of the API, with or without ``/v1``.
    :param model: the model's name there.
    :param api_key: the key for it; sent to this server only, redirects are not followed.
    :param connect_timeout: seconds until a connection must stand.
    :param read_timeout: seconds without a byte after which a stream counts as stalled; the time
        in the server's queue is part of it. None: no limit.
    :param load_timeout: seconds to wait for a server that is still loading its model.
    :param model_file: the GGUF file for the Host's own server.
    :param slots: how many requests that server works on at once.
    :param context: how many tokens each of them may have.
    :raises ConfigError: the address or the key cannot be right.
    """

    def __init__(
        self,
        base_url: str | None = None,
        model: str | None = None,
        api_key: str | None = None,
        *,
        connect_timeout: float = 10.0,
        read_timeout: float | None = 300.0,
        load_timeout: float = 120.0,
        model_file: str | Path | None = None,
        slots: int = 4,
        context: int = 4096,
    ) -> None:
        self._endpoint = Endpoint.parse(base_url) if base_url else None
        self._model = model or None
        self._key = _checked(api_key)
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._load_timeout = load_timeout
        self._model_file = Path(model_file) if model_file else None
        self._slots = slots
        self._context = context
        self._host: Host | None = None
        # The first model of each server without a named one; None where it names none.
        self._discovered: dict[str, str | None] = {}

    def __repr__(self) -> str:
        where = self._endpoint.shown if self._endpoint else None
        return f"LlamaServer(base_url={where!r}, model={self._model!r})"

    def bind(self, host: Host) -> None:
        """Use the settings of *host*, and keep connections as long as it is open.

        :raises GoferError: it is in use by another open Host.
        """
        if self._host is not None and self._host is not host and self._host.is_open:
            raise GoferError("this LlamaServer is in use by another open Host: make one for each")
        self._host = host

    async def stream(self, request: Request) -> AsyncGenerator[Block | Finish, None]:
        """Answer *request*: text, thoughts and tool calls, then a :class:`gofer.Finish`.

        Leaving the stream early closes the connection, so that the server stops its work.

        :raises ModelError: the server was not reached, refused, or broke off; what came until
            then was yielded. A broken-off stream ends with the calls that were whole.
        :raises ConfigError: the configured address cannot be right.
        :raises PluginValidationError: the request cannot be written as JSON.
        """
        host = self._host if self._host is not None and self._host.is_open else None
        target = await self._target(host)
        clients = await self._clients(host, target.endpoint)
        client = clients.acquire()
        exchange = Exchange(client, target, self._read_timeout, self._load_timeout)
        try:
            model = request.model or target.model or await self._first_model(exchange, clients)
            body = encode(request, model)
            await exchange.post(body, named=model is not None)
            assembler = Assembler()
            document = await exchange.document()
            if document is not None:
                blocks = exchange.read_document(document, assembler)
                for block in blocks:
                    yield block
            else:
                reader = EventReader()
                while not assembler.done:
                    data = await exchange.read(assembler.finished)
                    if data is None:
                        break
                    for event in reader.feed(data):
                        for block in assembler.feed(event):
                            yield block
                    if assembler.error is not None:
                        break
                if assembler.error is None:
                    for event in reader.end():
                        for block in assembler.feed(event, last=True):
                            yield block
            for block in assembler.end():
                yield block
            exchange.check(assembler)
            await exchange.drain()
            yield Finish(assembler.stop_reason, assembler.usage, assembler.model or model)
        except ModelError as error:
            cause = await self._cause(host, target)
            if cause is not None:
                raise cause from error
            if error.status in (400, 404):
                # The server may have another model by now.
                self._discovered.pop(target.endpoint.models, None)
            raise
        finally:
            await exchange.close()
            clients.release(client)
            if host is None:
                await clients.aclose()

    async def _target(self, host: Host | None) -> Target:
        endpoint, model, key = self._endpoint, self._model, self._key
        if host is not None:
            config = host.config
            base_url = config.base_url
            configured = config.api_key.get_secret_value() if config.api_key else None
            model = model or config.model
        else:
            base_url = os.environ.get("GOFER_BASE_URL", "").strip() or None
            configured = os.environ.get("GOFER_API_KEY")
            model = model or os.environ.get("GOFER_MODEL", "").strip() or None
        if endpoint is None and base_url:
            endpoint = Endpoint.parse(base_url)
        if endpoint is not None:
            return Target(endpoint, model, key or _checked(configured))
        if host is None:
            raise ModelError(
                "no model server is named: set GOFER_BASE_URL (or base_url) to one, "
                "or use the model through a Host, which starts one of its own"
            )
        from ._embedded import embedded_server

        server: EmbeddedServer = await host.resource(
            self._embedded_key,
            lambda: embedded_server(self._model_file, slots=self._slots, context=self._context),
        )
        return Target(Endpoint.parse(server.base_url), server.model, server.api_key, server)

    @property
    def _embedded_key(self) -> tuple[object, ...]:
        return (_RESOURCE, "embedded", self._model_file, self._slots, self._context)

    async def _clients(self, host: Host | None, endpoint: Endpoint) -> Clients:
        def make() -> Clients:
            return Clients(endpoint, self._connect_timeout, self._read_timeout)

        if host is None:
            return make()
        key = (_RESOURCE, "clients", endpoint, self._connect_timeout, self._read_timeout)
        clients: Clients = await host.resource(key, make)
        return clients

    async def _first_model(self, exchange: Exchange, clients: Clients) -> str | None:
        url = exchange.endpoint.models
        if url not in self._discovered:
            async with clients.lock:
                if url not in self._discovered:
                    self._discovered[url] = await exchange.first_model()
        return self._discovered[url]

    async def _cause(self, host: Host | None, target: Target) -> ModelError | None:
        """Return why the Host's own server is gone, so that the next request starts another."""
        if target.embedded is None or host is None:
            return None
        failure = await target.embedded.failure()
        if failure is not None:
            await host.release(self._embedded_key)
        return failure


def _checked(key: str | None) -> str | None:
    key = (key or "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            "the API key (GOFER_API_KEY, api_key) holds characters that no HTTP header can hold"
        )
    return key
