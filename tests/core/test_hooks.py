"""The four hooks: what is refused, who is called when, and what becomes of errors."""

from __future__ import annotations

import functools
import gc
import logging
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from typing import Any, ClassVar

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from gofer import (
    Finish,
    GoferError,
    Host,
    Message,
    ModelError,
    PluginError,
    PluginErrors,
    PluginInternalError,
    PluginNotSupportedError,
    PluginValidationError,
    Request,
    Response,
    Run,
    Runner,
    StreamChunk,
    SubagentResult,
    SubagentSpec,
    Text,
    ToolCall,
    ToolResult,
    hookimpl,
)
from gofer._registry import Registry

pytestmark = pytest.mark.anyio


class Scripted:
    """A model that says what it was told to, and raises what it was told to."""

    def __init__(self, *items: Any) -> None:
        self.items = items or (Text(text="hello"), Finish())
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


class Completions:
    """Notes the responses it sees."""

    def __init__(self) -> None:
        self.responses: list[Response] = []

    @hookimpl
    def on_response_complete(self, response: Response) -> None:
        self.responses.append(response)

    @property
    def reasons(self) -> list[str]:
        return [response.stop_reason for response in self.responses]


def asking() -> Request:
    return Request(messages=[Message("user", "hi")])


async def played(host: Host, model: Scripted, **options: Any) -> Response:
    async with host.stream(asking(), model, **options) as stream:
        async for _ in stream:
            pass
    return stream.response


# Registration


def refusal(plugin: object) -> str:
    registry = Registry()
    with pytest.raises(PluginValidationError) as caught:
        registry.add(plugin, "plugin", (2, "", "", 0))
    assert registry.on_request == registry.on_stream_chunk == registry.on_response_complete == ()
    assert registry.manager.get_plugins() == set()
    return str(caught.value)


def accepted(plugin: object) -> tuple[str, ...]:
    return Registry().add(plugin, "plugin", (2, "", "", 0))


class NoHook:
    def helper(self) -> None: ...


class UnknownHook:
    @hookimpl
    def on_requests(self, request: Request) -> None: ...


class UnknownSpecname:
    @hookimpl(specname="on_everything")
    def watch(self, request: Request) -> None: ...


class Unmarked:
    @hookimpl
    def on_request(self, request: Request) -> None: ...

    def on_stream_chunk(self, chunk: StreamChunk) -> None: ...


class WrongParameter:
    @hookimpl
    def on_request(self, req: Request) -> None: ...


class TooMany:
    @hookimpl
    def on_stream_chunk(self, chunk: StreamChunk, host: Host) -> None: ...


class Defaulted:
    @hookimpl
    def on_request(self, request: Request | None = None) -> None: ...


class Starred:
    @hookimpl
    def on_request(self, *args: Any) -> None: ...


class WrappedRequest:
    @hookimpl(wrapper=True)
    def on_request(self, request: Request) -> Generator[None, object, None]:
        yield


class OldWrappedChunk:
    @hookimpl(hookwrapper=True)
    def on_stream_chunk(self, chunk: StreamChunk) -> Generator[None, object, None]:
        yield


class YieldingCompletion:
    @hookimpl
    def on_response_complete(self, response: Response) -> Generator[None]:
        yield


class AsyncYielding:
    @hookimpl
    async def on_request(self, request: Request) -> AsyncIterator[None]:
        yield


class AsyncRun:
    @hookimpl
    async def run_subagent(self, spec: SubagentSpec, run: Run) -> SubagentResult | None: ...


class YieldingRun:
    @hookimpl
    def run_subagent(self, spec: SubagentSpec, run: Run) -> Generator[None]:
        yield


class WrapperWithoutYield:
    @hookimpl(wrapper=True)
    def run_subagent(self, spec: SubagentSpec, run: Run) -> None: ...


class Partial:
    def __init__(self) -> None:
        self.on_request = functools.partial(print, "request")


class MarkedPartial:
    def __init__(self) -> None:
        self.watch = hookimpl(specname="on_request")(functools.partial(print, "request"))


