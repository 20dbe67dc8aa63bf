"""Calling the sequential hooks: one implementation after another, each awaited in its turn."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import CoroutineType
from typing import Any

from ._outcome import failure
from ._registry import Hook
from .blocks import BLOCK_TYPES, Block, ToolCall, ToolResult
from .errors import GoferError, PluginError, PluginErrors, PluginValidationError
from .messages import Message, Request, Response, Tool
from .turn import StreamChunk

__all__ = ["complete", "pass_chunk", "pass_request"]


async def pass_request(hooks: Iterable[Hook], request: Request) -> None:
    """Take *request* through ``on_request``; the first error ends it."""
    for hook in hooks:
        try:
            await _call(hook, request)
            _check_request(request)
        except Exception as error:
            error = attributed(error, hook.plugin, "on_request")
            raise error from error.__cause__


def _check_request(request: Request) -> None:
    for name, kind in (("messages", Message), ("tools", Tool)):
        entries = getattr(request, name)
        if type(entries) is not list or not all(isinstance(entry, kind) for entry in entries):
            raise PluginValidationError(
                f"request.{name}", f"a list of {kind.__name__} is needed, not {entries!r:.200}"
            )


async def pass_chunk(hooks: Iterable[Hook], chunk: StreamChunk, *, report: bool = False) -> None:
    """Take *chunk* through ``on_stream_chunk``.

    The first error ends it, unless *report* is set and the block is a tool call to be executed:
    then the error becomes the call's result, and the remaining plugins see that.
    """
    for hook in hooks:
        before = chunk.block
        try:
            answer = hook.call(chunk)
            if answer is not None:
                await _awaited(answer)
            if chunk.block is not before:
                _check_replacement(chunk, before)
        except Exception as error:
            error = attributed(error, hook.plugin, "on_stream_chunk")
            if not (report and isinstance(before, ToolCall)) or chunk.turn.observed:
                raise error from error.__cause__
            chunk.block = ToolResult(tool_call_id=before.id, output=failure(error), is_error=True)


async def complete(hooks: Iterable[Hook], response: Response) -> None:
    """Tell every plugin of *response*; raise what failed afterwards."""
    errors: list[Exception] = []
    for hook in hooks:
        try:
            await _call(hook, response)
        except Exception as error:
            errors.append(attributed(error, hook.plugin, "on_response_complete"))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise PluginErrors("several plugins failed in on_response_complete", errors)


def attributed(error: Exception, plugin: str, hook: str) -> Exception:
    """Return *error* as one that names plugin and hook."""
    if not isinstance(error, GoferError):
        wrapped = PluginError(f"plugin {plugin!r} failed in {hook}: {failure(error)}")
        wrapped.__cause__ = error
        error = wrapped
    if isinstance(error, PluginError) and error.plugin is None:
        error.plugin, error.hook = plugin, hook
    return error


async def _call(hook: Hook, argument: Any) -> None:
    answer = hook.call(argument)
    if answer is not None:
        await _awaited(answer)


async def _awaited(answer: Any) -> None:
    if isinstance(answer, CoroutineType) or inspect.isawaitable(answer):
        answer = await answer
    if answer is not None:
        raise PluginValidationError(
            "hook result",
            f"a {type(answer).__name__} was returned, and nobody takes it: "
            "change the argument in place and return None",
        )


def _check_replacement(chunk: StreamChunk, before: Block) -> None:
    block = chunk.block
    if not isinstance(block, BLOCK_TYPES):
        chunk.block = before
        raise PluginValidationError(
            "chunk.block", f"a block is needed, not {type(block).__name__}: {block!r:.100}"
        )
    old, new = _call_id(before), _call_id(block)
    if old is None or new is None:
        return
    if new != old:
        chunk.block = before
        raise PluginValidationError(
            "local tool result",
            f"call {old!r} was answered with a result for {new!r}"
            if isinstance(block, ToolResult)
            else f"call {old!r} was renamed to {new!r}: keep the id, the model's history needs it",
        )
    if chunk.turn.observed and isinstance(before, ToolCall) and isinstance(block, ToolResult):
        chunk.block = before
        raise PluginValidationError(
            "local tool result",
            f"call {before.id!r} of {before.name!r} is the child's own and was executed there: "
            "leave calls alone where chunk.turn.observed",
        )


def _call_id(block: Block) -> str | None:
    if isinstance(block, ToolCall):
        return block.id
    return block.tool_call_id if isinstance(block, ToolResult) else None
