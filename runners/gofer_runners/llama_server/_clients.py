"""HTTP clients for one server, few enough requests to each."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from ._endpoint import Endpoint

if TYPE_CHECKING:
    import httpx

__all__ = ["PER_CLIENT", "Clients"]

PER_CLIENT = 25
"""Concurrent requests to a client: the cost of httpx's pool grows with the square of them."""


class Clients:
    """The clients for one server; an async context manager that closes them.

    ``lock`` is for those who ask the server the same thing at the same time.
    """

    def __init__(
        self, endpoint: Endpoint, connect_timeout: float, read_timeout: float | None
    ) -> None:
        self.lock = anyio.Lock()
        self._endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._requests: dict[httpx.AsyncClient, int] = {}
        self._context: ssl.SSLContext | None = None

    def acquire(self) -> httpx.AsyncClient:
        """Return a client that has room for one more request."""
        client = next((one for one, n in self._requests.items() if n < PER_CLIENT), None)
        if client is None:
            client = self._make()
        self._requests[client] = self._requests.get(client, 0) + 1
        return client

    def release(self, client: httpx.AsyncClient) -> None:
        """Say that the request of an :meth:`acquire` is over."""
        self._requests[client] -= 1

    def _make(self) -> httpx.AsyncClient:
        import httpx

        endpoint = self._endpoint
        if self._context is None:
            # One for all clients: loading the certificates takes longer than a request. Nothing
            # needs them on the way to a plain local port; without them TLS would be refused.
            needless = endpoint.loopback and not endpoint.secure
            self._context = (
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                if needless
                else httpx.create_ssl_context(trust_env=True)
            )
        return httpx.AsyncClient(
            verify=self._context,
            trust_env=not endpoint.loopback,
            timeout=httpx.Timeout(
                connect=self._connect_timeout,
                read=self._read_timeout,
                write=self._read_timeout,
                pool=None,
            ),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=PER_CLIENT),
            headers={"User-Agent": "gofer", "Accept-Encoding": "identity"},
        )

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all clients, and what is still on its way through them."""
        with anyio.CancelScope(shield=True):
            for client in self._requests:
                await client.aclose()
