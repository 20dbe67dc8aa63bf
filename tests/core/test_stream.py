"""One turn of the parent: what comes out, what is kept, and how it may end."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import (
    Finish,
    GoferError,
    Host,
    Image,
    Message,
    ModelError,
    PluginError,
    PluginNotSupportedError,
    PluginValidationError,
    Request,
    Response,
    StreamChunk,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    Update,
    Usage,
    hookimpl,
)
from gofer._transcript import Transcript
from gofer.blocks import Block

pytestmark = pytest.mark.anyio


class Scripted:
    """A model that says what it was told to, and raises what it was told to."""

    def __init__(self, *items: Any) -> None:
        self.items = items
        self.requests: list[Request] = []
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        self.requests.append(request)
        try:
            for item in self.items:
                await checkpoint()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.closed += 1


class Watcher:
    """Notes the turn of everything it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Turn]] = []
        self.responses: list[Response] = []

    @hookimpl
    def on_request(self, request: Request) -> None:
        self.seen.append(("request", request.turn))

    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        self.seen.append(("chunk", chunk.turn))

    @hookimpl
    def on_response_complete(self, response: Response) -> None:
        self.seen.append(("response", response.turn))
        self.responses.append(response)

    @property
    def reasons(self) -> list[str]:
        return [response.stop_reason for response in self.responses]