class CallableObject:
    class Inner:
        def __call__(self, request: Request) -> None: ...

    on_request = Inner()


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (NoHook, ["NoHook: implements no hook", "on_request", "run_subagent", "@gofer.hookimpl"]),
        (UnknownHook, ["UnknownHook.on_requests: 'on_requests' is no hook", "on_stream_chunk"]),
        (UnknownSpecname, ["UnknownSpecname.watch: 'on_everything' is no hook of gofer"]),
        (Unmarked, ["Unmarked.on_stream_chunk: has a hook's name but no mark", "rename it"]),
        (
            WrongParameter,
            ["on_request: parameter 'req' is unknown; the hook is on_request(request)"],
        ),
        (TooMany, ["parameter 'host' is unknown; the hook is on_stream_chunk(chunk)"]),
        (Defaulted, ["parameter 'request' must be ordinary and without a default"]),
        (Starred, ["parameter '*args' is unknown"]),
        (WrappedRequest, ["on_request takes no wrappers", "plain or an async function"]),
        (OldWrappedChunk, ["on_stream_chunk takes no wrappers"]),
        (YieldingCompletion, ["on_response_complete must not yield"]),
        (AsyncYielding, ["on_request must not yield"]),
        (AsyncRun, ["run_subagent must be a plain function", "could never decline"]),
        (YieldingRun, ["yields exactly if it is marked @gofer.hookimpl(wrapper=True)"]),
        (WrapperWithoutYield, ["yields exactly if it is marked"]),
        (Partial, ["Partial.on_request: is a partial, and a hook is a function or a method"]),
        (MarkedPartial, ["MarkedPartial.watch: is a partial"]),
        (CallableObject, ["CallableObject.on_request: is a Inner"]),
    ],
)
def test_what_is_no_plugin_is_refused_with_what_to_do(
    plugin: Callable[[], object], said: list[str]
) -> None:
    message = refusal(plugin())
    for part in said:
        assert part in message


async def test_a_host_refuses_what_is_no_plugin_before_anything_runs() -> None:
    for plugin in (NoHook, NoHook(), object(), 3, "gofer_plugins.delegation"):
        with pytest.raises(PluginValidationError, match="implements no hook"):
            async with Host([plugin], discover=False):
                pytest.fail("it must not open")


async def test_one_object_given_twice_is_refused() -> None:
    plugin = Completions()
    with pytest.raises(PluginValidationError, match="registered already"):
        async with Host([plugin, plugin], discover=False):
            pytest.fail("it must not open")


def module(**members: object) -> types.ModuleType:
    made = types.ModuleType("my_plugin")
    vars(made).update(members)
    return made


def marked(hook: str, seen: list[str], say: str) -> Callable[..., None]:
    def on_request(request: Request) -> None:
        seen.append(say)

    return hookimpl(specname=hook)(on_request)


async def test_classes_modules_and_every_kind_of_method_are_plugins() -> None:
    seen: list[str] = []

    class Kinds:
        @hookimpl
        @staticmethod
        def on_request(request: Request) -> None:
            seen.append("static")

    class ClassMethod:
        @classmethod
        @hookimpl
        def on_request(cls, request: Request) -> None:
            seen.append(f"class {cls.__name__}")

    class Base:
        @hookimpl
        def on_request(self, request: Request) -> None:
            seen.append(f"inherited by {type(self).__name__}")

    class Child(Base):
        pass

    class Overridden(Base):
        @hookimpl
        def on_request(self, request: Request) -> None:
            seen.append("overridden")

    class Aliased:
        @hookimpl(specname="on_request")
        def watch(self, request: Request) -> None:
            seen.append("aliased")

        @hookimpl(specname="on_request")
        def watch_again(self, request: Request) -> None:
            seen.append("aliased twice")

    class WithoutArgument:
        @hookimpl
        def on_request(self) -> None:
            seen.append("no argument")

    class InInstance:
        def __init__(self) -> None:
            self.on_request = marked("on_request", seen, "in the instance")

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> None:
            seen.append("before")
            function(*args, **kwargs)

        return call

    class Decorated:
        @hookimpl
        @decorated
        def on_request(self, request: Request) -> None:
            seen.append("decorated")

    plugins = [
        Kinds, ClassMethod(), Child, Overridden, Aliased(), WithoutArgument, InInstance, Decorated,
        module(on_request=marked("on_request", seen, "module"), hookimpl=hookimpl, helper=print),
    ]  # fmt: skip
    async with Host(plugins, discover=False) as host:
        await played(host, Scripted())
        assert all(info.hooks == ("on_request",) for info in host.plugins)
    assert seen == [
        "static", "class ClassMethod", "inherited by Child", "overridden", "aliased",
        "aliased twice", "no argument", "in the instance", "before", "decorated", "module",
    ]  # fmt: skip


