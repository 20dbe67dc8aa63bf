"""LlamaServer against a server that behaves well, badly, and in every way between."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from gofer import (
    Block,
    ConfigError,
    Finish,
    GoferError,
    Host,
    Message,
    Model,
    ModelError,
    Request,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from gofer_runners.llama_server import LlamaServer, _clients, _exchange

pytestmark = pytest.mark.anyio

Recorded = Callable[[str], dict[str, Any]]
HI = Request(messages=[Message("user", "hi")], model="m")
CALL = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a": 1}'}}


def frame(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"delta": said, "finish_reason": finish}]}


async def ask(server: LlamaServer, request: Request = HI) -> tuple[list[Block], Finish]:
    *blocks, finish = [item async for item in server.stream(request)]
    assert isinstance(finish, Finish)
    return [block for block in blocks if not isinstance(block, Finish)], finish


async def fail(server: LlamaServer, request: Request = HI) -> tuple[list[Any], ModelError]:
    """Return what came before the error, and the error."""
    items: list[Any] = []
    with pytest.raises(ModelError) as caught:
        async for item in server.stream(request):
            items.append(item)
    return items, caught.value


# What is asked, and of whom


async def test_a_streamed_answer(serve: Any) -> None:
    async def handler(exchange: Any) -> None:
        await exchange.stream(
            frame(role="assistant", content=None), frame(reasoning_content="hm"),
            frame(content="a"), frame(tool_calls=[CALL]), frame("tool_calls"),
            {"choices": [], "usage": {"prompt_tokens": 1}, "model": "real"}, b"data: [DONE]\n\n",
        )  # fmt: skip

    async with serve(handler) as server:
        blocks, finish = await ask(LlamaServer(server.url, api_key="key"))
    call = ToolCall(id="x", name="f", arguments={"a": 1})
    assert blocks == [Thinking(text="hm"), Text(text="a"), call]
    assert finish == Finish("tool_use", Usage(input_tokens=1), "real")
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer key"
    assert request.json["model"] == "m"
    assert request.json["stream"] is True


def test_httpx_is_imported_at_the_first_use_only() -> None:
    code = "import sys, gofer_runners.llama_server as m; m.LlamaServer(); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "gofer_runners.llama_server.model" in said.stdout.split()
    assert "httpx" not in said.stdout.split()


def test_it_is_a_model() -> None:
    assert isinstance(LlamaServer(), Model)


def test_the_key_is_not_in_its_repr() -> None:
    server = LlamaServer("http://u:password@h?key=1", api_key="secret")
    assert repr(server) == "LlamaServer(base_url='http://h/v1', model=None)"


async def test_without_a_key_none_is_sent(serve: Any) -> None:
    async with serve(lambda exchange: exchange.say("a")) as server:
        await ask(LlamaServer(server.url))
    assert "authorization" not in server.requests[0].headers


async def test_settings_from_the_environment(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(lambda exchange: exchange.say("a")) as server:
        monkeypatch.setenv("GOFER_BASE_URL", f"{server.url}/v1/")
        monkeypatch.setenv("GOFER_MODEL", "named")
        monkeypatch.setenv("GOFER_API_KEY", "key\n")
        await ask(LlamaServer(), Request())
    assert server.requests[0].json["model"] == "named"
    assert server.requests[0].headers["authorization"] == "Bearer key"


async def test_settings_of_the_host(serve: Any) -> None:
    async with serve(lambda exchange: exchange.say("a")) as server:
        config = {"base_url": server.url, "model": "named", "api_key": "key"}
        async with Host(config=config, discover=False) as host:
            async with host.stream(Request(), LlamaServer(model="own")) as stream:
                assert [block async for block in stream] == [Text(text="a")]
            assert stream.response.model == "own"
    assert server.requests[0].json["model"] == "own"
    assert server.requests[0].headers["authorization"] == "Bearer key"


async def test_without_any_address() -> None:
    assert "GOFER_BASE_URL" in str((await fail(LlamaServer()))[1])


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\x00"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigError, match="no HTTP header") as caught:
        LlamaServer("http://h", api_key=key)
    assert key not in str(caught.value)


async def test_one_open_host_at_a_time() -> None:
    server = LlamaServer("http://127.0.0.1:1")
    async with Host(discover=False) as first:
        server.bind(first)
        server.bind(first)
        async with Host(discover=False) as second:
            with pytest.raises(GoferError, match="another open Host"):
                server.bind(second)
    async with Host(discover=False) as third:
        server.bind(third)


@pytest.mark.parametrize("bound", [True, False])
async def test_the_model_is_asked_for_once(serve: Any, recorded: Recorded, bound: bool) -> None:
    async def handler(exchange: Any) -> None:
        if exchange.method == "GET":
            assert exchange.path == "/v1/models"
            await exchange.answer(200, recorded("http.200-models.json")["body"])
        else:
            await exchange.say("a")

    async with serve(handler) as server, Host(discover=False) as host:
        unnamed = LlamaServer(server.url)
        if bound:
            unnamed.bind(host)
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(ask, unnamed, Request())
        _, finish = await ask(unnamed, Request())
        await ask(unnamed, Request())
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert finish.model == name
    assert [r.method for r in server.requests].count("GET") == 1
    assert {r.json["model"] for r in server.requests if r.method == "POST"} == {name}


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, "{}"), (501, ""), (200, "<html>"), (200, '{"data": []}'), (200, '{"data": [{}, 3]}')],
)
async def test_a_server_without_a_list_of_models(serve: Any, status: int, body: str) -> None:
    async def handler(exchange: Any) -> None:
        if exchange.method == "GET":
            await exchange.answer(status, body)
        elif "model" in exchange.json:
            await exchange.say("a")
        else:
            await exchange.answer(400, {"error": {"message": "which model?"}})

    async with serve(handler) as server:
        _, error = await fail(LlamaServer(server.url), Request())
        assert "which model?" in str(error)
        assert "GOFER_MODEL" in str(error)
        assert (await ask(LlamaServer(server.url)))[0] == [Text(text="a")]


async def test_a_model_that_was_changed_is_asked_for_again(serve: Any) -> None:
    names = ["old", "new"]

    async def handler(exchange: Any) -> None:
        if exchange.method == "GET":
            await exchange.answer(200, {"data": [{"id": names.pop(0)}]})
        elif exchange.json["model"] == "old":
            await exchange.answer(404, {"error": {"message": "no such model"}})
        else:
            await exchange.say("a")

    async with serve(handler) as server:
        unnamed = LlamaServer(server.url)
        assert "no such model" in str((await fail(unnamed, Request()))[1])
        assert (await ask(unnamed, Request()))[1].model == "new"


# How the answer comes


ANSWER = [Text(text="ä"), ToolCall(id="x", name="f", arguments={"a": 1})]
STREAM = (
    ": ping\r\n\r\nevent: x\r\n"
    'data: {"choices":[{"delta":{"content":"ä"}}]}\r\n\r\n'
    'data: {"choices":null}\n\n'
    f"data:{json.dumps(frame(tool_calls=[CALL]))}\n\n"
    'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    'data: {"choices":[],"usage":null}\n\n'
).encode()


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data: [DONE]", b""])
async def test_a_stream_in_pieces(serve: Any, size: int, done: bytes) -> None:
    async def handler(exchange: Any) -> None:
        await exchange.head(transfer_encoding="chunked")
        data = STREAM + done
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            await exchange.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await exchange.send(b"0\r\n\r\n")

    async with serve(handler) as server:
        blocks, finish = await ask(LlamaServer(server.url))
    assert blocks == ANSWER
    assert finish.stop_reason == "tool_use"


async def test_a_compressed_stream(serve: Any) -> None:
    async def handler(exchange: Any) -> None:
        await exchange.head(content_encoding="gzip")
        await exchange.send(gzip.compress(STREAM))

    async with serve(handler) as server:
        assert (await ask(LlamaServer(server.url)))[0] == ANSWER


def packed(times: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    for _ in range(times - 1):
        data = gzip.compress(data)
    return data


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,gzip,gzip", "br", "GZIP, identity", "zstd"])
async def test_what_may_unpack_into_more_than_a_memory_holds_is_not_unpacked(
    serve: Any, coding: str, status: int
) -> None:
    async def handler(exchange: Any) -> None:
        await exchange.head(status, content_encoding=coding)
        await exchange.send(packed(coding.lower().count("gzip") or 1))

    async with serve(handler) as server:
        tracemalloc.start()
        try:
            items, error = await fail(LlamaServer(server.url))
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert items == []
    assert "content coding" in str(error)
    assert error.status == status
    assert most < 8 << 20


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_whole_completion_instead_of_a_stream(
    serve: Any, recorded: Recorded, kind: str
) -> None:
    body = recorded("http.200-reasoning.json")["body"]
    async with serve(lambda exchange: exchange.answer(200, "\n " + body, kind)) as server:
        blocks, finish = await ask(LlamaServer(server.url))
    assert [type(block) for block in blocks] == [Thinking, Text]
    assert finish.stop_reason == "end_turn"
    assert finish.usage == Usage(input_tokens=17, output_tokens=40, cached_tokens=16)
    assert finish.model == "SmolLM2-135M-Instruct.Q4_1.gguf"


async def test_a_server_that_keeps_the_stream_open(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_exchange, "_AFTER_FINISH", 0.0)

    async def handler(exchange: Any) -> None:
        await exchange.say("a", done=False)
        await exchange.gone()

    async with serve(handler) as server:
        blocks, finish = await ask(LlamaServer(server.url))
    assert blocks == [Text(text="a")]
    assert finish.stop_reason == "end_turn"


@pytest.mark.parametrize(
    "more",
    [b": ping\n\n", b'data: {"choices": []}\n\n', b"x", b'data: {"choices": [{"delta": {}}]}\n\n'],
)
async def test_a_server_that_goes_on_for_ever_after_the_finish(
    serve: Any, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    monkeypatch.setattr(_exchange, "_AFTER_FINISH", 0.1)

    async def handler(exchange: Any) -> None:
        await exchange.say("a", done=False)
        while True:
            await exchange.send(more)
            await anyio.sleep(0.01)

    async with serve(handler) as server:
        with anyio.fail_after(10):
            blocks, finish = await ask(LlamaServer(server.url))
    assert blocks == [Text(text="a")]
    assert finish.stop_reason == "end_turn"


async def test_a_connection_lost_after_the_finish_is_an_end(serve: Any) -> None:
    async def handler(exchange: Any) -> None:
        await exchange.head(content_length="1000")
        await exchange.send(b"data: " + json.dumps(frame("stop", content="a")).encode() + b"\n\n")

    async with serve(handler) as server:
        blocks, finish = await ask(LlamaServer(server.url))
    assert blocks == [Text(text="a")]
    assert finish.stop_reason == "end_turn"


# What goes wrong


async def test_nothing_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with anyio.fail_after(10):
            _, error = await fail(LlamaServer(url))
    assert f"nothing listens at {url}/v1" in str(error)
    assert "GOFER_BASE_URL" in str(error)


async def test_an_unknown_host() -> None:
    _, error = await fail(LlamaServer("http://no-such-host.invalid"))
    assert "no-such-host.invalid" in str(error)


@pytest.mark.parametrize("bytes_sent", [b"", b"HTTP/1.1 2", b"SSH-2.0-OpenSSH_9\r\n"])
async def test_no_http(serve: Any, bytes_sent: bytes) -> None:
    async with serve(lambda exchange: exchange.send(bytes_sent)) as server:
        items, error = await fail(LlamaServer(server.url))
    assert items == []
    assert "closed the connection, or does not speak HTTP" in str(error)
    assert server.connections == 1, "a request that may have been begun is not sent again"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("http.401-badkey.json", "refused the request (401: Invalid API Key)"),
        ("http.404-post.json", "may lack its path or have /v1 twice"),
        ("http.400-grammar-tools.json", "answered 400: Cannot use custom grammar constraints"),
        ("http.501-metrics.json", "answered 501: This server does not support"),
        ("http.503-noslot.json", "answered 503: no slot available"),
        ("http.400-context-stream.json", "context overflow: the request does not fit"),
    ],
)
async def test_recorded_refusals(serve: Any, recorded: Recorded, name: str, words: str) -> None:
    answer = recorded(name)
    async with serve(lambda exchange: exchange.answer(answer["status"], answer["body"])) as server:
        _, error = await fail(LlamaServer(server.url))
    assert words in str(error)
    assert error.status == answer["status"]
    assert error.body == answer["body"]


async def test_a_context_overflow_says_how_much(serve: Any, recorded: Recorded) -> None:
    answer = recorded("http.400-context-stream.json")
    said = json.loads(answer["body"])["error"]
    async with serve(lambda exchange: exchange.answer(400, answer["body"])) as server:
        _, error = await fail(LlamaServer(server.url))
    assert f"({said['n_prompt_tokens']} tokens into {said['n_ctx']})" in str(error)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_is_asked_for_or_said_to_be_wrong(serve: Any, status: int) -> None:
    async with serve(lambda exchange: exchange.answer(status, "{}")) as server:
        _, without = await fail(LlamaServer(server.url))
        _, wrong = await fail(LlamaServer(server.url, api_key="key"))
    assert "set GOFER_API_KEY" in str(without)
    assert "the key in GOFER_API_KEY (or api_key) is not accepted" in str(wrong)


async def test_the_key_is_in_no_error(serve: Any) -> None:
    async def handler(exchange: Any) -> None:
        said = exchange.headers["authorization"]
        if exchange.path == "/v1/chat/completions":
            await exchange.answer(401, {"error": {"message": f"wrong: {said}"}})
        else:
            await exchange.stream({"error": {"message": f"wrong: {said}"}})

    async with serve(handler) as server:
        for url in (server.url, f"{server.url}/x/v1"):
            _, error = await fail(LlamaServer(url, api_key="secret-key"))
            assert "wrong: Bearer ***" in str(error)
            assert "secret-key" not in repr(error)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (500, "", "text/plain", "answered 500: an empty body"),
        (502, "<html><title>Bad\nGateway</title>", "text/html", "an HTML page: Bad Gateway"),
        (500, "it broke", "text/plain", "answered 500: it broke"),
        (500, '{"error": "it broke"}', "application/json", "answered 500: it broke"),
        (422, '{"detail": [{"msg": "it broke"}]}', "application/json", "it broke"),
        (429, '{"message": "slow down"}', "application/json", "answered 429: slow down"),
        (500, "x" * 100_000, "text/plain", "xxx…"),
        (500, b"\xff\xfe", "text/plain", "answered 500"),
        (200, "", "text/event-stream", "an empty body"),
        (200, "  \n", "application/json", "an empty body"),
        (200, "<html>", "text/html", "answered with no completion: <html>"),
        (200, "[]", "application/json", "answered with no completion: []"),
        (200, '{"a": 1}', "application/json", "answered with no completion"),
        (200, '{"error": {"message": "it broke"}}', "application/json", "error: it broke"),
        (200, "Hello", "text/plain", "it began: Hello"),
        (204, "", "text/plain", "an empty body"),
    ],
)
async def test_other_answers(
    serve: Any, status: int, body: str | bytes, kind: str, words: str
) -> None:
    async with serve(lambda exchange: exchange.answer(status, body, kind)) as server:
        items, error = await fail(LlamaServer(server.url))
    assert items == []
    assert words in str(error)
    assert len(str(error)) < 3000
    assert len(error.body or "") < 3000


async def test_a_refusal_without_end_is_reported(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_exchange, "_AFTER_FINISH", 0.05)

    async def handler(exchange: Any) -> None:
        await exchange.head(500, content_length="100")
        await exchange.send(b"it broke")
        await exchange.gone()

    async with serve(handler) as server:
        assert "answered 500" in str((await fail(LlamaServer(server.url)))[1])


async def test_redirects_are_not_followed(serve: Any) -> None:
    async with serve(lambda exchange: exchange.say("a")) as other:
        answer = {"location": f"{other.url}/v1/chat/completions"}
        async with serve(lambda exchange: exchange.answer(307, "", **answer)) as server:
            _, error = await fail(LlamaServer(server.url, api_key="key"))
    assert "redirects (307)" in str(error)
    assert other.requests == []


async def test_a_model_that_loads_is_waited_for(
    serve: Any, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(exchange: Any) -> None:
        if len(server.requests) < 3:
            await exchange.answer(503, recorded("http.503-loadingchat.json")["body"])
        else:
            await exchange.say("a")

    async with serve(handler) as server:
        assert (await ask(LlamaServer(server.url)))[0] == [Text(text="a")]
    assert len(server.requests) == 3
    (said,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "is loading its model; waiting for it, 120 s at most" in said.getMessage()


async def test_a_model_that_loads_for_ever(serve: Any, recorded: Recorded) -> None:
    answer = recorded("http.503-loading-v1-models.json")
    async with serve(lambda exchange: exchange.answer(503, answer["body"])) as server:
        _, error = await fail(LlamaServer(server.url, load_timeout=0.1), Request())
    assert "has not loaded its model after 0.1 s" in str(error)
    assert error.status == 503


async def test_a_server_that_does_not_answer(serve: Any) -> None:
    async with serve(lambda exchange: exchange.gone()) as server:
        _, error = await fail(LlamaServer(server.url, read_timeout=0.1))
    assert "sent nothing for 0.1 s: it is too busy, or hangs" in str(error)


async def test_a_stream_that_stalls(serve: Any) -> None:
    async def handler(exchange: Any) -> None:
        await exchange.say("a", finish=None, done=False)
        await exchange.gone()

    async with serve(handler) as server:
        items, error = await fail(LlamaServer(server.url, read_timeout=0.1))
    assert items == [Text(text="a")]
    assert "sent nothing for 0.1 s: it stalled; read_timeout" in str(error)


@pytest.mark.parametrize("head", [{}, {"content_length": "1000"}, {"transfer_encoding": "chunked"}])
async def test_a_stream_cut_in_the_middle(serve: Any, head: dict[str, str]) -> None:
    calls = [CALL, {"index": 1, "id": "y", "function": {"name": "g", "arguments": '{"b'}}]

    async def handler(exchange: Any) -> None:
        await exchange.head(**head)
        data = b"".join(
            b"data: " + json.dumps(one).encode() + b"\n\n"
            for one in (frame(content="a"), frame(tool_calls=calls), frame(content="lost"))
        )[:-10]
        await exchange.send(b"%x\r\n%s" % (1000, data) if "transfer_encoding" in head else data)

    async with serve(handler) as server:
        items, error = await fail(LlamaServer(server.url))
    assert items[0] == Text(text="a")
    if head:
        assert "broke off" in str(error)
    else:
        assert "ended without a finish reason, inside a tool call: g" in str(error)
    assert items[1:] == [ToolCall(id="x", name="f", arguments={"a": 1})]


async def test_an_error_in_the_stream(serve: Any) -> None:
    async def handler(exchange: Any) -> None:
        await exchange.stream(frame(content="a"), {"error": {"message": "it broke", "code": 500}})
        await exchange.gone()

    async with serve(handler) as server:
        items, error = await fail(LlamaServer(server.url))
    assert items == [Text(text="a")]
    assert "answered 500: it broke" in str(error)
    assert error.status == 500


async def test_an_older_llama_server_says_its_error_in_a_field(serve: Any) -> None:
    async with serve(lambda e: e.stream(b'error: {"code":500,"message":"it broke"}\n\n')) as server:
        assert "it broke" in str((await fail(LlamaServer(server.url)))[1])


# Connections


async def test_leaving_early_closes_the_connection(serve: Any) -> None:
    closed = anyio.Event()

    async def handler(exchange: Any) -> None:
        await exchange.say("a", "b", finish=None, done=False)
        await exchange.gone()
        closed.set()

    async with serve(handler) as server, aclosing(LlamaServer(server.url).stream(HI)) as stream:
        assert await anext(stream) == Text(text="a")
        await stream.aclose()
        with anyio.fail_after(5):
            await closed.wait()


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("begun", [True, False])
async def test_cancelling_closes_the_connection(serve: Any, begun: bool, bound: bool) -> None:
    asked, closed = anyio.Event(), anyio.Event()

    async def handler(exchange: Any) -> None:
        if begun:
            await exchange.say("a", finish=None, done=False)
        asked.set()
        await exchange.gone()
        closed.set()

    async def run() -> None:
        async with aclosing(server.stream(HI)) as stream:
            async for _ in stream:
                pass

    async with serve(handler) as at, Host(discover=False) as host:
        server = LlamaServer(at.url)
        if bound:
            server.bind(host)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await asked.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await closed.wait()


async def test_few_requests_to_a_client(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clients, "PER_CLIENT", 2)
    made: list[Any] = []
    make = _clients.Clients._make

    def watched(self: Any) -> Any:
        made.append(make(self))
        return made[-1]

    monkeypatch.setattr(_clients.Clients, "_make", watched)
    all_there = anyio.Event()

    async def handler(exchange: Any) -> None:
        if len(server.requests) == 5:
            all_there.set()
        await all_there.wait()
        await exchange.say("a")

    async with serve(handler) as server:
        async with Host(discover=False) as host:
            bound = LlamaServer(server.url)
            bound.bind(host)
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(ask, bound)
            assert len(made) == 3
            for _ in range(3):
                await ask(bound)
            assert len(made) == 3
            assert not any(client.is_closed for client in made)
        assert all(client.is_closed for client in made)
        await ask(bound)  # without its Host, a client of its own
        assert len(made) == 4
        assert made[-1].is_closed


async def test_a_local_server_is_asked_without_a_proxy(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with serve(lambda exchange: exchange.say("a")) as server:
        assert (await ask(LlamaServer(server.url)))[0] == [Text(text="a")]


async def test_a_proxy_is_used_for_other_servers(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with serve(lambda exchange: exchange.say("a")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        blocks, _ = await ask(LlamaServer("http://model.invalid"))
    assert blocks == [Text(text="a")]
    assert proxy.requests[0].path == "http://model.invalid/v1/chat/completions"


async def test_a_kept_connection_that_was_closed_is_replaced_once(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(exchange: Any) -> None:
        if len(server.requests) == 2:
            await exchange.hang_up()  # on the connection of the first request
            return
        await exchange.head(connection="keep-alive", content_length=str(len(body)))
        await exchange.send(body)

    body = b"data: " + json.dumps(frame("stop", content="a")).encode() + b"\n\ndata: [DONE]\n\n"
    async with serve(handler) as server, Host(discover=False) as host:
        kept = LlamaServer(server.url)
        kept.bind(host)
        # Connections are kept over TLS only; this one passes for it.
        assert kept._endpoint is not None
        object.__setattr__(kept._endpoint, "secure", True)
        for _ in range(2):
            assert (await ask(kept))[0] == [Text(text="a")]
        assert (len(server.requests), server.connections) == (3, 2)
