"""``gofer demo``: a parent delegates a question to a child, and collects its answer.

Both speak with the words of a real model. On the embedded one, which is very small, each call of
a tool is made certain: two worked examples show what to do, one tool is offered, and the call of
it is begun (see :class:`PrefilledModel`). A larger model needs none of that.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import anyio
import typer

from gofer import (
    GoferError,
    Host,
    Message,
    Model,
    ModelError,
    Request,
    Response,
    Run,
    StreamChunk,
    SubagentSpec,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    hookimpl,
)

from ._prefill import PrefilledModel
from .plugin import SubagentPlugin

__all__ = ["app"]

app = typer.Typer(help="Delegate a question on a real model, step by step.")

_RUNNER = "llama-server"
_QUESTION = "What is the largest moon of Saturn?"
_SYSTEM = (
    "You delegate every question to a child agent: call spawn_subagent with the question as the "
    "task, then collect_subagent with the id."
)
_EXAMPLES = (
    ("What is the capital of Italy?", "sub-7", "The capital of Italy is Rome."),
    ("Which planet is closest to the Sun?", "sub-3", "Mercury is closest to the Sun."),
)


@app.callback(invoke_without_command=True)
def demo(
    base_url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible server to use instead.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name there.")] = None,
) -> None:
    """Run a parent turn that spawns a child, and a second one that collects its answer."""
    given = {"base_url": base_url, "model": model}
    try:
        anyio.run(_demo, {key: value for key, value in given.items() if value})
    except GoferError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


class _Shown:
    """Sees what the two turns bring, and steers what the models are asked."""

    name = "demo"

    def __init__(self) -> None:
        self.small = False
        self.began = False
        self.thoughts = 0
        self.delivered = anyio.Event()

    @hookimpl
    def on_request(self, request: Request) -> None:
        """Offer the parent the tool of its step alone, and give the child's model its examples."""
        if request.turn.subagent_id is None:
            wanted = request.extra.pop("demo_tool")
            request.tools = [tool for tool in request.tools if tool.name == wanted]
        elif self.small:
            request.messages[:0] = [
                Message("system", "Answer in one short sentence."),
                *(
                    Message(role, said)
                    for question, _, answer in _EXAMPLES
                    for role, said in (("user", question), ("assistant", answer))
                ),
            ]
            request.temperature, request.max_tokens = 0.0, 24
            request.extra["stop"] = ["\n"]

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        """Count the parent's thoughts."""
        self.began = True
        if chunk.turn.subagent_id is None and isinstance(chunk.block, Thinking):
            self.thoughts += 1

    @hookimpl(wrapper=True)
    def run_subagent(self, spec: SubagentSpec, run: Run) -> Any:
        """Say when the child has ended."""
        awaitable = yield

        async def watched() -> Any:
            try:
                return await awaitable
            finally:
                self.delivered.set()

        return watched()


async def _demo(settings: dict[str, Any]) -> None:
    shown = _Shown()
    async with Host([shown], {"default_runner": _RUNNER, **settings}) as host:
        shown.small = _is_small(host)
        delegation: SubagentPlugin = host.plugin("delegation")
        model = host.model(_RUNNER)
        if shown.small:
            model = PrefilledModel(model)
        try:
            await _turns(host, model, delegation, shown)
        except ModelError as error:
            if shown.began:
                raise
            # Nothing to talk to is no failure of the demo.
            typer.echo(str(error))


async def _turns(host: Host, model: Model, delegation: SubagentPlugin, shown: _Shown) -> None:
    def gauge() -> str:
        return (
            f"pending {delegation.pending_len} of {delegation.max_pending}, "
            f"spawns so far {delegation.spawn_count}"
        )

    pending, most = delegation.pending_len, delegation.max_pending
    conversation = [Message("system", _SYSTEM), *_examples(shown), Message("user", _QUESTION)]
    spawned = await _turn(host, model, conversation, "spawn_subagent", shown)
    child_id = _result(spawned, "spawn_subagent").output
    typer.echo(f"Pending gauge: {pending} of {most} children awaiting collection\n")
    typer.echo("Turn 1: the parent delegates, and spawning does not block")
    typer.echo(f"  child id from the tool result: {child_id}")
    typer.echo(f"  {gauge()}")
    typer.echo(f"  thinking blocks: {shown.thoughts}\n")

    typer.echo("The child runs its own turn while the parent waits")
    await shown.delivered.wait()
    typer.echo("  the child delivered its result\n")

    typer.echo("Turn 2: the parent collects the summary through the same pipeline")
    conversation += spawned.messages
    shown.thoughts = 0
    collected = await _turn(host, model, conversation, "collect_subagent", shown)
    result = _result(collected, "collect_subagent")
    typer.echo(f'  collected summary: "{result.output}"')
    typer.echo(f"  {gauge()}")
    typer.echo(f"  thinking blocks: {shown.thoughts}\n")

    log = delegation.spawns()
    typer.echo(f"Spawn log, {len(log)} entr{'y' if len(log) == 1 else 'ies'}")
    for session_id, worktree in log:
        typer.echo(f'  parent session "{session_id or "unset"}", worktree "{worktree or "none"}"')
    if result.is_error:
        raise GoferError("the child did not succeed: see the collected summary")


def _is_small(host: Host) -> bool:
    """Return whether the embedded default is asked, and no server or model of the user's."""
    settings = host.config.runners.get(_RUNNER, {})
    own = {"base_url", "model_file"} & settings.keys() or os.environ.get("GOFER_MODEL_FILE")
    return host.config.base_url is None and not own


async def _turn(
    host: Host, model: Model, conversation: list[Message], tool: str, shown: _Shown
) -> Response:
    request = Request(messages=list(conversation), tool_choice="required")
    request.extra = {"demo_tool": tool, "parallel_tool_calls": False}
    if shown.small:
        request.temperature, request.max_tokens = 0.0, 160
    async with host.stream(request, model) as stream:
        async for _ in stream:
            pass
    return stream.response


def _examples(shown: _Shown) -> list[Message]:
    """Return worked examples of delegation; only a very small model needs them."""
    messages: list[Message] = []
    for question, child_id, answer in _EXAMPLES if shown.small else ():
        messages.append(Message("user", question))
        for name, arguments, output in (
            ("spawn_subagent", {"task": question}, child_id),
            ("collect_subagent", {"subagent_id": child_id}, answer),
        ):
            call = ToolCall(id=f"{child_id}-{name}", name=name, arguments=arguments)
            messages.append(Message("assistant", [call]))
            messages.append(Message("tool", [ToolResult(tool_call_id=call.id, output=output)]))
        messages.append(Message("assistant", [Text(text=answer)]))
    return messages


def _result(response: Response, tool: str) -> ToolResult:
    for block in response.blocks:
        if isinstance(block, ToolResult):
            return block
    raise GoferError(
        f"the model was to call {tool} and did not; it said: {response.text.strip()!r:.200}. "
        "Use a model that can call tools"
    )