def test_no_property_is_read_at_registration() -> None:
    class Careful:
        shared: ClassVar[int] = 1

        @hookimpl
        def on_request(self, request: Request) -> None: ...

        @property
        def connection(self) -> object:
            raise AssertionError("read at registration")

        @functools.cached_property
        def cached(self) -> object:
            raise AssertionError("read at registration")

    assert accepted(Careful()) == ("on_request",)


def test_a_pydantic_model_may_be_a_plugin() -> None:
    class Settings(BaseModel):
        level: int = 1

        @hookimpl
        def on_request(self, request: Request) -> None: ...

    assert accepted(Settings()) == ("on_request",)


# The order

KINDS = ["plain", "async", "awaitable"]


class Step:
    """A plugin that notes when it was called and when it was done, and leaves its mark."""

    def __init__(self, name: str, kind: str, log: list[str], **options: bool) -> None:
        self.label, self.kind, self.log = name, kind, log

        def work(argument: Any) -> None:
            if isinstance(argument, Request):
                argument.messages.append(Message("system", name))
            elif isinstance(argument, StreamChunk):
                block = argument.block
                assert isinstance(block, Text)
                argument.block = Text(text=f"{block.text}>{name}")

        async def slowly(argument: Any) -> None:
            log.append(f"{name} called")
            await checkpoint()
            work(argument)
            await checkpoint()
            log.append(f"{name} done")

        def quickly(argument: Any) -> None:
            log.append(f"{name} called")
            work(argument)
            log.append(f"{name} done")

        made = {"plain": quickly, "async": slowly, "awaitable": lambda it: slowly(it)}[kind]

        def on_request(request: Request) -> Any:
            return made(request)

        def on_stream_chunk(chunk: StreamChunk) -> Any:
            return made(chunk)

        async def on_response_complete(response: Response) -> None:
            answer = made(response)
            if answer is not None:
                await answer

        mark = hookimpl(**options)
        self.on_request = mark(on_request)
        self.on_stream_chunk = mark(on_stream_chunk)
        self.on_response_complete = mark(on_response_complete)


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2]),  # built-in, discovered, given
        st.sampled_from(["acme", "zeta"]),
        st.sampled_from(KINDS),
        st.sampled_from([{}, {"tryfirst": True}, {"trylast": True}]),
    ),
    max_size=6,
)


def expected_order(steps: Sequence[tuple[str, int, str, dict[str, bool]]]) -> list[str]:
    """Return the names in the order of the contract, said in its own words."""
    built_in = sorted(s for s in steps if s[1] == 0)
    discovered = sorted((s for s in steps if s[1] == 1), key=lambda s: (s[2], s[0]))
    in_list_order = [s for s in steps if s[1] == 2]
    ordered = [*built_in, *discovered, *in_list_order]
    first = [s for s in ordered if "tryfirst" in s[3]]
    last = [s for s in ordered if "trylast" in s[3]]
    return [s[0] for s in [*first, *(s for s in ordered if not s[3]), *last]]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_plugins_are_called_one_after_another_in_one_order(
    backend: str, data: st.DataObject
) -> None:
    drawn = data.draw(STEPS)
    names = data.draw(st.permutations([f"p{number}" for number in range(len(drawn))]))
    steps = [
        (name, group, "gofer" if group == 0 else dist, options)
        for name, (group, dist, _, options) in zip(names, drawn, strict=True)
    ]
    log: list[str] = []
    ranked = [
        (Step(name, kind, log, **options), name, (group, dist if group < 2 else "", name, 0))
        for (name, group, dist, options), (_, _, kind, _) in zip(steps, drawn, strict=True)
    ]
    given_plugins = [(step, name) for step, name, rank in ranked if rank[0] == 2]
    order = expected_order(steps)
    in_order = [f"{name} {what}" for name in order for what in ("called", "done")]

    async def main() -> None:
        async with Host(discover=False) as host:
            registry = host._registry
            for position, (step, name) in enumerate(given_plugins):
                registry.add(step, name, (2, "", "", position))
            for step, name, rank in ranked:
                if rank[0] != 2:
                    registry.add(step, name, rank)
            model = Scripted(Text(text=""), Finish())
            log.clear()
            async with host.stream(asking(), model) as stream:
                assert log == in_order
                assert not model.closed
                log.clear()
                blocks = [block async for block in stream]
            assert log == in_order * 2  # the one block, then the response
            # Each saw what the earlier ones had left.
            assert [m.text for m in model.requests[0].messages] == ["hi", *order]
            assert blocks == [Text(text="".join(f">{name}" for name in order))]

    anyio.run(main, backend=backend)