class Tools:
    """Has two tools: ``double``, and ``fail``; each failure is what it was told to raise."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or ValueError("out of order")

    @hookimpl
    def on_request(self, request: Request) -> None:
        request.tools += [Tool(name="double"), Tool(name="fail")]

    @hookimpl
    async def on_stream_chunk(self, chunk: StreamChunk) -> None:
        call = chunk.block
        if not isinstance(call, ToolCall) or chunk.turn.observed:
            return
        await checkpoint()
        if call.name == "double":
            chunk.block = ToolResult(tool_call_id=call.id, output=str(call.arguments["x"] * 2))
        elif call.name == "fail":
            raise self.error


def asking() -> Request:
    return Request(messages=[Message("user", "hi")])


def call(call_id: str, name: str = "double", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


async def played(host: Host, model: Any, **options: Any) -> tuple[list[Block], Response]:
    async with host.stream(asking(), model, **options) as stream:
        blocks = [block async for block in stream]
    return blocks, stream.response


# What comes out


async def test_the_blocks_and_the_response() -> None:
    usage = Usage(input_tokens=3, output_tokens=2)
    model = Scripted(Text(text="a"), Text(text="b"), Finish("max_tokens", usage, "the-model"))
    async with Host(discover=False) as host:
        blocks, response = await played(host, model)
    assert blocks == [Text(text="a"), Text(text="b")]
    assert response.blocks == [Text(text="ab")]
    assert (response.stop_reason, response.usage, response.model) == (
        "max_tokens",
        usage,
        "the-model",
    )
    assert response.duration > 0
    assert [request.model_dump() for request in model.requests] == [asking().model_dump()]
    assert model.closed == 1


async def test_a_host_works_on_a_copy_of_the_request() -> None:
    request = asking()
    before = request.model_dump_json()
    model = Scripted(Finish())
    async with Host([Tools], discover=False) as host:
        async with host.stream(request, model) as stream:
            async for _ in stream:
                pass
    assert [tool.name for tool in model.requests[0].tools] == ["double", "fail"]
    assert request.model_dump_json() == before
    with pytest.raises(GoferError):
        _ = request.turn


async def test_there_is_no_response_before_the_end() -> None:
    async with Host(discover=False) as host:
        stream = host.stream(asking(), Scripted(Text(text="a"), Finish()))
        with pytest.raises(GoferError, match="no response yet: iterate the stream to its end"):
            _ = stream.response
        with pytest.raises(GoferError, match=r"async with host\.stream"):
            async for _ in stream:
                pytest.fail("it was not entered")
        async with stream:
            await anext(stream)
            with pytest.raises(GoferError, match="no response yet"):
                _ = stream.response


async def test_a_stream_is_one_turn() -> None:
    watcher, model = Watcher(), Scripted(Text(text="a"), Finish())
    async with Host([watcher], discover=False) as host:
        async with host.stream(asking(), model) as stream:
            with pytest.raises(GoferError, match=r"ask host\.stream for another one"):
                await stream.__aenter__()
            assert [block async for block in stream] == [Text(text="a")]
        with pytest.raises(GoferError, match=r"ask host\.stream for another one"):
            await stream.__aenter__()
    assert [what for what, _ in watcher.seen] == ["request", "chunk", "response"]
    assert len(model.requests) == model.closed == 1


async def test_a_stream_that_ended_stays_ended() -> None:
    watcher = Watcher()
    async with Host([watcher], discover=False) as host:
        async with host.stream(asking(), Scripted(Finish())) as stream:
            for _ in range(3):
                with pytest.raises(StopAsyncIteration):
                    await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert watcher.reasons == ["end_turn"]


async def test_what_a_model_yields_after_its_finish_is_not_asked_for() -> None:
    model = Scripted(Text(text="a"), Finish(), Text(text="b"))
    async with Host(discover=False) as host:
        blocks, response = await played(host, model)
    assert blocks == response.blocks == [Text(text="a")]
    assert model.closed == 1


# What is kept of it

PIECES = st.one_of(
    st.builds(Text, text=st.text(max_size=3), message_id=st.sampled_from([None, "m"])),
    st.builds(
        Thinking,
        text=st.text(max_size=3),
        message_id=st.sampled_from([None, "m"]),
        signature=st.sampled_from([None, "s1", "s2"]),
    ),
    st.builds(Update, kind=st.just("plan")),
    st.builds(call, st.sampled_from(["1", "2"])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_neighbouring_pieces_are_joined_and_nothing_else_is(pieces: list[Block]) -> None:
    transcript = Transcript()
    for piece in pieces:
        transcript.add(piece, piece)
    joined = transcript.blocks()
    assert transcript.blocks() == joined

    def key(block: Block) -> tuple[object, ...]:
        return type(block), getattr(block, "message_id", None)

    for first, second in itertools.pairwise(joined):
        assert not isinstance(first, Text | Thinking) or key(first) != key(second)
    for kind in (Text, Thinking):
        for message_id in (None, "m"):
            said = [
                [b.text for b in blocks if type(b) is kind and b.message_id == message_id]
                for blocks in (pieces, joined)
            ]
            assert "".join(said[0]) == "".join(said[1])
    rest = [b for b in pieces if not isinstance(b, Text | Thinking)]
    assert [b for b in joined if not isinstance(b, Text | Thinking)] == rest
    signatures = [b.signature for b in pieces if isinstance(b, Thinking) and b.signature]
    kept = [b.signature for b in joined if isinstance(b, Thinking) and b.signature]
    assert set(kept) <= set(signatures)
    assert bool(kept) == bool(signatures)


def test_what_is_kept_is_as_small_as_its_text() -> None:
    transcript = Transcript()
    for _ in range(10_000):
        piece = Text(text="word ")
        transcript.add(piece, piece)
    assert transcript.blocks() == [Text(text="word " * 10_000)]
    assert len(transcript._entries) == 1


async def test_messages_are_what_to_append_to_the_conversation() -> None:
    class Hooks:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            block = chunk.block
            if isinstance(block, Text):
                chunk.block = Text(text=block.text.upper())
            elif isinstance(block, ToolCall) and block.name == "tidied":
                chunk.block = call(block.id, "tidied", safe=True)
            elif isinstance(block, ToolCall) and block.name == "denied":
                chunk.block = Text(text="[denied]")

    made = call("1", x=2), call("2", "tidied"), call("3", x=4), call("4", "denied")
    thought, image = Thinking(text="hm", signature="s"), Image(data="AA", media_type="image/png")
    plan = Update(kind="plan", data=[])
    model = Scripted(
        thought, Text(text="so "), plan, made[0], Text(text="and"), made[1], image, made[2],
        made[3], Finish("tool_use"),
    )  # fmt: skip
    async with Host([Hooks, Tools], discover=False) as host:
        blocks, response = await played(host, model)
    four, eight = (
        ToolResult(tool_call_id="1", output="4"),
        ToolResult(tool_call_id="3", output="8"),
    )
    tidied = call("2", "tidied", safe=True)
    denied = Text(text="[denied]")
    assert blocks == [
        thought, Text(text="SO "), plan, four, Text(text="AND"), tidied, image, eight, denied
    ]  # fmt: skip
    assert response.blocks == blocks
    assert response.messages == [
        Message(
            "assistant",
            [
                thought,
                Text(text="SO "),
                made[0],
                Text(text="AND"),
                made[1],
                image,
                made[2],
                denied,
            ],
        ),
        Message("tool", [four]),
        Message("tool", [eight]),
    ]


async def test_a_response_with_nothing_in_it_appends_nothing() -> None:
    async with Host(discover=False) as host:
        _, response = await played(host, Scripted(Update(kind="usage"), Finish()))
    assert response.messages == []


# Models that break their promise


async def test_a_model_that_raises_leaves_the_partial_response() -> None:
    boom, watcher = OSError("connection reset"), Watcher()
    async with Host([watcher], discover=False) as host:
        with pytest.raises(OSError, match="connection reset") as caught:
            async with host.stream(
                asking(), Scripted(Text(text="par"), Text(text="t"), boom)
            ) as it:
                async for _ in it:
                    pass
        assert caught.value is boom
        assert (it.response.text, it.response.stop_reason) == ("part", "error")
    assert watcher.responses == [it.response]


async def test_a_model_without_a_finish_is_told_so() -> None:
    watcher = Watcher()
    async with Host([watcher], discover=False) as host:
        with pytest.raises(ModelError, match="stream of Scripted ended without a Finish"):
            await played(host, Scripted(Text(text="a")))
    assert watcher.reasons == ["error"]
    assert watcher.responses[0].text == "a"


class AsyncByMistake:
    async def stream(self, request: Request) -> AsyncIterator[Block]:
        raise AssertionError("it is never awaited")


class NotAStream:
    def stream(self, request: Request) -> list[Block]:
        return [Text(text="a")]


class Refusing:
    def stream(self, request: Request) -> AsyncIterator[Block]:
        raise ModelError("no such model")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (AsyncByMistake(), "AsyncByMistake.stream gave a coroutine: it must be an async generator"),
        (NotAStream(), "NotAStream.stream gave a list: it must be an async generator"),
        (Refusing(), "no such model"),
    ],
)
async def test_a_model_that_does_not_begin_ends_the_turn_it_began(model: Any, said: str) -> None:
    watcher = Watcher()
    async with Host([watcher], discover=False) as host:
        with pytest.raises(ModelError, match=said):
            async with host.stream(asking(), model):
                pytest.fail("the turn must not begin")
    # A pair stays a pair.
    assert [what for what, _ in watcher.seen] == ["request", "response"]
    assert watcher.reasons == ["error"]


@pytest.mark.parametrize("garbage", ["text", None, {"type": "text", "text": "a"}, Finish])
async def test_a_model_that_yields_no_block_is_told_so(garbage: object) -> None:
    watcher = Watcher()
    async with Host([watcher], discover=False) as host:
        with pytest.raises(ModelError, match=f"yielded a {type(garbage).__name__}, which is no"):
            await played(host, Scripted(Text(text="a"), garbage, Finish()))
    assert [what for what, _ in watcher.seen] == ["request", "chunk", "response"]


@pytest.mark.parametrize(
    "garbage",
    [{"stop_reason": None}, {"stop_reason": 5}, {"usage": {"input_tokens": 1}}, {"model": b"m"}],
)
async def test_a_model_that_ends_with_what_is_no_end_is_told_so(garbage: dict[str, Any]) -> None:
    (name,) = garbage
    watcher, model = Watcher(), Scripted(Text(text="a"), Finish(**garbage))
    async with Host([watcher], discover=False) as host:
        with pytest.raises(ModelError, match=f"Scripted ended with a Finish whose {name} is"):
            await played(host, model)
    assert watcher.reasons == ["error"]
    assert watcher.responses[0].text == "a"
    assert model.closed == 1


async def test_an_iterator_that_is_no_generator_will_do() -> None:
    class Counting:
        def __init__(self) -> None:
            self.items = [Text(text="a"), Finish()]

        def stream(self, request: Request) -> Counting:
            return self

        def __aiter__(self) -> Counting:
            return self

        async def __anext__(self) -> Block | Finish:
            return self.items.pop(0)

    async with Host(discover=False) as host:
        blocks, _ = await played(host, Counting())
    assert blocks == [Text(text="a")]


@pytest.mark.parametrize("how", ["to its end", "left early"])
async def test_a_model_that_fails_to_clean_up_harms_nothing(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Untidy:
        async def stream(self, request: Request) -> AsyncIterator[Any]:
            try:
                yield Text(text="a")
                yield Finish()
            finally:
                raise OSError("already closed")

    watcher = Watcher()
    with caplog.at_level(logging.WARNING, "gofer"):
        async with Host([watcher], discover=False) as host:
            async with host.stream(asking(), Untidy()) as stream:
                async for _ in stream:
                    if how == "left early":
                        break
    assert watcher.reasons == ["end_turn" if how == "to its end" else "cancelled"]
    assert "already closed" in caplog.text


# Leaving


async def test_leaving_early_closes_the_model() -> None:
    model, watcher = Scripted(Text(text="a"), Text(text="b"), Finish()), Watcher()
    async with Host([watcher], discover=False) as host:
        async with host.stream(asking(), model) as stream:
            async for _ in stream:
                break
        assert model.closed == 1
        assert stream.response.blocks == [Text(text="a")]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert watcher.reasons == ["cancelled"]


async def test_never_iterating_closes_it_too() -> None:
    watcher = Watcher()
    async with Host([watcher], discover=False) as host:
        async with host.stream(asking(), Scripted(Finish())):
            pass
    assert watcher.reasons == ["cancelled"]


async def test_a_cancelled_turn_keeps_what_came() -> None:
    waiting, watcher, closed = anyio.Event(), Watcher(), anyio.Event()

    class Endless:
        async def stream(self, request: Request) -> AsyncIterator[Any]:
            try:
                yield Text(text="so far")
                waiting.set()
                await anyio.sleep_forever()
            finally:
                closed.set()

    with anyio.fail_after(5):
        async with Host([watcher], discover=False) as host:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(played, host, Endless())
                await waiting.wait()
                tasks.cancel_scope.cancel()
            assert closed.is_set()
            assert watcher.reasons == ["cancelled"]
            assert watcher.responses[0].text == "so far"
            # The Host is as good as before.
            await played(host, Scripted(Finish()))


# Errors of tools


async def test_by_default_a_tools_error_ends_the_stream() -> None:
    model = Scripted(call("1", x=1), call("2", "fail"), call("3", x=3), Finish("tool_use"))
    got = []
    async with Host([Tools], discover=False) as host:
        with pytest.raises(PluginError, match="out of order"):
            async with host.stream(asking(), model) as stream:
                async for block in stream:
                    got.append(block)
    assert got == [ToolResult(tool_call_id="1", output="2")]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "plugin 'Tools' failed in on_stream_chunk: ValueError: no"),
        (PluginValidationError("fail.arguments", "too few"), "fail.arguments: too few"),
    ],
)
async def test_or_it_becomes_the_calls_result(error: Exception, said: str) -> None:
    watcher = Watcher()
    model = Scripted(call("1", "fail"), call("2", x=1), Finish("tool_use"))
    async with Host([Tools(error), watcher], discover=False) as host:
        blocks, response = await played(host, model, errors="report")
    failed = ToolResult(tool_call_id="1", output=said, is_error=True)
    assert blocks == [failed, ToolResult(tool_call_id="2", output="2")]
    assert response.stop_reason == "tool_use"
    assert response.messages[0].content == [call("1", "fail"), call("2", x=1)]
    # The plugins after the one that failed saw the result.
    assert len([what for what, _ in watcher.seen if what == "chunk"]) == 2


async def test_what_was_no_call_still_ends_the_stream() -> None:
    class Strict:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            raise ValueError("of a text")

    async with Host([Strict], discover=False) as host:
        with pytest.raises(PluginError, match="of a text"):
            await played(host, Scripted(Text(text="a"), Finish()), errors="report")


async def test_another_word_for_errors_is_refused() -> None:
    async with Host(discover=False) as host:
        with pytest.raises(PluginValidationError, match=r"host\.stream\.errors: 'ignore'"):
            host.stream(asking(), Scripted(), errors="ignore")  # type: ignore[arg-type]


# Turns


async def test_each_pair_is_a_turn_of_its_own_and_says_whose() -> None:
    watcher = Watcher()
    async with Host([watcher], discover=False) as host:
        await played(host, Scripted(Text(text="a"), Finish()))
        await played(host, Scripted(Finish()), session="another")
        await host.tools(session="third")
        first, second, third = (
            [turn for _, turn in watcher.seen if turn.session == session]
            for session in (host.default_session, "another", "third")
        )
        assert [len(turns) for turns in (first, second, third)] == [3, 2, 2]
        assert len({turn.id for turn in (first[0], second[0], third[0])}) == 3
        for turns in (first, second, third):
            assert len(set(turns)) == 1
            turn = turns[0]
            assert turn.host is host
            assert (turn.depth, turn.subagent_id, turn.runner, turn.agent) == (0, None, None, None)
            assert not turn.observed
            assert turn.probe is (turn.session == "third")


async def test_streams_go_on_side_by_side() -> None:
    gate, watcher = anyio.Event(), Watcher()
    answers: dict[str, str] = {}

    class Gated:
        async def stream(self, request: Request) -> AsyncIterator[Any]:
            yield Text(text="for ")
            await gate.wait()
            yield Text(text=request.turn.session)
            yield Finish()

    async def consume(host: Host, session: str) -> None:
        _, response = await played(host, Gated(), session=session)
        answers[session] = response.text

    sessions = [f"s{number}" for number in range(10)]
    with anyio.fail_after(5):
        async with Host([watcher], discover=False) as host:
            async with anyio.create_task_group() as tasks:
                for session in sessions:
                    tasks.start_soon(consume, host, session)
                await wait_all_tasks_blocked()
                gate.set()
    assert answers == {session: f"for {session}" for session in sessions}
    assert {response.turn.session: response.text for response in watcher.responses} == answers


async def test_a_model_that_can_be_bound_is_given_the_host() -> None:
    class Bound(Scripted):
        host: Host | None = None

        def bind(self, host: Host) -> None:
            self.host = host

    model = Bound(Finish())
    async with Host(discover=False) as host:
        await played(host, model)
        assert model.host is host


async def test_a_plugin_that_can_be_bound_is_given_the_host() -> None:
    class Bound(Watcher):
        host: Host | None = None

        def bind(self, host: Host) -> None:
            self.host = host
            assert host.config is not None

    plugin = Bound()
    async with Host([plugin], discover=False) as host:
        assert plugin.host is host


# Tools without a model


async def test_tools_asks_the_plugins_by_a_request_that_is_never_sent() -> None:
    watcher = Watcher()
    async with Host([Tools, watcher], discover=False) as host:
        tools = await host.tools()
        assert [tool.name for tool in tools] == ["double", "fail"]
        assert tools.to_openai()[0]["function"]["name"] == "double"
        assert await host.tools() == tools
    assert [what for what, _ in watcher.seen] == ["request", "response"] * 2
    assert all(turn.probe for _, turn in watcher.seen)


async def test_call_tool_has_the_plugins_execute_it() -> None:
    watcher = Watcher()
    async with Host([Tools, watcher], discover=False) as host:
        result = await host.call_tool("double", {"x": 21}, session="mine")
    assert (result.output, result.is_error) == ("42", False)
    assert [(what, turn.session, turn.probe) for what, turn in watcher.seen] == [
        ("chunk", "mine", False)
    ]


async def test_call_tool_raises_what_the_plugin_raises() -> None:
    async with Host([Tools(PluginValidationError("fail.x", "is bad"))], discover=False) as host:
        with pytest.raises(PluginValidationError, match=r"fail\.x: is bad"):
            await host.call_tool("fail")


async def test_a_tool_that_nobody_has_is_refused_with_those_there_are() -> None:
    async with Host([Tools], discover=False) as host:
        with pytest.raises(
            PluginNotSupportedError, match=r"no plugin has a tool 'x'.*: double, fail"
        ):
            await host.call_tool("x")
    async with Host(discover=False) as host:
        with pytest.raises(PluginNotSupportedError, match="the tools are: none"):
            await host.call_tool("x", {})


async def test_arguments_may_be_any_json_value_and_are_an_object_by_default() -> None:
    seen = []

    class Echo:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            assert isinstance(chunk.block, ToolCall)
            seen.append(chunk.block.arguments)
            chunk.block = ToolResult(tool_call_id=chunk.block.id, output="")

    async with Host([Echo], discover=False) as host:
        for arguments in ({"a": 1}, [1], "raw", 0, False):
            await host.call_tool("t", arguments)
        await host.call_tool("t")
    assert seen == [{"a": 1}, [1], "raw", 0, False, {}]


def test_a_transcript_of_an_agent_keeps_the_last_of_many_blocks() -> None:
    transcript = Transcript(last=True)
    for number in range(5000):
        block = Update(kind="usage", data={"used": number})
        transcript.add(block, block)
    kept = transcript.blocks()
    assert len(kept) == 4096
    assert kept[-1] == Update(kind="usage", data={"used": 4999})


@pytest.mark.parametrize(
    "block",
    [
        Update(kind="tool_call_update", data={"text": "x" * 2**20}),
        ToolResult(tool_call_id="1", output="x" * 2**20),
        ToolCall(id="1", name="write", arguments={"content": "x" * 2**20}),
        Image(data="x" * 2**20, media_type="image/png"),
        Text(text="x" * 2**20),
        Thinking(text="x" * 2**20),
    ],
    ids=lambda block: block.type,
)
def test_a_transcript_of_an_agent_is_bounded_in_text(block: Any) -> None:
    between = ToolCall(id="0", name="look")
    transcript = Transcript(last=True)
    for _ in range(70):
        transcript.add(block, block)
        transcript.add(between, between)
    kept = [found for found in transcript.blocks() if found.type == block.type]
    assert 60 <= sum(found != between for found in kept) <= 64
