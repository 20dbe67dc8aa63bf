"""gofer's own rules for runners, tried on this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from anyio.lowlevel import checkpoint
from gofer import Runner
from gofer.testing import RunnerConformance
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from gofer_pydantic_ai import PydanticAIRunner

CALL = "Use your tool."


async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Say back all that was asked so far, piece by piece; call the tool where that is asked."""
    asked = [part for message in messages if isinstance(message, ModelRequest)
             for part in message.parts]  # fmt: skip
    if not isinstance(asked[-1], ToolReturnPart) and getattr(asked[-1], "content", "") == CALL:
        yield {0: DeltaToolCall(name="look", json_args="{}", tool_call_id="call")}
        return
    answer = "\n".join(str(part.content) for part in asked if isinstance(part, UserPromptPart))
    for start in range(0, len(answer), 1000):
        await checkpoint()
        yield answer[start : start + 1000]


agent = Agent(FunctionModel(stream_function=model))


@agent.tool_plain
def look() -> str:
    """Look around."""
    return "nothing to see"


class TestPydanticAIRunner(RunnerConformance):
    """Each rule is a test."""

    backends = ("asyncio",)  # pydantic-ai has no other

    def make_runner(self) -> Runner:
        """Return the runner, with an agent that says its task back."""
        return PydanticAIRunner(agent)

    def task_that_says(self, text: str) -> str:
        """Return a task whose answer is *text*."""
        return text

    def task_that_is_long(self) -> str:
        """Return a task whose answer comes in many pieces."""
        return "There is much to say. " * 1000

    def task_that_calls_a_tool(self) -> tuple[str, str]:
        """Return a task that calls the agent's tool, and its name."""
        return CALL, "look"