# Errors


class Failing:
    """Fails in one hook, plainly or after a wait."""

    def __init__(self, hook: str, error: BaseException, *, slow: bool = False) -> None:
        def plain(argument: Any) -> None:
            raise error

        async def slowly(argument: Any) -> None:
            await checkpoint()
            raise error

        made = slowly if slow else plain
        wrappers: dict[str, Callable[..., Any]] = {
            "on_request": lambda request: made(request),
            "on_stream_chunk": lambda chunk: made(chunk),
            "on_response_complete": lambda response: made(response),
        }
        setattr(self, hook, hookimpl(wrappers[hook]))


class Named(Failing):
    def __init__(self, name: str, hook: str, error: BaseException, *, slow: bool = False) -> None:
        super().__init__(hook, error, slow=slow)
        self.name = name


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("hook", ["on_request", "on_stream_chunk", "on_response_complete"])
async def test_a_plain_exception_arrives_as_a_plugin_error(hook: str, slow: bool) -> None:
    original = KeyError("lost")
    async with Host([Named("mine", hook, original, slow=slow)], discover=False) as host:
        with pytest.raises(PluginError) as caught:
            await played(host, Scripted())
    error = caught.value
    assert type(error) is PluginError
    assert error.__cause__ is original
    assert (error.plugin, error.hook) == ("mine", hook)
    assert str(error) == f"plugin 'mine' failed in {hook}: KeyError: 'lost'"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("hook", ["on_request", "on_stream_chunk", "on_response_complete"])
async def test_an_exception_that_cannot_say_what_it_is_arrives_all_the_same(hook: str) -> None:
    original, last = Unspeakable(), Completions()
    async with Host([Named("mine", hook, original), last], discover=False) as host:
        with pytest.raises(PluginError, match=f"'mine' failed in {hook}: Unspeakable") as caught:
            await played(host, Scripted(Text(text="a"), Finish()))
    assert caught.value.__cause__ is original
    assert len(last.responses) == (hook != "on_request")


@pytest.mark.parametrize("hook", ["on_request", "on_stream_chunk", "on_response_complete"])
@pytest.mark.parametrize(
    "original", [PluginValidationError("x", "is bad"), ModelError("gone"), PluginInternalError("n")]
)
async def test_an_error_of_gofers_arrives_as_it_is(hook: str, original: GoferError) -> None:
    async with Host([Named("mine", hook, original)], discover=False) as host:
        with pytest.raises(type(original)) as caught:
            await played(host, Scripted())
    assert caught.value is original
    if isinstance(original, PluginError):
        assert (original.plugin, original.hook) == ("mine", hook)
        original.plugin = original.hook = None


async def test_an_error_in_on_request_aborts_before_anything_is_sent() -> None:
    log: list[str] = []
    model = Scripted()
    plugins = [
        Step("before", "plain", log),
        Failing("on_request", OSError("no")),
        Step("after", "async", log),
    ]
    async with Host(plugins, discover=False) as host:
        with pytest.raises(PluginError, match="OSError: no"):
            async with host.stream(asking(), model):
                pytest.fail("the turn must not begin")
    assert model.requests == []
    assert log == ["before called", "before done"]


async def test_an_error_in_on_stream_chunk_ends_the_stream_with_it() -> None:
    class Censor:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, Text) and chunk.block.text == "bad":
                raise ValueError("not that")

    model, ends = (
        Scripted(Text(text="good"), Text(text="bad"), Text(text="more"), Finish()),
        Completions(),
    )
    got = []
    async with Host([Censor(), ends], discover=False) as host:
        with pytest.raises(PluginError, match="not that"):
            async with host.stream(asking(), model) as stream:
                async for block in stream:
                    got.append(block)
        assert stream.response.stop_reason == "error"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert got == stream.response.blocks == [Text(text="good")]
    assert ends.responses == [stream.response]
    assert model.closed == 1


