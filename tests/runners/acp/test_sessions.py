"""Sessions: logging in, settings, resuming, and the processes that are kept for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from gofer import SubagentResult, Text, Update
from gofer._patience import exit_of
from gofer_runners.acp import AcpRunner, _connection, _session

from .support import Bench, bench, lives, say, sent, settings, turn

pytestmark = pytest.mark.anyio

SECONDS = 30


def hello(auth: list[Any] | None = None, **capabilities: Any) -> dict[str, Any]:
    """Return the steps of ``initialize`` of an agent with these ways to log in, that can do so."""
    result = {
        "protocolVersion": 1,
        "authMethods": auth or [],
        "agentCapabilities": capabilities,
    }
    return {"result": result}


def methods(record: Path) -> list[str]:
    return [message["method"] for message in sent(record) if "method" in message]


# Logging in

KEY = {"id": "key", "name": "A key", "type": "env_var", "vars": [{"name": "AGENT_KEY"}]}
WEB = {"id": "web", "name": "Log in with the browser", "description": "opens a page"}
API = {"id": "agent-api-key", "name": "Use an API key"}
REFUSED = {"error": [-32000, "Authentication required"]}


async def logged_in(
    tmp_path: Path, offered: list[Any], authenticate: list[Any] | None = None, **more: Any
) -> tuple[SubagentResult, list[str]]:
    """Run on an agent that wants a login for its first session."""
    record = tmp_path / "record"
    script = turn(
        say("in"),
        initialize=[hello(offered)],
        authenticate=authenticate or [],
        options={"record": str(record)},
        **{"session/new": [{"first": [REFUSED], "else": []}]},
    )
    async with bench(script, **more) as b:
        result = await b.run()
    return result, methods(record)


ONCE = ["initialize", "session/new", "authenticate", "session/new", "session/prompt"]


@pytest.mark.parametrize(
    ("offered", "more", "method"),
    [
        ([WEB, KEY], {"env": {"set": {"AGENT_KEY": "k"}}}, "key"),
        ([WEB, API], {}, "agent-api-key"),
        ([API, KEY], {"env": {"set": {"AGENT_KEY": "k"}}}, "key"),
    ],
)
async def test_where_a_login_is_wanted_one_that_needs_nobody_is_made_once(
    tmp_path: Path, offered: list[Any], more: dict[str, Any], method: str
) -> None:
    result, asked = await logged_in(tmp_path, offered, **more)
    assert result.summary == "in"
    assert asked == ONCE
    assert sent(tmp_path / "record", "authenticate") == [{"methodId": method}]


async def test_a_configured_login_is_made_before_anything_is_asked(tmp_path: Path) -> None:
    record = tmp_path / "record"
    script = turn(say("in"), initialize=[hello([WEB, API])], options={"record": str(record)})
    async with bench(script, auth_method="web") as b:
        assert (await b.run()).summary == "in"
        assert (await b.run()).summary == "in"
    assert methods(record) == [
        "initialize", "authenticate", "session/new", "session/prompt", "session/new",
        "session/prompt",
    ]  # fmt: skip
    assert sent(record, "authenticate") == [{"methodId": "web"}]


async def test_a_login_that_has_run_out_is_made_again(tmp_path: Path) -> None:
    result, asked = await logged_in(tmp_path, [WEB], auth_method="web")
    assert result.summary == "in"
    assert asked == ["initialize", "authenticate", *ONCE[1:]]


@pytest.mark.parametrize(
    ("offered", "authenticate", "more", "asked"),
    [
        ([WEB, KEY], None, {}, ONCE[:2]),
        ([], None, {}, ONCE[:2]),
        ([API], [{"error": [1, "no key"]}], {}, ONCE[:3]),
        ([WEB], [{"error": [1, "no screen"]}], {"auth_method": "web"}, ["initialize", ONCE[2]]),
    ],
)
async def test_where_no_login_can_be_made_the_error_says_which_is_missing(
    tmp_path: Path, offered: list[Any], authenticate: Any, more: dict[str, Any], asked: list[str]
) -> None:
    result, seen = await logged_in(tmp_path, offered, authenticate, **more)
    assert seen == asked
    error = str(result.error)
    assert "agent 'fake' wants a login" in error
    assert "auth_method in its settings" in error
    for method in offered:
        assert method["id"] in error
    if KEY in offered:
        assert "key (set AGENT_KEY): A key" in error
    if not offered:
        assert "the agent names no way to log in" in error
    if authenticate:
        assert authenticate[0]["error"][1] in error


async def test_who_still_is_refused_after_the_login_is_told_so(tmp_path: Path) -> None:
    script = turn(initialize=[hello([API])], **{"session/new": [REFUSED]})
    async with bench(script) as b:
        result = await b.run()
    assert "wants a login" in str(result.error)


@pytest.mark.parametrize(
    ("code", "message", "login"),
    [
        (-32000, "anything", True),
        (401, "anything", True),
        (-32603, "You are not logged in", True),
        (-32603, "please log in first", True),
        (-32603, "Authentication needed", True),
        (-32603, "Unauthorized", True),
        (-32603, "auth required", True),
        (-32603, "unknown author", False),
        (-32603, "the login shell was not found", False),
        (-32602, "cwd: not an authority", False),
        (-32601, "Method not found", False),
    ],
)
def test_a_refusal_for_want_of_a_login_is_known(code: int, message: str, login: bool) -> None:
    from gofer_runners.acp._auth import wanted
    from gofer_runners.acp._errors import AgentError

    assert wanted(AgentError("session/new", {"code": code, "message": message})) is login


# Mode, model and options

MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "auto"}]}
MODELS = {"currentModelId": "m1", "availableModels": [{"modelId": "m1"}, {"modelId": "m2"}]}
MODE = {"id": "mode", "category": "mode", "type": "select", "currentValue": "ask",
        "options": [{"value": "ask"}, {"value": "auto"}]}  # fmt: skip
MODEL = {"id": "llm", "category": "model", "type": "select", "currentValue": "m1",
         "options": [{"group": "g", "options": [{"value": "m1"}, {"value": "m2"}]}]}  # fmt: skip
FAST = {"id": "fast", "type": "boolean", "currentValue": False}
EFFORT = {"id": "effort", "type": "select", "currentValue": "low",
          "options": [{"value": "low"}, {"value": "high"}]}  # fmt: skip
OLD = {"modes": MODES, "models": MODELS}
NEW = {"configOptions": [MODE, MODEL, FAST, EFFORT]}


SET: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    (OLD, {"mode": "auto"}, [("session/set_mode", {"modeId": "auto"})]),
    (OLD, {"mode": "ask", "model": "m1"}, []),
    (OLD, {"model": "m2"}, [("session/set_model", {"modelId": "m2"})]),
    (OLD, {"preferred_model": "m2"}, [("session/set_model", {"modelId": "m2"})]),
    (OLD, {"preferred_model": "other"}, []),
    ({}, {"preferred_model": "other"}, []),
    (NEW, {"mode": "auto"},
     [("session/set_config_option", {"configId": "mode", "value": "auto"})]),
    (NEW, {"model": "m2", "mode": "ask"},
     [("session/set_config_option", {"configId": "llm", "value": "m2"})]),
    (NEW, {"config_options": {"fast": True, "effort": "high"}},
     [("session/set_config_option", {"configId": "fast", "type": "boolean", "value": True}),
      ("session/set_config_option", {"configId": "effort", "value": "high"})]),
    (NEW, {"config_options": {"fast": False, "effort": "low"}}, []),
    ({**NEW, **OLD}, {"mode": "auto"},
     [("session/set_config_option", {"configId": "mode", "value": "auto"})]),
]  # fmt: skip


async def test_what_is_configured_is_set_where_it_differs(tmp_path: Path) -> None:
    agents = {}
    for at, (state, configured, _) in enumerate(SET):
        script = turn(
            say("x"),
            options={"record": str(tmp_path / str(at))},
            **{"session/new": [{"result": {"sessionId": "s", **state}}]},
        )
        agents[f"a{at}"] = settings(script, **configured)
    async with bench(agents=agents) as b:
        for at, (_, configured, asked) in enumerate(SET):
            assert (await b.run(f"a{at}")).error is None
            found = [
                (message["method"], message["params"])
                for message in sent(tmp_path / str(at))
                if message.get("method", "").startswith("session/set_")
            ]
            expected = [(method, {"sessionId": "s", **params}) for method, params in asked]
            assert found == expected, configured


NOT_OFFERED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (OLD, {"mode": "yolo"}, "offers no mode 'yolo'; it offers: ask, auto"),
    (OLD, {"model": "m3"}, "offers no model 'm3'; it offers: m1, m2"),
    ({}, {"mode": "x"}, "offers no mode 'x'; it offers: none"),
    ({}, {"model": "x"}, "offers no model 'x'; it offers: none"),
    (NEW, {"model": "m3"}, "offers no model 'm3'; it offers: m1, m2"),
    (NEW, {"mode": "yolo"}, "offers no mode 'yolo'; it offers: ask, auto"),
    (NEW, {"config_options": {"x": "y"}}, "no config option 'x'; it offers: mode, llm, fast"),
    (NEW, {"config_options": {"effort": "max"}}, "no effort 'max'; it offers: low, high"),
    ({"modes": "odd", "configOptions": ["odd", {}]}, {"mode": "x"}, "it offers: none"),
]


async def test_what_is_not_offered_is_an_error_that_lists_what_is() -> None:
    agents = {}
    for at, (state, configured, _) in enumerate(NOT_OFFERED):
        script = turn(say("x"), **{"session/new": [{"result": {"sessionId": "s", **state}}]})
        agents[f"a{at}"] = settings(script, **configured)
    async with bench(agents=agents) as b:
        for at, (_, _, error) in enumerate(NOT_OFFERED):
            result = await b.run(f"a{at}")
            assert not await b.alive()
            assert result.stop_reason == "error"
            assert error in str(result.error)


async def test_mcp_servers_are_passed_on_as_the_agent_takes_them(tmp_path: Path) -> None:
    record = tmp_path / "record"
    script = turn(
        say("x"),
        initialize=[hello(mcpCapabilities={"http": True})],
        options={"record": str(record)},
    )
    servers = [
        {"name": "files", "command": "mcp-files", "args": ["-v"], "env": {"A": "1"}},
        {"name": "bare", "command": "mcp"},
        {"name": "web", "url": "http://127.0.0.1:1/mcp", "headers": {"X-Key": "k"}},
    ]
    odd = {
        "sse": ({"name": "s", "url": "http://x", "type": "sse"}, "takes no sse servers"),
        "kind": ({"name": "s", "url": "http://x", "type": "ftp"}, "it may be http or sse"),
        "name": ({"command": "x"}, "needs a name"),
        "what": ({"name": "s"}, "needs a command with a list of args, or a url"),
        "args": ({"name": "s", "command": "x", "args": "-v"}, "needs a command with a list"),
        "env": ({"name": "s", "command": "x", "env": ["A=1"]}, "a table of texts is needed"),
    }
    agents = {key: settings(script, mcp_servers=[server]) for key, (server, _) in odd.items()}
    async with bench(script, agents=agents, mcp_servers=servers) as b:
        assert (await b.run()).summary == "x"
        assert sent(record, "session/new")[0]["mcpServers"] == [
            {
                "name": "files",
                "command": "mcp-files",
                "args": ["-v"],
                "env": [{"name": "A", "value": "1"}],
            },
            {"name": "bare", "command": "mcp", "args": [], "env": []},
            {
                "type": "http",
                "name": "web",
                "url": "http://127.0.0.1:1/mcp",
                "headers": [{"name": "X-Key", "value": "k"}],
            },
        ]
        for key, (_, error) in odd.items():
            assert error in str((await b.run(key)).error)


# Resuming

BOTH = hello(loadSession=True, sessionCapabilities={"resume": {}})
LOADS = hello(loadSession=True)
RESUMES = hello(sessionCapabilities={"resume": {}})
NEITHER = hello()
CHUNK = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "OLD"}}
REPLAY = [
    {"update": {**CHUNK, "sessionUpdate": "user_message_chunk"}},
    {"update": CHUNK},
    {"call": "old"},
    {"progress": "old", "status": "completed"},
    {"update": {"sessionUpdate": "usage_update"}},
]
NOT_FOUND = {"error": [-32601, "Method not found"]}
GONE = {"error": [-32002, "no such session"]}
NEXT = "session/new"


RESUMING: list[tuple[Any, dict[str, Any], list[str], str | None]] = [
    (BOTH, {}, ["session/resume"], None),
    (RESUMES, {"session/resume": REPLAY}, ["session/resume"], None),
    (LOADS, {"session/load": REPLAY}, ["session/load"], None),
    (LOADS, {"session/load": [{"result": None}, *REPLAY]}, ["session/load"], None),
    (NEITHER, {}, [NEXT], "the agent cannot resume sessions"),
    (BOTH, {"session/resume": [GONE]}, ["session/resume", NEXT], "no such session"),
    (LOADS, {"session/load": [*REPLAY, GONE]}, ["session/load", NEXT], "no such session"),
    (BOTH, {"session/resume": [NOT_FOUND], "session/load": REPLAY},
     ["session/resume", "session/load"], None),
    (RESUMES, {"session/resume": [NOT_FOUND]}, ["session/resume", NEXT], "Method not found"),
]  # fmt: skip


async def test_a_session_is_resumed_as_the_agent_offers_or_a_new_one_says_why_not(
    tmp_path: Path,
) -> None:
    agents = {}
    for at, (offered, answers, _, _) in enumerate(RESUMING):
        record = {"record": str(tmp_path / str(at))}
        script = turn(say("new"), initialize=[offered], options=record, **answers)
        agents[f"a{at}"] = settings(script)
    async with bench(agents=agents) as b:
        for at, (_, _, asked, reason) in enumerate(RESUMING):
            b.watcher.blocks.clear()
            result = await b.run(f"a{at}", resume="old-one")
            record_of = tmp_path / str(at)
            assert result.summary == "new"
            assert methods(record_of)[1:-1] == asked
            assert result.session is not None
            assert result.session.resumed is (reason is None)
            assert b.watcher.of(Text) == [Text(text="new")]
            assert [block.kind for block in b.watcher.of(Update)] in (["usage"], [])
            if reason is None:
                assert (result.session.id, result.session.reason) == ("old-one", None)
                (params,) = sent(record_of, asked[-1])
                assert (params["sessionId"], params["mcpServers"]) == ("old-one", [])
            else:
                assert result.session.id != "old-one"
                assert reason in str(result.session.reason)


async def test_a_long_replay_pushes_nothing_else_out() -> None:
    early = {"update": {"sessionUpdate": "available_commands_update"}}
    replay = [early, {"flood": 1500}]
    script = turn(say("new"), initialize=[LOADS], **{"session/load": replay})
    async with bench(script) as b:
        result = await b.run(resume="old-one")
    assert result.summary == "new"
    assert [block.kind for block in b.watcher.of(Update)] == ["commands"]


async def test_a_login_may_be_wanted_for_resuming_too(tmp_path: Path) -> None:
    record = tmp_path / "record"
    script = turn(
        say("new"),
        initialize=[
            hello([API], loadSession=True, sessionCapabilities={"resume": {}})
        ],
        options={"record": str(record)},
        **{"session/resume": [{"first": [REFUSED], "else": []}],
           "session/new": [REFUSED]},
    )  # fmt: skip
    async with bench(script) as b:
        result = await b.run(resume="old-one")
    assert result.session is not None
    assert result.session.resumed
    assert methods(record) == [
        "initialize", "session/resume", "session/new", "authenticate", "session/resume",
        "session/prompt",
    ]  # fmt: skip


# Processes that are kept

PID = {"echo": True}
PLAYER = "player"


async def pid_of(b: Bench) -> int:
    (pid,) = await b.pids()
    return pid


async def test_a_process_is_kept_for_the_next_turn_which_has_a_new_session() -> None:
    async with bench() as b:
        results = [await b.play(say(str(number))) for number in range(4)]
        pid = await pid_of(b)
        assert [result.summary for result in results] == ["0", "1", "2", "3"]
        assert [result.session.id for result in results if result.session] == [
            f"session-{pid}-{number}" for number in range(1, 5)
        ]


async def test_a_resumed_conversation_goes_to_the_process_that_has_it() -> None:
    async with bench() as b:
        sessions: list[Any] = []

        async def one() -> None:
            result = await b.play(say("a"), {"wait": "client"}, say("b"))
            sessions.append(result.session)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)
            with anyio.fail_after(SECONDS):
                while len(b.watcher.blocks) < 2:
                    await anyio.lowlevel.checkpoint()
            for pid in await b.pids():
                psutil.Process(pid).send_signal(10)
        assert len(await b.pids()) == 2
        for session in (*sessions, *reversed(sessions)):
            result = await b.run(PLAYER, json.dumps([say("again")]), resume=session.id)
            assert result.session is not None
            assert (result.session.id, result.session.resumed) == (session.id, True)
            assert result.summary == "again"
        assert len(await b.pids()) == 2


async def test_a_session_that_could_not_be_resumed_is_not_taken_for_one() -> None:
    script = {"initialize": [LOADS], "session/load": [GONE], "options": {"prompts_are_steps": True}}
    agents = {PLAYER: settings(script)}
    async with bench(agents=agents) as b:
        for _ in range(2):
            result = await b.run(PLAYER, json.dumps([say("x")]), resume="lost")
            assert result.session is not None
            assert result.session.resumed is False
        assert len(await b.pids()) == 1


async def test_after_a_turn_that_did_not_end_well_the_next_has_a_fresh_process() -> None:
    tool = {"start": ["/bin/sleep", "5001"], "session": True}
    lasts: list[dict[str, Any]] = [
        {"exit": 0}, {"error": [1, "no"]}, {"end": "cancelled"}, {"result": {}}, {"signal": 9},
    ]  # fmt: skip
    async with bench() as b:
        seen: set[int] = set()
        for last in lasts:
            await b.play(say("x"))
            first = await pid_of(b)
            assert first not in seen
            seen.add(first)
            await b.play(tool, say("x"), last)
            assert not await b.alive(), last


async def test_a_process_that_died_idle_is_replaced() -> None:
    async with bench() as b:
        await b.play(say("x"))
        first = await pid_of(b)
        psutil.Process(first).kill()
        with anyio.fail_after(SECONDS):
            while await b.alive():
                await anyio.lowlevel.checkpoint()
            result = await b.play(say("y"))
        assert result.summary == "y"
        assert await pid_of(b) != first


async def test_a_process_that_dies_as_it_is_taken_again_is_replaced_at_once() -> None:
    script = turn(say("x"), **{"session/new": [{"first": [], "else": [{"exit": 7}]}]})
    async with bench(script) as b:
        pids = []
        for _ in range(3):
            assert (await b.run()).summary == "x"
            pids.append(await pid_of(b))
        assert len(set(pids)) == 3


TIRED = """
read line; echo '{"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1}}'
read line; echo '{"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}}'
read line; echo '{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s",
"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}}}'
echo '{"jsonrpc": "2.0", "id": 2, "result": {"stopReason": "end_turn"}}'
exec 0<&-
exec sleep 4012
""".replace(",\n", ", ")


async def test_one_that_stops_listening_while_it_is_idle_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_connection, "_EXIT_SECONDS", 0.05)
    agent = {"command": ["/bin/sh", "-c", TIRED], "end_grace": 0.1}
    async with bench(agents={"fake": agent}) as b:
        for _ in range(2):
            with anyio.fail_after(20):
                assert (await b.run()).exit_ok
                for pid in await b.pids():
                    await exit_of(pid)
        assert not await b.pids()


async def test_only_so_many_are_kept_and_the_oldest_goes_first() -> None:
    names = [f"a{number}" for number in range(3)]
    agents = {name: settings(turn(say("x"))) for name in names}
    async with bench(agents=agents, runner=AcpRunner(warm=2)) as b:
        pids: list[int] = []
        for name in names:
            await b.run(name)
            pids += [pid for pid in await b.pids() if pid not in pids]
        with anyio.fail_after(SECONDS):
            while await b.pids() != set(pids[1:]):
                await anyio.lowlevel.checkpoint()
        await b.run("a1")
        assert await b.pids() == set(pids[1:])


async def test_one_that_has_waited_too_long_goes() -> None:
    async with bench(runner=AcpRunner(warm_seconds=0.1)) as b:
        assert (await b.play(say("x"))).summary == "x"
        with anyio.fail_after(SECONDS):
            while await b.alive():
                await anyio.lowlevel.checkpoint()
        assert (await b.play(say("x"))).summary == "x"


async def test_keeping_can_be_switched_off_for_all_and_for_one() -> None:
    agents = {"cold": settings(turn(say("x")), warm=False)}
    async with bench(agents=agents, runner=AcpRunner(warm=0)) as b:
        await b.play(say("x"))
        assert not await b.alive()
    async with bench(agents=agents) as b:
        await b.run("cold")
        assert not await b.alive()
        await b.play(say("x"))
        assert await b.alive()


async def test_a_kept_process_serves_its_own_directory_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with bench(turn(say("x")), cwd=tmp_path) as b:
        await b.run(cwd="a")
        await b.run(cwd="b")
        assert len(await b.pids()) == 2
        await b.run(cwd="a")
        assert len(await b.pids()) == 2


async def test_what_a_kept_process_says_between_turns_is_no_answer() -> None:
    chunk = {"foreign": CHUNK, "session": "SESSION"}
    script = {
        "session/new": [{"result": {"sessionId": "SESSION"}}],
        "turns": [
            [say("one"), {"end": "end_turn"}, {"wait": "client"}, chunk],
            [say("two")],
        ],
    }
    async with bench(script) as b:
        result = await b.run()
        psutil.Process(await pid_of(b)).send_signal(10)
        pool = await b.host.resource(("acp", "pool"), None)  # type: ignore[arg-type]
        (place,) = pool._places.values()
        with anyio.fail_after(SECONDS):
            while not place.agent._early:
                await anyio.lowlevel.checkpoint()
        second = await b.run(resume="SESSION")
    assert (result.summary, second.summary) == ("one", "two")
    assert [block.text for block in b.watcher.of(Text)] == ["one", "two"]


async def test_what_comes_late_of_a_turn_is_no_part_of_the_next_in_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_session, "_LATE_SECONDS", 1.0)
    async with bench() as b:
        first = await b.play(say("one"), {"end": "end_turn"}, {"wait": "client"}, say("late"))
        assert first.session is not None
        psutil.Process(await pid_of(b)).send_signal(10)
        steps = json.dumps([say("two")])
        second = await b.run(PLAYER, steps, resume=first.session.id)
        assert second.session is not None
        assert second.session.resumed
    assert (first.summary, second.summary) == ("one", "two")
    assert [block.text for block in b.watcher.of(Text)] == ["one", "two"]


async def test_only_so_many_sessions_of_a_process_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gofer_runners.acp import _agent

    monkeypatch.setattr(_agent, "_SESSIONS", 3)
    async with bench() as b:
        for _ in range(6):
            await b.play(say("x"))
        pool = await b.host.resource(("acp", "pool"), None)  # type: ignore[arg-type]
        (place,) = pool._places.values()
        assert len(place.agent.sessions) == 3
        assert pool.idle == 1
        pid = await pid_of(b)
    assert not lives(pid)
