"""An agent made with the official SDK: what gofer talks to as others do."""

from __future__ import annotations

import asyncio
from typing import Any

from acp import (
    Agent,
    AuthenticateResponse,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptResponse,
    run_agent,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message,
    update_agent_thought_text,
    update_tool_call,
)
from acp.schema import AgentCapabilities, PermissionOption, ToolCallUpdate


class SdkAgent(Agent):
    """Says, asks, reads, writes and runs, as the prompt wants."""

    def __init__(self) -> None:
        self._client: Any = None
        self._sessions = 0
        self._cancelled = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=AgentCapabilities(load_session=True),
        )

    async def authenticate(self, **_: Any) -> AuthenticateResponse:
        return AuthenticateResponse()

    async def new_session(self, **_: Any) -> NewSessionResponse:
        self._sessions += 1
        return NewSessionResponse(session_id=f"sdk-{self._sessions}")

    async def load_session(self, session_id: str, **_: Any) -> LoadSessionResponse:
        await self._say(session_id, "an old answer")
        return LoadSessionResponse()

    async def cancel(self, **_: Any) -> None:
        self._cancelled.set()

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        self._cancelled.clear()
        what, _, argument = prompt[0].text.partition(" ")
        await self._client.session_update(session_id, update_agent_thought_text("hm"))
        await self._say(session_id, "first ")
        if what == "wait":
            await self._cancelled.wait()
            return PromptResponse(stop_reason="cancelled")
        await self._client.session_update(session_id, start_tool_call("c1", "a call", kind="edit"))
        said = await getattr(self, f"_{what}")(session_id, argument)
        await self._client.session_update(
            session_id,
            update_tool_call("c1", status="completed", content=[tool_content(text_block("done"))]),
        )
        await self._say(session_id, said)
        return PromptResponse(stop_reason="end_turn")

    async def _say(self, session_id: str, text: str) -> None:
        await self._client.session_update(session_id, update_agent_message(text_block(text)))

    async def _ask(self, session_id: str, _: str) -> str:
        answer = await self._client.request_permission(
            session_id=session_id,
            tool_call=ToolCallUpdate(tool_call_id="c1", title="a call"),
            options=[
                PermissionOption(option_id="always", name="Always", kind="allow_always"),
                PermissionOption(option_id="once", name="Once", kind="allow_once"),
                PermissionOption(option_id="no", name="No", kind="reject_once"),
            ],
        )
        return str(getattr(answer.outcome, "option_id", answer.outcome.outcome))

    async def _write(self, session_id: str, path: str) -> str:
        await self._client.write_text_file(session_id=session_id, path=path, content="written")
        read = await self._client.read_text_file(session_id=session_id, path=path)
        return str(read.content)

    async def _shell(self, session_id: str, line: str) -> str:
        made = await self._client.create_terminal(
            session_id=session_id, command="sh", args=["-c", line]
        )
        wanted = {"session_id": session_id, "terminal_id": made.terminal_id}
        status = await self._client.wait_for_terminal_exit(**wanted)
        output = await self._client.terminal_output(**wanted)
        await self._client.kill_terminal(**wanted)
        await self._client.release_terminal(**wanted)
        return f"{output.output}{output.truncated}{status.exit_code}"


if __name__ == "__main__":
    asyncio.run(run_agent(SdkAgent()))
