"""A tool call that even a very small model makes: its message is begun for it.

A request may end with an assistant's message, which llama-server then goes on with. Where that
message stands inside a tool call, the server's grammar holds the model to the rest of it. Of
what the message said already the stream repeats nothing, so that the arguments lack their brace.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from gofer import Block, Finish, Host, Message, Model, Request, ToolCall

__all__ = ["PrefilledModel", "opening"]

_STOP = "</tool_call>"


def opening(tool: str) -> str:
    """Return how a call of *tool* begins in the embedded server's chat template."""
    return f'<tool_call>\n{{"name": {json.dumps(tool)}, "arguments": {{'


class PrefilledModel:
    """A llama-server's model that calls the one tool it is offered, where a call is required.

    Other requests go to *model* as they are.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def bind(self, host: Host) -> None:
        """Bind the model behind."""
        bind = getattr(self._model, "bind", None)
        if callable(bind):
            bind(host)

    async def stream(self, request: Request) -> AsyncGenerator[Block | Finish, None]:
        """Answer *request* as the model behind does, the call's arguments whole again.

        :raises ModelError: as the model behind does.
        """
        begun = request.tool_choice == "required" and len(request.tools) == 1
        if begun:
            message = Message("assistant", opening(request.tools[0].name))
            request = request.model_copy(
                update={
                    "messages": [*request.messages, message],
                    "extra": {**request.extra, "stop": [_STOP]},
                }
            )
        items = self._model.stream(request)
        try:
            async for item in items:
                yield _mended(item) if begun and isinstance(item, ToolCall) else item
        finally:
            if isinstance(items, AsyncGenerator):
                await items.aclose()


def _mended(call: ToolCall) -> ToolCall:
    if not isinstance(call.arguments, str):
        return call
    try:
        arguments = json.loads("{" + call.arguments)
        return ToolCall(id=call.id, name=call.name, arguments=arguments)
    except (ValueError, RecursionError):  # cut by a limit, or nested too deeply
        return call