async def test_completion_runs_for_every_plugin_and_one_failure_is_raised_as_it_is() -> None:
    first, last = Completions(), Completions()
    original = PluginNotSupportedError("cannot")
    plugins = [first, Failing("on_response_complete", original, slow=True), last]
    async with Host(plugins, discover=False) as host:
        with pytest.raises(PluginNotSupportedError) as caught:
            await played(host, Scripted())
    assert caught.value is original
    assert first.reasons == last.reasons == ["end_turn"]


async def test_several_failures_come_together() -> None:
    between = Completions()
    plugins = [
        Named("one", "on_response_complete", ValueError("1")),
        between,
        Named("two", "on_response_complete", PluginError("2"), slow=True),
    ]
    async with Host(plugins, discover=False) as host:
        with pytest.raises(PluginErrors) as caught:
            await played(host, Scripted())
    assert between.reasons == ["end_turn"]
    one, two = caught.value.exceptions
    assert isinstance(one, PluginError)
    assert isinstance(one.__cause__, ValueError)
    assert isinstance(two, PluginError)
    assert [(e.plugin, e.hook) for e in (one, two)] == [
        ("one", "on_response_complete"),
        ("two", "on_response_complete"),
    ]


async def test_they_never_mask_the_streams_own_error(caplog: pytest.LogCaptureFixture) -> None:
    boom = ModelError("the server broke off")
    plugins = [Failing("on_response_complete", ValueError("also")), (ends := Completions())]
    async with Host(plugins, discover=False) as host:
        with caplog.at_level(logging.WARNING, "gofer"), pytest.raises(ModelError) as caught:
            await played(host, Scripted(Text(text="a"), boom))
    assert caught.value is boom
    assert ends.reasons == ["error"]
    assert "ValueError: also" in caplog.text


async def test_nor_the_error_of_the_body() -> None:
    async with Host([Failing("on_response_complete", ValueError("also"))], discover=False) as host:
        with pytest.raises(KeyError, match="mine"):
            async with host.stream(asking(), Scripted()):
                raise KeyError("mine")


class Talker(Runner):
    name = "talker"

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        await run.emit(Text(text="done"))
        return run.result()


async def test_nor_do_they_replace_a_childs_result() -> None:
    plugins = [Talker, Failing("on_response_complete", ValueError("plugin"))]
    async with Host(plugins, discover=False, config={"default_runner": "talker"}) as host:
        result = await host.run(SubagentSpec(task="t"))
    assert (result.exit_ok, result.summary, result.error) == (True, "done", None)


@pytest.mark.parametrize("hook", ["on_request", "on_stream_chunk"])
async def test_a_plugins_error_in_a_child_is_in_its_result(hook: str) -> None:
    plugins = [Talker, Named("mine", hook, ValueError("no"))]
    async with Host(plugins, discover=False, config={"default_runner": "talker"}) as host:
        result = await host.run(SubagentSpec(task="t"))
    assert (result.exit_ok, result.stop_reason) == (False, "error")
    assert result.error == f"plugin 'mine' failed in {hook}: ValueError: no"


@pytest.mark.parametrize("hook", ["on_request", "on_stream_chunk", "on_response_complete"])
async def test_a_returned_value_is_refused_for_nobody_takes_it(hook: str) -> None:
    class Returning:
        def __init__(self) -> None:
            async def later() -> str:
                return "a block"

            made = {
                "on_request": lambda request: later(),
                "on_stream_chunk": lambda chunk: "a block",
                "on_response_complete": lambda response: later(),
            }
            setattr(self, hook, hookimpl(made[hook]))

    async with Host([Returning()], discover=False) as host:
        with pytest.raises(PluginValidationError, match=r"a str was returned.*in place") as caught:
            await played(host, Scripted())
    assert (caught.value.plugin, caught.value.hook) == ("Returning", hook)


# Replacing blocks


def replacing(block: Any) -> object:
    class Replacing:
        @hookimpl
        def on_stream_chunk(self, chunk: StreamChunk) -> None:
            if isinstance(chunk.block, ToolCall):
                chunk.block = block

    return Replacing()


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (None, "a block is needed, not NoneType"),
        ("text", "a block is needed, not str"),
        (Finish(), "a block is needed, not Finish"),
        (ToolResult(tool_call_id="b", output=""), "call 'a' was answered with a result for 'b'"),
        (ToolCall(id="b", name="n"), "call 'a' was renamed to 'b'"),
    ],
)
async def test_what_may_not_replace_a_call_is_refused(block: Any, said: str) -> None:
    model = Scripted(ToolCall(id="a", name="n"), Finish("tool_use"))
    async with Host([replacing(block)], discover=False) as host:
        with pytest.raises(PluginValidationError, match=said):
            await played(host, model)


