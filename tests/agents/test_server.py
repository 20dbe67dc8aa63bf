"""The model server says the same in each of its formats, whole and in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from .server import ModelServer, serve
from .server.scripts import ANSWER, FIRST, LAST, SCRIPTS, THOUGHT

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
RESULT = "what the tool said"


def chat(task: str, tools: bool, result: bool) -> tuple[str, dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    if result:
        messages.append({"role": "tool", "tool_call_id": "1", "content": RESULT})
    function = {"name": "bash", "parameters": SCHEMA}
    listed = [{"type": "function", "function": function}] if tools else []
    return "/v1/chat/completions", {"messages": messages, "tools": listed}


def responses(task: str, tools: bool, result: bool) -> tuple[str, dict[str, Any]]:
    content = [{"type": "input_text", "text": task}]
    items: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": content}]
    if result:
        items.append({"type": "function_call_output", "call_id": "1", "output": RESULT})
    listed = [{"type": "function", "name": "bash", "parameters": SCHEMA}] if tools else []
    return "/v1/responses", {"input": items, "tools": listed}


def gemini(task: str, tools: bool, result: bool) -> tuple[str, dict[str, Any]]:
    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": task}]}]
    if result:
        response = {"name": "bash", "response": {"output": RESULT}}
        contents.append({"role": "user", "parts": [{"functionResponse": response}]})
    declared = [{"name": "bash", "parametersJsonSchema": SCHEMA}]
    listed = [{"functionDeclarations": declared}] if tools else []
    return "/v1beta/models/stub:generateContent", {"contents": contents, "tools": listed}


def anthropic(task: str, tools: bool, result: bool) -> tuple[str, dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    if result:
        part = {"type": "tool_result", "tool_use_id": "1", "content": RESULT}
        messages.append({"role": "user", "content": [part]})
    listed = [{"name": "bash", "input_schema": SCHEMA}] if tools else []
    return "/v1/messages", {"messages": messages, "tools": listed}


Ask = Callable[[str, bool, bool], tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with serve() as server:
        yield server


@pytest.fixture(params=[chat, responses, gemini, anthropic], ids=lambda api: str(api.__name__))
def api(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def asked(
    server: ModelServer,
    api: Ask,
    stream: bool,
    task: str,
    tools: bool = True,
    result: bool = False,
) -> httpx.Response:
    path, body = api(task, tools, result)
    if stream:
        body["stream"] = True
        path = path.replace(":generateContent", ":streamGenerateContent")
    return httpx.post(server.url + path, json=body, timeout=10, trust_env=False)


def strings(value: object) -> Iterator[str]:
    """Go through all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def said(response: httpx.Response) -> list[str]:
    """Return all texts of a reply, in order."""
    response.raise_for_status()
    if "event-stream" not in response.headers["content-type"]:
        return list(strings(response.json()))
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [text for line in lines if line != "[DONE]" for text in strings(json.loads(line))]


def holds(texts: list[str], words: tuple[str, ...], stream: bool) -> bool:
    """Whether these words were said: one after another in a stream, else as one text."""
    if not stream:
        return "".join(words) in texts
    return [text for text in texts if text in words][: len(words)] == list(words)


def test_an_answer(server: ModelServer, api: Ask, stream: bool) -> None:
    assert holds(said(asked(server, api, stream, "[[answer]]")), ANSWER, stream)


def test_a_task_without_a_mark_is_answered(server: ModelServer, api: Ask, stream: bool) -> None:
    assert holds(said(asked(server, api, stream, "Hello!")), ANSWER, stream)


def test_a_thought_before_the_answer(server: ModelServer, api: Ask, stream: bool) -> None:
    texts = said(asked(server, api, stream, "[[think]]"))
    assert holds(texts, THOUGHT, stream)
    assert holds(texts, ANSWER, stream)


def test_a_call_and_then_the_report(server: ModelServer, api: Ask, stream: bool) -> None:
    first = said(asked(server, api, stream, "Please [[shell: touch it]]"))
    assert holds(first, FIRST, stream)
    assert "bash" in first
    assert "touch it" in "".join(first)
    last = said(asked(server, api, stream, "Please [[shell: touch it]]", result=True))
    assert holds(last, LAST, stream)
    assert "bash" not in last


def test_the_last_mark_counts(server: ModelServer, api: Ask, stream: bool) -> None:
    assert holds(said(asked(server, api, stream, "[[shell: x]] no: [[answer]]")), ANSWER, stream)


def test_without_tools_it_is_about_a_title(server: ModelServer, api: Ask, stream: bool) -> None:
    assert "A title" in said(asked(server, api, stream, "[[shell: x]]", tools=False))


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_status(server: ModelServer, api: Ask, stream: bool, status: int) -> None:
    response = asked(server, api, stream, f"[[http-{status}]]")
    assert response.status_code == status
    assert f"scripted error {status}" in response.text


def test_a_dropped_stream(server: ModelServer, api: Ask) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        asked(server, api, True, "[[drop]]")


def test_an_unknown_script_is_told(server: ModelServer, api: Ask, stream: bool) -> None:
    texts = said(asked(server, api, stream, "[[dance]]"))
    assert any(", ".join(SCRIPTS) in text for text in texts)


def test_closing_ends_what_hangs(api: Ask) -> None:
    with serve() as server:
        path, body = api("[[stall]]", True, False)
        path = path.replace(":generateContent", ":streamGenerateContent")
        with httpx.Client(trust_env=False, timeout=10) as client:
            with client.stream("POST", server.url + path, json={**body, "stream": True}) as reply:
                pieces = reply.iter_text()
                next(pieces)
                server.closing.set()
                with pytest.raises(httpx.RemoteProtocolError):
                    list(pieces)
