"""The MCP SDK's messages over the pipes of a supervised process, one JSON object a line."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from gofer import Host, RunnerError

if TYPE_CHECKING:
    from gofer.processes import Process

__all__ = ["pipes"]

log = logging.getLogger("gofer.internal")

_LINE = 64 * 1024 * 1024
_GRACE = 1.0


@asynccontextmanager
async def pipes(
    host: Host, name: str, command: Sequence[str], environment: Mapping[str, str]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server, and give what the SDK reads its messages from and writes its own to.

    :raises RunnerError: it cannot be started.
    """
    supervisor = await host.supervisor()
    async with supervisor.process(
        command, cwd=host.cwd, environment=environment, name=name, grace=_GRACE
    ) as process:
        to_sdk, received = anyio.create_memory_object_stream[Any](0)
        sent, from_sdk = anyio.create_memory_object_stream[Any](0)
        async with to_sdk, received, sent, from_sdk, anyio.create_task_group() as tasks:
            tasks.start_soon(_read, process, to_sdk)
            tasks.start_soon(_write, process, from_sdk)
            try:
                yield received, sent
            finally:
                tasks.cancel_scope.cancel()


async def _read(process: Process, to_sdk: MemoryObjectSendStream[Any]) -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    # Its end, and nothing else, tells the SDK that no answer will come any more.
    async with to_sdk:
        rest = bytearray()
        while data := await process.receive():
            *lines, last = data.split(b"\n")
            for line in lines:
                rest += line
                try:
                    message = jsonrpc_message_adapter.validate_json(bytes(rest), by_name=False)
                except ValueError:
                    log.debug("%s wrote what is no message: %.200r", process.name, bytes(rest))
                else:
                    try:
                        await to_sdk.send(SessionMessage(message))
                    except anyio.BrokenResourceError:
                        return
                rest.clear()
            rest += last
            if len(rest) > _LINE:
                raise RunnerError(f"{process.name} wrote a line of over {_LINE} bytes")


async def _write(process: Process, from_sdk: MemoryObjectReceiveStream[Any]) -> None:
    async for sent in from_sdk:
        line = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await process.send(line.encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the end of its output says so