@pytest.mark.parametrize(
    "block",
    [
        ToolResult(tool_call_id="a", output="done"),
        ToolCall(id="a", name="n", arguments={"safe": True}),
        Text(text="[not allowed]"),
    ],
)
async def test_what_may_replace_it_is_what_comes_out(block: Any) -> None:
    model = Scripted(ToolCall(id="a", name="n"), Finish("tool_use"))
    async with Host([replacing(block)], discover=False) as host:
        response = await played(host, model)
    assert response.blocks == [block]


# Streams that are left


@pytest.mark.parametrize("slow", [False, True])
async def test_an_abandoned_stream_is_completed_as_cancelled(slow: bool) -> None:
    log: list[str] = []
    ends, model = Completions(), Scripted(Text(text="a"), Text(text="b"), Finish())
    plugins = [Step("x", "async" if slow else "plain", log), ends]
    async with Host(plugins, discover=False) as host:
        async with host.stream(asking(), model) as stream:
            async for _ in stream:
                break
    assert ends.reasons == ["cancelled"]
    assert stream.response.text == "a>x"
    assert log[-2:] == ["x called", "x done"]
    assert model.closed == 1


async def test_an_error_then_is_raised_for_nothing_else_would_tell_of_it() -> None:
    async with Host([Failing("on_response_complete", ValueError("v"))], discover=False) as host:
        with pytest.raises(PluginError, match="ValueError: v"):
            async with host.stream(asking(), Scripted()) as stream:
                async for _ in stream:
                    break


async def test_a_cancelled_stream_is_completed_under_a_shield() -> None:
    log: list[str] = []
    ends, waiting = Completions(), anyio.Event()

    class Slow(Scripted):
        async def stream(self, request: Request) -> AsyncIterator[Any]:
            yield Text(text="a")
            waiting.set()
            await anyio.sleep_forever()

    async def consume(host: Host) -> None:
        async with host.stream(asking(), Slow()) as stream:
            async for _ in stream:
                pass

    with anyio.fail_after(5):
        async with Host([Step("x", "async", log), ends], discover=False) as host:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume, host)
                await waiting.wait()
                log.clear()
                tasks.cancel_scope.cancel()
    assert log == ["x called", "x done"]
    assert ends.reasons == ["cancelled"]


