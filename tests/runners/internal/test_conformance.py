"""The internal harness against the conformance kit, on a model that obeys."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from gofer import Block, Finish, Request, Runner, Text, ToolCall, ToolResult, Usage
from gofer.testing import RunnerConformance
from gofer_runners.internal import InternalRunner


class Obedient:
    """Does what its prompt says: ``say TEXT``, ``long``, ``cwd`` or ``look``; else it repeats."""

    async def stream(self, request: Request) -> AsyncIterator[Block | Finish]:
        usage = Usage(input_tokens=1, output_tokens=1)
        last = request.messages[-1]
        results = [block for block in last.content if isinstance(block, ToolResult)]
        await anyio.lowlevel.checkpoint()
        if results:
            yield Text(text=results[-1].output)
        elif last.text == "long":
            for number in range(100):
                await anyio.lowlevel.checkpoint()
                yield Text(text=f"{number:5}")
        elif last.text == "cwd":
            yield ToolCall(id="1", name="run_shell", arguments={"command": "pwd"})
        elif last.text == "look":
            yield ToolCall(id="1", name="list_directory", arguments={"path": "."})
        else:
            yield Text(text=last.text.removeprefix("say "))
        yield Finish("end_turn", usage)


class TestInternal(RunnerConformance):
    max_examples = 10

    def make_runner(self) -> Runner:
        return InternalRunner(Obedient())

    def task_that_says(self, text: str) -> str:
        return f"say {text}"

    def task_that_is_long(self) -> str:
        return "long"

    def task_that_tells_cwd(self) -> str:
        return "cwd"

    def task_that_calls_a_tool(self) -> tuple[str, str]:
        return "look", "list_directory"
