"""JSON-RPC over an agent's pipes: what comes in, in whatever form, and what goes out."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import RunnerError
from gofer_runners.acp import _connection, _noise, _refusals, _requests
from gofer_runners.acp._errors import AgentError, Lost
from gofer_runners.acp._messages import encode

from .peer import Peer, peer

pytestmark = pytest.mark.anyio


class Asking:
    """A request that goes on in a task."""

    def __init__(self, ask: Callable[[], Awaitable[Any]]) -> None:
        self._ask = ask
        self.result: Any = None
        self.error: Exception | None = None
        self.done = anyio.Event()

    async def run(self) -> None:
        try:
            self.result = await self._ask()
        except Exception as error:
            self.error = error
        self.done.set()


async def ask(p: Peer, tasks: Any, method: str = "m", **params: Any) -> tuple[Asking, Any]:
    """Ask the agent; return the request, and the message as the agent saw it."""
    asking = Asking(lambda: p.connection.request(method, params))
    tasks.start_soon(asking.run)
    return asking, await p.read()


async def ask_unread(p: Peer, tasks: Any) -> Asking:
    """Ask an agent that does not read; return when the request lies in its pipe."""
    sent = anyio.Event()
    asking = Asking(lambda: p.connection.request("m", {}, sent.set))
    tasks.start_soon(asking.run)
    await sent.wait()
    return asking


async def test_a_request_is_sent_as_json_rpc_and_gets_its_result() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, message = await ask(p, tasks, "session/new", cwd="/x")
        assert message == {
            "jsonrpc": "2.0",
            "id": 0,
            "method": "session/new",
            "params": {"cwd": "/x"},
        }
        p.answer(0, {"a": 1})
        await asking.done.wait()
        assert asking.result == {"a": 1}


async def test_who_is_told_that_it_was_sent_is_told_before_the_answer() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        told: list[str] = []
        asking = Asking(lambda: p.connection.request("m", {}, lambda: told.append("sent")))
        tasks.start_soon(asking.run)
        await p.read()
        await anyio.wait_all_tasks_blocked()
        assert told == ["sent"]
        assert not asking.done.is_set()
        p.answer(0, {})


@pytest.mark.parametrize("number", ["0", " 0 ", 0.0])
async def test_the_id_may_come_back_in_another_type(number: object) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.answer(number, {"ok": True})
        await asking.done.wait()
        assert asking.result == {"ok": True}
        assert p.connection.noise.count == 0


@pytest.mark.parametrize(
    "number",
    [None, True, False, 1, -1, "x", "", [], {}, [0], 0.5, "9" * 5000, "\u0660" * 5000, 10**4000,
     float("inf"), float("nan")],
)  # fmt: skip
async def test_an_answer_that_nobody_asked_for_is_counted_and_skipped(number: object) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.send({"jsonrpc": "2.0", "id": number, "result": {"wrong": True}})
        p.answer(0, {"right": True})
        await asking.done.wait()
        assert asking.result == {"right": True}
        assert p.connection.noise.count == 1


async def test_the_first_of_two_answers_counts() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.send({"id": 0, "result": {"first": 1}}, {"id": 0, "result": {"second": 2}})
        await asking.done.wait()
        assert asking.result == {"first": 1}
        following, message = await ask(p, tasks)
        p.answer(message["id"], {})
        await following.done.wait()
        assert p.connection.noise.count == 1


@pytest.mark.parametrize("result", [None, [], "text", 3, True])
async def test_a_result_is_returned_whatever_it_is(result: object) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.answer(0, result)
        await asking.done.wait()
        assert asking.error is None
        assert asking.result == result


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ({"code": -32000, "message": "log in"}, -32000, "log in (code -32000)"),
        ({"code": 401, "message": "no", "data": {"a": 1}}, 401, 'no (code 401): {"a": 1}'),
        ({"code": 1, "message": "no", "data": "why"}, 1, "no (code 1): why"),
        ({"code": 1, "message": "no", "data": {}}, 1, "no (code 1)"),
        ({"message": None}, None, "no reason given"),
        ({"message": " "}, None, "no reason given"),
        ({"code": 0, "message": ""}, 0, "no reason given (code 0)"),
        ({}, None, "no reason given"),
        ("just text", None, "just text"),
        ([1], None, "[1]"),
        ([], None, "[]"),
        (False, None, "false"),
        (0, None, "0"),
        ({"message": {"a": None}}, None, '{"a": null}'),
        ({"code": ["x"], "message": True}, ["x"], 'true (code ["x"])'),
        ({"code": "E1", "message": "no", "data": [True]}, "E1", 'no (code "E1"): [true]'),
    ],
)
async def test_an_error_is_raised_whatever_its_form(error: object, code: object, text: str) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks, "session/prompt")
        p.send({"id": 0, "error": error})
        await asking.done.wait()
        assert isinstance(asking.error, AgentError)
        assert asking.error.code == code
        assert str(asking.error) == f"the agent refused session/prompt: {text}"


@pytest.mark.parametrize(
    "error",
    [
        {"code": 1, "message": "no", "data": "x" * 50_000},
        {"code": 1, "message": "x" * 50_000},
        {"code": 1, "message": ["x" * 50_000]},
        {"code": "x" * 50_000, "message": "no"},
        "x" * 50_000,
    ],
)
async def test_an_error_is_told_in_few_words_however_long_it_is(error: object) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.send({"id": 0, "error": error})
        await asking.done.wait()
        assert "xxx" in str(asking.error)
        assert len(str(asking.error)) < 2200


@pytest.mark.parametrize("key", ["code", "message", "data"])
async def test_an_error_is_told_however_deeply_it_is_nested(key: str) -> None:
    # The depth up to which it can be read is not the one up to which it can be shown.
    async with peer() as p, anyio.create_task_group() as tasks:
        for depth in range(100, 1100, 20):
            asking, message = await ask(p, tasks)
            deep = b"[" * depth + b"]" * depth
            p.write(b'{"id": %d, "error": {"%s": %s}}\n' % (message["id"], key.encode(), deep))
            await asking.done.wait()
            assert isinstance(asking.error, RunnerError)
            assert not isinstance(asking.error, Lost)


@pytest.mark.parametrize("number", [b'"id": null, ', b""])
async def test_an_error_without_an_id_ends_all_that_waits(
    number: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_requests, "_UNCLEAR_SECONDS", 0.01)
    error = b'{"jsonrpc": "2.0", %s"error": {"code": -32700, "message": "Parse error"}}\n' % number
    async with peer() as p, anyio.create_task_group() as tasks:
        askings = [(await ask(p, tasks, f"m{i}"))[0] for i in range(2)]
        p.write(error)
        for at, asking in enumerate(askings):
            await asking.done.wait()
            assert str(asking.error) == f"the agent refused m{at}: Parse error (code -32700)"
        with caplog.at_level("INFO", "gofer.acp"):
            p.write(error)
            await p.connection.settle()
        assert "an error of no request" in caplog.text
        assert "Parse error" in caplog.text
        asking, message = await ask(p, tasks)  # it is no end
        p.answer(message["id"], {"ok": True})
        await asking.done.wait()
        assert asking.result == {"ok": True}


@pytest.mark.parametrize("code", [-32601, -32600, 5, None])
async def test_an_error_without_an_id_is_first_thought_of_what_has_none(
    code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_requests, "_UNCLEAR_SECONDS", 0.01)
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "what was that?"}}
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        await p.connection.notify("session/cancel", {})
        await p.connection.answer(77, {})
        for unclear in range(2):
            p.send(error)
            await p.connection.settle()
            assert p.connection.noise.count == unclear + 1
        await anyio.wait_all_tasks_blocked()
        assert not asking.done.is_set()
        p.send(error)
        await asking.done.wait()
        assert "what was that?" in str(asking.error)


async def test_many_errors_without_an_id_are_as_one() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        before = len(anyio.get_running_tasks())
        p.send(*[{"jsonrpc": "2.0", "error": {"code": -32700}}] * 500)
        await p.connection.settle()
        assert len(anyio.get_running_tasks()) <= before + 1
        p.answer(0, {})
        await asking.done.wait()
        assert asking.error is None


async def test_an_answer_may_name_the_method_and_a_notification_may_have_no_error() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        empty = {"result": None, "error": None}
        p.send({"jsonrpc": "2.0", "method": "session/update", "params": {"a": 1}, **empty})
        p.send({"jsonrpc": "2.0", "id": 0, "method": "m", "result": {"ok": True}})
        await asking.done.wait()
        assert asking.result == {"ok": True}
        assert p.seen == [("session/update", {"a": 1})]


BIG = {"text": "x" * 300_000}  # more than the pipe and what was read of it
ENDS: dict[str, tuple[Callable[[Peer], object], str | None]] = {
    "a result": (lambda p: p.answer(0, "all the same"), None),
    "an error": (
        lambda p: p.send({"jsonrpc": "2.0", "id": 0, "error": {"code": 1, "message": "too long"}}),
        "the agent refused m: too long (code 1)",
    ),
    "an error without an id": (
        lambda p: p.send({"jsonrpc": "2.0", "error": {"code": -32700, "message": "too long"}}),
        "the agent refused m: too long (code -32700)",
    ),
    "an exit": (lambda p: p.exit(3, keep_open=True), "agent x: it exited with code 3"),
    "the end of stdout": (lambda p: p.close("stdout"), "agent x: it closed its stdout"),
    "the end of stdin": (
        lambda p: p.close("stdin"),
        "agent x: it does not read its stdin any more",
    ),
}


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("end", ENDS)
async def test_who_has_not_read_a_request_can_end_it_all_the_same(
    end: str, queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in [(_requests, "_UNCLEAR_SECONDS"), (_connection, "_EXIT_SECONDS")]:
        monkeypatch.setattr(module, name, 0.05)
    does, said = ENDS[end]
    async with peer() as p, anyio.create_task_group() as tasks:
        if queued:  # behind an answer of ours that is not read either
            tasks.start_soon(p.connection.answer, 7, BIG)
            await anyio.wait_all_tasks_blocked()
        asking = Asking(lambda: p.connection.request("m", {} if queued else BIG))
        tasks.start_soon(asking.run)
        await anyio.wait_all_tasks_blocked()
        os.read(p._stdin, 65536)
        await anyio.wait_all_tasks_blocked()
        does(p)
        await asking.done.wait()
        assert (asking.result, asking.error and str(asking.error)) == (
            "all the same" if said is None else None,
            said,
        )
        assert p.connection.lost is not None
        assert p.connection.over.is_set()


async def test_what_comes_instead_of_a_first_message_is_shown() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks, "initialize")
        p.write(b"Please log in at\nhttps://example.org\n")
        await p.connection.settle()
        p.exit(0)
        await asking.done.wait()
        assert str(asking.error) == (
            "agent x: it exited with code 0 before it answered initialize: does it speak the Agent "
            "Client Protocol, or need an argument for that, such as --acp?; its stdout begins:\n"
            "Please log in at\nhttps://example.org"
        )


async def test_who_only_makes_noise_is_not_listened_to_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_noise, "_MOST", 1000)
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks, "initialize")
        p.write(b"y\n" * 1001)
        await asking.done.wait()
        assert str(asking.error).startswith(
            "agent x: it does not speak the Agent Client Protocol, or needs an argument for that, "
            "such as --acp; its stdout begins:\ny\ny\n"
        )
        assert len(str(asking.error)) < 1000


async def test_who_has_spoken_once_may_make_noise_as_he_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_noise, "_MOST", 1000)
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.send({"jsonrpc": "2.0", "method": "hello"})
        p.write(b"y\n" * 2000)
        p.answer(0, {})
        await asking.done.wait()
        assert asking.error is None
        assert p.connection.noise.count == 2000
        assert p.connection.noise.instead == ""


async def test_what_is_answered_after_an_error_without_an_id_was_read() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, message = await ask(p, tasks)
        p.write(b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700}}\n')
        await p.connection.settle()
        p.answer(message["id"], {"ok": True})
        await asking.done.wait()
        assert asking.result == {"ok": True}


@pytest.mark.parametrize(
    "line",
    [
        {"level": "warn", "msg": "upload failed", "error": "ECONNREFUSED"},
        {"level": "warn", "error": {"code": 5, "message": "x"}},
        {"ts": 1, "msg": "tool ok", "error": False},
        {"jsonrpc": "2.0", "error": "x"},
        {"jsonrpc": "2.0", "id": None, "error": None},
    ],
)
async def test_a_line_of_a_log_is_no_error_of_a_request(
    line: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_requests, "_UNCLEAR_SECONDS", 0.01)
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, message = await ask(p, tasks)
        p.write(json.dumps(line).encode() + b"\n")
        await p.connection.settle()
        await anyio.wait_all_tasks_blocked()
        assert p.connection.noise.count == 1
        assert not asking.done.is_set()
        p.answer(message["id"], {})
        await asking.done.wait()
        assert asking.error is None


DEEP = b"[" * 25_000 + b"]" * 25_000  # deeper than any version of Python reads
LONG = b"9" * 5000


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":0,"result":%s}',
        b'{"jsonrpc": "2.0", "id": "0", "error": {"data": %s}}',
        b'{"id":0,"jsonrpc":"2.0","result":%s}',
        b' {"jsonrpc":"2.0","result":%s,"id":0}\r',
        b'{"error":{"data":%s},"id":0,"jsonrpc":"2.0"}',
    ],
)
@pytest.mark.parametrize(("value", "why"), [(DEEP, "nested too deeply"), (LONG, "digits")])
async def test_an_answer_that_cannot_be_read_ends_what_waits_for_it(
    line: bytes, value: bytes, why: str
) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.send({"method": "n", "params": {}})
        p.write(line % value + b"\n")
        await asking.done.wait()
        assert p.seen == [("n", {})]
        assert str(asking.error).startswith("the agent's answer to m cannot be read: ")
        assert why in str(asking.error)
        assert not isinstance(asking.error, Lost)
        asking, message = await ask(p, tasks)
        p.answer(message["id"], {"ok": True})
        await asking.done.wait()
        assert asking.result == {"ok": True}


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":%s}',
        b'{"jsonrpc":"2.0","id":0,"method":"r","params":{"result":%s}}',
        b'{"jsonrpc":"2.0","method":"n","params":{"result":%s,"id":0}}',
        b'{"jsonrpc":"2.0","method":"r","params":%s,"id":0}',
        b'{"jsonrpc":"2.0","id":0,"x":%s}',
        b'[{"jsonrpc":"2.0","id":0,"result":%s}]',
    ],
)
async def test_what_cannot_be_read_and_is_no_answer_to_what_waits_is_skipped(line: bytes) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.write(line % DEEP + b"\n")
        p.answer(0, {"ok": True})
        await asking.done.wait()
        assert asking.result == {"ok": True}
        assert p.connection.noise.count == 1


async def test_what_is_skipped_is_logged_whatever_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "gofer.acp")
    async with peer() as p:
        for depth in range(100, 1100, 20):
            p.write(b'{"id": 7, "result": %s}\n' % (b"[" * depth + b"]" * depth))
            await p.connection.settle()
        assert p.connection.noise.count == 50
        assert caplog.text.count("skipped on stdout") == 50


NOISE = [
    b"a banner",
    b"42",
    b"null",
    b'"text"',
    b"[]",
    b'[{"jsonrpc": "2.0", "id": 0, "result": {}}]',
    b"true",
    b"{",
    b"{'id': 0}",
    b"\xff\xfe",
    b"\x00",
    b"[" * 100_000,
    b"NaN",
    b"\x1b[31mred\x1b[0m",
]


async def test_what_is_no_message_is_counted_and_skipped() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        for line in NOISE:
            for at in range(0, len(line), 50_000):
                p.write(line[at : at + 50_000])
                await anyio.wait_all_tasks_blocked()
            p.write(b"\n")
        p.write(b"\n  \n\r\n")
        p.answer(0, {"ok": True})
        await asking.done.wait()
        assert asking.result == {"ok": True}
        assert p.connection.noise.count == len(NOISE)


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": 0, "result": {"text": "caf\xe9"}}',
        b'\xef\xbb\xbf{"id": 0, "result": {"text": "caf\xef\xbf\xbd"}}',
        b'{"id": 0, "result": {"text": "caf\xef\xbf\xbd"}}\r',
    ],
)
async def test_an_answer_counts_also_where_its_text_is_broken(line: bytes) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.write(line + b"\n")
        await asking.done.wait()
        assert asking.result == {"text": "caf\ufffd"}


async def test_notifications_and_requests_are_taken_in_their_order() -> None:
    async with peer() as p:
        p.hold = anyio.Event()
        sent = [{"method": "n", "params": {"i": i}} for i in range(200)]
        p.send(*sent, {"id": "abc", "method": "r", "params": {}})
        await anyio.wait_all_tasks_blocked()
        assert p.seen == []
        p.hold.set()
        await p.connection.settle()
        assert p.seen == [*(("n", {"i": i}) for i in range(200)), ("abc", "r", {})]


async def test_an_answer_is_handled_after_the_notifications_before_it() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.hold = anyio.Event()
        p.send({"method": "n", "params": {}}, {"id": 0, "result": {}})
        await anyio.wait_all_tasks_blocked()
        assert not asking.done.is_set()
        p.hold.set()
        await asking.done.wait()
        assert p.seen == [("n", {})]


@pytest.mark.parametrize("params", [None, [], "x", 3, [1]])
async def test_parameters_that_are_no_object_are_none(params: object) -> None:
    async with peer() as p:
        p.send({"method": "n", "params": params}, {"method": "n"}, {"id": 1, "method": 3})
        await p.connection.settle()
        assert p.seen == [("n", {}), ("n", {}), (1, "3", {})]


# Its end


async def test_its_death_fails_all_that_waits_with_how_and_with_its_stderr() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        askings = [(await ask(p, tasks, f"m{i}"))[0] for i in range(3)]
        p.complain(b"x" * 100 + b"\nthe cause\n")
        p.exit(3)
        for asking in askings:
            await asking.done.wait()
            assert isinstance(asking.error, Lost)
            assert str(asking.error).startswith("agent x: it exited with code 3; its stderr ends:")
            assert str(asking.error).endswith("the cause")
        with pytest.raises(Lost, match="code 3"):
            await p.connection.request("m", {})
        with pytest.raises(Lost, match="code 3"):
            await p.connection.notify("m", {})
        await p.connection.answer(1, {})


async def test_its_death_by_a_signal_is_told() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.exit(-9)
        await asking.done.wait()
        assert str(asking.error) == "agent x: it was ended by SIGKILL"


async def test_what_it_wrote_before_its_death_counts_though_others_hold_the_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_connection, "_EXIT_SECONDS", 0.01)
    async with peer() as p, anyio.create_task_group() as tasks:
        first, _ = await ask(p, tasks)
        second, _ = await ask(p, tasks)
        p.hold = anyio.Event()
        p.send({"method": "n", "params": {}})
        await anyio.wait_all_tasks_blocked()
        p.send({"id": 0, "result": {"late": True}})
        p.exit(0, keep_open=True)
        await p.process.wait()
        p.hold.set()
        await first.done.wait()
        await second.done.wait()
        assert first.result == {"late": True}
        assert isinstance(second.error, Lost)
        assert "it exited with code 0" in str(second.error)


@pytest.mark.parametrize("closes", ["stdout", "all"])
async def test_its_last_line_counts_also_without_its_end(closes: str) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        first, _ = await ask(p, tasks)
        second, _ = await ask(p, tasks)
        p.write(b'{"id": 0, "result": {"late": true}}')
        if closes == "stdout":
            p.close("stdout")
        else:
            p.exit(0)
        await first.done.wait()
        await second.done.wait()
        assert first.result == {"late": True}
        assert isinstance(second.error, Lost)
        assert p.connection.noise.count == 0


async def test_who_holds_the_pipe_and_writes_on_is_not_listened_to_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_connection, "_EXIT_SECONDS", 0.01)
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)

        async def on_notification(method: str, params: dict[str, Any]) -> None:
            p.send({"method": "again", "params": {}})  # as much again as was read

        p.connection._on_notification = on_notification
        p.exit(0, keep_open=True)
        await p.process.wait()
        p.send({"method": "first", "params": {}})
        await asking.done.wait()
        assert "it exited with code 0" in str(asking.error)


@pytest.mark.parametrize(
    ("code", "stderr", "hint"),
    [(0, b"", True), (0, b"bye\n", True), (1, b"", True), (1, b"why\n", False), (-9, b"", False)],
)
async def test_who_ends_before_any_answer_and_does_not_say_why_may_speak_something_else(
    code: int, stderr: bytes, hint: bool
) -> None:
    text = "before it answered initialize: does it speak the Agent Client Protocol"
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks, "initialize")
        p.complain(stderr)
        p.exit(code)
        await asking.done.wait()
        assert (text in str(asking.error)) is hint
        assert str(asking.error).endswith(stderr.decode().strip())
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks, "initialize")
        p.answer(0, {})
        await asking.done.wait()
        asking, _ = await ask(p, tasks, "session/new")
        p.exit(code)
        await asking.done.wait()
        assert text not in str(asking.error)


@pytest.mark.parametrize("kind", [ValueError, RecursionError, MemoryError])
async def test_a_fault_in_the_reading_is_the_error_of_all_that_waits(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)

        async def fail(*_: Any) -> None:
            raise kind("of ours" + "!" * 5000)

        p.connection._on_notification = fail
        p.send({"method": "n", "params": {}})
        await asking.done.wait()
        assert isinstance(asking.error, Lost)
        assert f"agent x: what it sent could not be handled: {kind.__name__}: of ours" in str(
            asking.error
        )
        assert len(str(asking.error)) < 2200
        assert "reading failed" in caplog.text
        with pytest.raises(Lost, match="of ours"):
            await p.connection.request("m", {})


async def test_the_end_of_its_stdout_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "_EXIT_SECONDS", 0.01)
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.close("stdout")
        await asking.done.wait()
        assert str(asking.error) == "agent x: it closed its stdout"
        assert p.connection.closed.is_set()


async def test_who_closed_its_stdin_is_still_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "_EXIT_SECONDS", 0.01)
    async with peer() as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        p.close("stdin")
        await p.connection.answer(7, {})
        with pytest.raises(Lost, match="does not read its stdin"):
            await p.connection.request("m", {})
        assert p.connection.lost is not None
        p.answer(0, {"still": True})
        await asking.done.wait()
        assert asking.result == {"still": True}


async def test_what_can_never_have_been_read_fails_when_stdin_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_connection, "_EXIT_SECONDS", 0.01)
    async with peer() as p, anyio.create_task_group() as tasks:
        first, _ = await ask(p, tasks)
        second = await ask_unread(p, tasks)
        p.close("stdin")
        await second.done.wait()
        assert str(second.error) == "agent x: it does not read its stdin any more"
        assert p.connection.lost is second.error
        assert not first.done.is_set()
        p.answer(0, "it was read")
        await first.done.wait()
        assert first.result == "it was read"


async def test_who_exits_with_something_unread_is_told_of_by_his_exit() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        asking = await ask_unread(p, tasks)
        p.exit(3)
        await asking.done.wait()
        assert str(asking.error) == "agent x: it exited with code 3"


async def test_a_message_over_the_limit_ends_the_connection_with_a_reason() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        p.connection._lines._limit = 1000
        asking, _ = await ask(p, tasks)
        p.write(b"x" * 1001)
        await asking.done.wait()
        assert isinstance(asking.error, Lost)
        assert "agent x: it sent a message of more than 1000 bytes" in str(asking.error)


async def test_closing_the_connection_fails_what_waits() -> None:
    async with peer(serve=False) as p, anyio.create_task_group() as tasks:
        asking, _ = await ask(p, tasks)
        async with anyio.create_task_group() as reading:
            reading.start_soon(p.connection.serve)
            await anyio.wait_all_tasks_blocked()
            reading.cancel_scope.cancel()
        await asking.done.wait()
        assert isinstance(asking.error, Lost)


# Writing


async def test_a_write_that_was_cut_off_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async with peer() as p:
        with anyio.move_on_after(0.01):
            await p.connection.notify("big", {"x": "x" * 1_000_000})
        with pytest.raises(Lost, match="cut off"):
            await p.connection.notify("next", {})
        assert p.connection.lost is not None


async def test_who_waits_for_another_write_can_be_cancelled_without_harm() -> None:
    async with peer() as p, anyio.create_task_group() as tasks:
        assert not p.connection.behind
        tasks.start_soon(p.connection.notify, "big", {"x": "x" * 1_000_000})
        await anyio.wait_all_tasks_blocked()
        assert p.connection.behind
        with anyio.move_on_after(0.01):
            await p.connection.notify("second", {})
        assert (await p.read())["method"] == "big"
        tasks.start_soon(p.connection.notify, "third", {})
        assert (await p.read())["method"] == "third"
        await anyio.wait_all_tasks_blocked()
        assert not p.connection.behind


async def test_a_cancelled_request_is_forgotten() -> None:
    async with peer() as p:
        with anyio.move_on_after(0.01):
            await p.connection.request("m", {})
        assert (await p.read())["id"] == 0
        assert p.connection._requests.waiting == []
        p.answer(0, {})
        await p.connection.settle()
        assert p.connection.noise.count == 1


# Refusing more than an agent reads


@asynccontextmanager
async def refusing() -> AsyncIterator[Peer]:
    """A peer each of whose requests is refused."""
    async with peer() as p, anyio.create_task_group() as tasks:

        async def refuse(number: Any, method: str, params: dict[str, Any]) -> None:
            p.seen.append(number)
            await p.connection.refuse_soon(tasks, number, -1, "x" * 1000)

        p.connection._on_request = refuse
        yield p
        tasks.cancel_scope.cancel()


def ask_much(p: Peer) -> None:
    p.send(*({"id": number, "method": "r"} for number in range(300)))


async def test_reading_goes_on_while_refusals_wait_and_each_is_sent_in_the_end() -> None:
    async with refusing() as p, anyio.create_task_group() as tasks:
        ask_much(p)
        p.send({"method": "n", "params": {}})
        await p.connection.settle()
        assert p.seen[:-1] == list(range(300))
        assert p.connection.behind
        assert p.seen[-1] == ("n", {})
        assert [(await p.read())["id"] for _ in range(300)] == list(range(300))
        await anyio.wait_all_tasks_blocked()
        assert not p.connection.behind
        assert p.connection._refusals.size == 0
        asking, message = await ask(p, tasks)
        p.answer(message["id"], {})
        await asking.done.wait()


async def test_at_the_bound_an_agent_that_reads_has_all_its_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_refusals, "_MOST", 10_000)
    async with refusing() as p:
        ask_much(p)
        await anyio.wait_all_tasks_blocked()
        assert len(p.seen) < 300
        assert p.connection._refusals.size < 12_000
        for number in range(300):
            assert (await p.read())["id"] == number
        assert p.seen == list(range(300))


async def test_at_the_bound_an_agent_that_reads_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_refusals, "_MOST", 10_000)
    monkeypatch.setattr(_refusals, "_DEAF_SECONDS", 0.05)
    async with refusing() as p:
        ask_much(p)
        await p.connection.closed.wait()
        assert re.fullmatch(
            r"agent x: it asks without reading its answers: \d+ refusals "
            r"\(1\d{4} bytes, the limit is 10000\) wait, and it has read nothing for 0.05 s",
            str(p.connection.lost),
        )


async def test_one_that_waits_at_the_bound_does_not_outlive_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_refusals, "_MOST", 10_000)
    monkeypatch.setattr(_connection, "_EXIT_SECONDS", 0.01)
    async with refusing() as p:
        ask_much(p)
        await anyio.wait_all_tasks_blocked()
        p.exit(3)
        await p.connection.closed.wait()
        assert "it exited with code 3" in str(p.connection.lost)
        assert len(p.seen) == 300


async def test_what_goes_out_is_one_line_of_ascii_and_whole_characters() -> None:
    text = "a\u2028b\nc \ud800 \U0001f600 \ud83d\ude00 é"
    async with peer() as p:
        await p.connection.notify("n", {"text": text, "\udfff": 1})
        message = await p.read()
    assert message["params"] == {
        "text": "a\u2028b\nc \ufffd \U0001f600 \U0001f600 é",
        "\ufffd": 1,
    }
    line = encode({"text": text})
    assert line.isascii()
    assert line.count(b"\n") == 1


VALUES = st.recursive(
    st.text() | st.integers() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.lists,
)


@given(VALUES)
@settings(max_examples=30, deadline=None)
def test_whatever_is_said_is_valid_json_for_strict_readers(value: Any) -> None:
    line = encode({"value": value})
    assert line.endswith(b"\n")
    read = json.loads(line)
    json.dumps(read, ensure_ascii=False).encode()  # no half characters
    assert read == {"value": value}


HALVES = st.text(alphabet=st.characters(codec=None, categories=["Cs", "Lu"]), max_size=4)


def whole(value: Any) -> Any:
    """What is left of a value where strict readers shall take it."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float() if not math.isfinite(value):
            return None
        case list():
            return [whole(item) for item in value]
        case dict():
            return {whole(key): whole(item) for key, item in value.items()}
    return value


@given(
    st.recursive(
        HALVES | st.text(max_size=4) | st.floats() | st.integers() | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(HALVES.map(whole) | st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
@settings(max_examples=300, deadline=None)
def test_what_json_has_not_is_replaced_whatever_stands_beside_it(value: Any) -> None:
    line = encode({"value": value})
    assert line.isascii()
    read = json.loads(line, parse_constant=pytest.fail)
    assert read == {"value": whole(value)}