@pytest.mark.parametrize("how", ["left", "cancelled"])
async def test_completing_a_left_stream_takes_five_seconds_at_most(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gofer import stream as module

    assert module.CLOSING_SECONDS == 5.0
    monkeypatch.setattr(module, "CLOSING_SECONDS", 0.05)
    called = []

    class Hanging:
        @hookimpl
        async def on_response_complete(self, response: Response) -> None:
            called.append("hanging")
            await anyio.sleep_forever()

    class After:
        @hookimpl
        async def on_response_complete(self, response: Response) -> None:
            called.append("after")
            await anyio.sleep_forever()

    with anyio.fail_after(4):
        async with Host([Hanging(), After()], discover=False) as host:
            with anyio.CancelScope() as scope:
                async with host.stream(asking(), Scripted()) as stream:
                    async for _ in stream:
                        if how == "cancelled":
                            scope.cancel()
                            await checkpoint()
                        break
    assert called == ["hanging", "after"]


async def test_a_turn_cancelled_while_it_completes_still_tells_every_plugin() -> None:
    called, inside = [], anyio.Event()

    class Waiting:
        @hookimpl
        async def on_response_complete(self, response: Response) -> None:
            inside.set()
            await anyio.sleep_forever()

    class Telling:
        @hookimpl
        async def on_response_complete(self, response: Response) -> None:
            await checkpoint()
            called.append(response.stop_reason)

    with anyio.fail_after(4):
        async with Host([Waiting(), Telling()], discover=False) as host:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(played, host, Scripted())
                await inside.wait()
                await wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
    assert called == ["end_turn"]


async def test_no_coroutine_is_left_unawaited() -> None:
    """A warning about one is an error here; it comes when the coroutine is collected."""
    log: list[str] = []
    plugins = [
        Step("x", "async", log),
        Failing("on_response_complete", ValueError("1"), slow=True),
        Failing("on_response_complete", ValueError("2")),
        Step("y", "awaitable", log),
    ]
    async with Host(plugins, discover=False) as host:
        with pytest.raises(PluginErrors):
            await played(host, Scripted())
        with pytest.raises(PluginErrors):
            async with host.stream(asking(), Scripted()):
                pass
        with pytest.raises(PluginErrors):
            await host.tools()
    gc.collect()


# run_subagent


class Answering:
    """Takes runs by the hook alone."""

    def __init__(self, name: str, takes: str, log: list[str]) -> None:
        self.name, self.takes, self.log = name, takes, log

    @hookimpl
    def run_subagent(self, spec: SubagentSpec, run: Run) -> Awaitable[SubagentResult] | None:
        self.log.append(self.name)
        return self._answer(run) if spec.task == self.takes else None

    async def _answer(self, run: Run) -> SubagentResult:
        return run.result(f"by {self.name}")


async def test_the_first_that_answers_takes_the_child() -> None:
    log: list[str] = []
    plugins = [Answering(name, takes, log) for name, takes in [("a", "x"), ("b", "y"), ("c", "y")]]
    async with Host(plugins, discover=False) as host:
        result = await host.run(SubagentSpec(task="y"))
        assert (result.summary, log) == ("by b", ["a", "b"])
        declined = await host.run(SubagentSpec(task="z", runner="w"))
    assert (declined.stop_reason, declined.exit_ok) == ("error", False)
    assert "no runner took the child: runner 'w'" in str(declined.error)


async def test_wrappers_watch_and_bound_a_childs_whole_life() -> None:
    log: list[str] = []

    class Watching:
        def __init__(self, name: str) -> None:
            self.name = name

        @hookimpl(wrapper=True)
        def run_subagent(self, spec: SubagentSpec, run: Run) -> Generator[None, Any, Any]:
            log.append(f"{self.name} asked for {run.id}")
            answer = yield
            return self._watch(answer)

        async def _watch(self, answer: Awaitable[SubagentResult]) -> SubagentResult:
            log.append(f"{self.name} begins")
            result = await answer
            log.append(f"{self.name} ends")
            return result.model_copy(update={"summary": f"{result.summary}, seen by {self.name}"})

    plugins = [Watching("outer"), Answering("a", "x", log), Watching("inner")]
    async with Host(plugins, discover=False) as host:
        result = await host.run(SubagentSpec(task="x"))
    assert log == [
        "outer asked for sub-0", "inner asked for sub-0", "a", "outer begins", "inner begins",
        "inner ends", "outer ends",
    ]  # fmt: skip
    assert result.summary == "by a, seen by inner, seen by outer"


@pytest.mark.parametrize(
    ("answer", "said"),
    [("text", "returned a str from run_subagent"), (7, "returned a int from run_subagent")],
)
async def test_what_cannot_be_awaited_is_an_error_of_the_child(answer: object, said: str) -> None:
    class Wrong:
        @hookimpl
        def run_subagent(self, spec: SubagentSpec, run: Run) -> Any:
            return answer

    async with Host([Wrong()], discover=False) as host:
        result = await host.run(SubagentSpec(task="x"))
    assert said in str(result.error)


async def test_an_error_in_the_hook_itself_is_an_error_of_the_child() -> None:
    class Wrong:
        @hookimpl
        def run_subagent(self, spec: SubagentSpec, run: Run) -> Any:
            raise LookupError("no slot")

    async with Host([Wrong()], discover=False) as host:
        result = await host.run(SubagentSpec(task="x"))
    assert (result.stop_reason, result.exit_ok) == ("error", False)
    assert "LookupError: no slot" in str(result.error)


@pytest.mark.parametrize(
    ("name", "value"),
    [("messages", None), ("messages", ["text"]), ("tools", [1]), ("tools", ())],
)
async def test_a_request_made_unusable_names_the_plugin(name: str, value: object) -> None:
    class Careless:
        name = "careless"

        @hookimpl
        def on_request(self, request: Request) -> None:
            setattr(request, which, value)

    which = name
    async with Host([Careless()], discover=False) as host:
        with pytest.raises(PluginValidationError, match=f"request.{name}") as caught:
            await host.tools()
    assert (caught.value.plugin, caught.value.hook) == ("careless", "on_request")
