"""An agent that plays a script: one file, on the standard library alone.

It speaks the Agent Client Protocol over its pipes, well or badly, as its script says, so that a
client can be tested against everything that agents do::

    config = {"agents": {"fake": {"command": fake_agent.command({"turns": [[{"say": "hello"}]]})}}}

The script is an object; as the argument of the program it is JSON, or ``@FILE`` that holds it. Its
keys, all of them optional:

``initialize``, ``authenticate``, ``session/new``, ``session/load``, ``session/resume``, or any
other method: the steps that answer such a request. ``turns``: the steps of each prompt in turn;
the last list is used again for every further one. ``options``: ``string_ids``,
``double_answers``, ``ignore_cancel``, ``ignore_eof``, ``ignore_term``: true for an agent that does
so; ``deaf``: it reads nothing after a prompt; ``prompts_are_steps``: a prompt that is JSON is the
steps of its turn; ``record``: a file to which every line that comes is appended.

An agent that was cancelled stops at its next step, unless it waits for that in its script.

A step is an object with one of these keys, and what belongs to it:

``say``, ``think``      a chunk of text; ``id`` for its message id; ``times`` to repeat the text
``call``                announces a tool call of this id: ``title``, ``kind``, ``status``, ``input``
``progress``            updates the call of this id: ``title``, ``kind``, ``status``, ``text``
``update``              any other update, as it is
``foreign``             an update, as it is, of another ``session``
``ask``                 asks permission for the call of this id, with ``options``; waits
``request``             asks the client for this method with ``params``; waits for the answer
``tell``                says the last answer of the client, as JSON
``echo``                says the prompt
``cwd``                 says the directory that it works in
``flood``               so many chunks, each with ``text``
``line``, ``bytes``     a line of stdout as it is; bytes in hexadecimal
``stderr``              writes to stderr; ``times`` to repeat it
``start``               starts a process that goes on: a list of words; ``session``: in its own
``wait``                ``cancel``, ``eof``, ``client`` (until it gets SIGUSR1) or ``forever``
``first``               these steps at the first request of its kind, the steps of ``else`` later
``close``               closes ``stdin`` or ``stdout``
``exit``, ``signal``    ends itself so
``result``, ``error``   answers with this result; with ``[code, message]``
``silent``              leaves the request without an answer
``end``                 answers a prompt with this stop reason; what follows comes after the answer
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

__all__ = ["FakeAgent", "command", "main"]

Message = dict[str, Any]
Step = dict[str, Any]

_OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "once", "name": "Once", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def command(script: dict[str, Any]) -> list[str]:
    """Return the command of an agent that plays *script*, for its entry in the configuration."""
    return [sys.executable, "-I", "-S", __file__, json.dumps(script)]


class FakeAgent:
    """Plays *script* over the pipes of this process."""

    def __init__(self, script: dict[str, Any]) -> None:
        self._script = script
        self._options = script.get("options", {})
        self._turns: list[list[Step]] = script.get("turns") or [[{"echo": True}]]
        self._turn = 0
        self._sessions = 0
        self._session = ""
        self._prompt = ""
        self._numbers = 1000
        self._answers: dict[int, queue.Queue[Message]] = {}
        self._answer: Any = None
        self._requests: queue.Queue[Message | None] = queue.Queue()
        self._cancelled = threading.Event()
        self._waits_for_cancel = False
        self._signalled = threading.Event()
        self._served: set[str] = set()
        self._eof = threading.Event()
        self._write_lock = threading.Lock()
        self._steps: dict[str, Callable[[Step], None]] = {
            "say": lambda step: self._chunk("agent_message_chunk", step["say"], step),
            "think": lambda step: self._chunk("agent_thought_chunk", step["think"], step),
            "call": self._call,
            "progress": self._progress,
            "update": lambda step: self._update(step["update"]),
            "foreign": lambda step: self._update(step["foreign"], step.get("session", "other")),
            "ask": self._ask,
            "request": lambda step: self._request(step["request"], step.get("params", {})),
            "tell": lambda step: self._chunk("agent_message_chunk", json.dumps(self._answer), step),
            "echo": lambda step: self._chunk("agent_message_chunk", self._prompt, step),
            "cwd": lambda step: self._chunk("agent_message_chunk", os.getcwd(), step),
            "flood": self._flood,
            "line": lambda step: self._write(step["line"].encode() + b"\n"),
            "bytes": lambda step: self._write(bytes.fromhex(step["bytes"])),
            "stderr": lambda step: self._stderr(step["stderr"] * step.get("times", 1)),
            "start": self._start,
            "wait": self._wait,
            "close": self._close,
            "exit": lambda step: os._exit(step["exit"]),
            "signal": lambda step: os.kill(os.getpid(), step["signal"]),
        }

    def run(self) -> None:
        """Serve until stdin ends."""
        if self._options.get("ignore_term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: self._signalled.set())
        threading.Thread(target=self._listen, daemon=True).start()
        while (request := self._requests.get()) is not None:
            self._serve(request)
        if self._options.get("ignore_eof"):
            threading.Event().wait()

    # Listening

    def _listen(self) -> None:
        with suppress(OSError, ValueError):
            for line in sys.stdin.buffer:
                if "record" in self._options:
                    with open(self._options["record"], "ab") as file:
                        file.write(line)
                message = json.loads(line)
                self._heard(message)
                if self._options.get("deaf") and message.get("method") == "session/prompt":
                    threading.Event().wait()
        self._eof.set()
        self._requests.put(None)

    def _heard(self, message: Message) -> None:
        method = message.get("method")
        if method == "session/cancel":
            self._cancelled.set()
        elif method is None:
            waiting = self._answers.pop(message.get("id", -1), None)
            if waiting is not None:
                waiting.put(message)
        elif "id" in message:
            self._requests.put(message)

    def _serve(self, request: Message) -> None:
        method, params = request["method"], request.get("params", {})
        if method == "session/prompt":
            self._session = params["sessionId"]
            self._prompt = "".join(block.get("text", "") for block in params["prompt"])
            self._cancelled.clear()
            if self._options.get("prompts_are_steps"):
                steps = self._steps_of(self._prompt)
            else:
                steps = self._turns[min(self._turn, len(self._turns) - 1)]
            self._waits_for_cancel = any(step.get("wait") == "cancel" for step in steps)
            self._turn += 1
        else:
            steps = self._script.get(method, [])
            if "sessionId" in params:
                self._session = params["sessionId"]
        if steps and "first" in steps[0]:
            steps = steps[0]["else" if method in self._served else "first"]
        self._served.add(method)
        self._play(request, steps)

    def _steps_of(self, prompt: str) -> list[Step]:
        try:
            steps = json.loads(prompt)
        except ValueError:
            steps = None
        return steps if isinstance(steps, list) else [{"echo": True}]

    def _play(self, request: Message, steps: Iterable[Step]) -> None:
        answered = False
        prompt = request["method"] == "session/prompt"
        for step in steps:
            if prompt and not answered and self._cancelled.is_set() and self._obeys:
                self._reply(request, {"stopReason": "cancelled"})
                answered = True
                break
            for key in ("end", "result", "error", "silent"):
                if key in step:
                    answered = True
                    self._finish(request, key, step[key])
                    break
            else:
                known = [key for key in step if key in self._steps]
                if not known:
                    raise SystemExit(f"no step of a fake agent: {step!r}")
                self._steps[known[0]](step)
        if not answered:
            self._reply(request, self._default(request))

    @property
    def _obeys(self) -> bool:
        return not self._options.get("ignore_cancel") and not self._waits_for_cancel

    def _finish(self, request: Message, key: str, value: Any) -> None:
        if key == "end":
            self._reply(request, {"stopReason": value})
        elif key == "result":
            self._reply(request, value)
        elif key == "error":
            self._reply(request, error={"code": value[0], "message": value[1]})

    def _default(self, request: Message) -> Any:
        match request["method"]:
            case "initialize":
                return {
                    "protocolVersion": 1,
                    "agentCapabilities": {"loadSession": True},
                    "agentInfo": {"name": "fake", "version": "1"},
                    "authMethods": [],
                }
            case "session/new":
                self._sessions += 1
                return {"sessionId": f"session-{os.getpid()}-{self._sessions}"}
            case "session/prompt":
                obeys = self._cancelled.is_set() and not self._options.get("ignore_cancel")
                reason = "cancelled" if obeys else "end_turn"
                return {"stopReason": reason}
        return {}

    # Speaking

    def _write(self, data: bytes) -> None:
        with self._write_lock:
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]

    def _send(self, message: Message) -> None:
        self._write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def _reply(self, request: Message, result: Any = None, *, error: Any = None) -> None:
        number = request["id"]
        if self._options.get("string_ids"):
            number = str(number)
        answer = {"error": error} if error is not None else {"result": result}
        for _ in range(2 if self._options.get("double_answers") else 1):
            self._send({"id": number, **answer})

    def _update(self, update: Message, session: str | None = None) -> None:
        params = {"sessionId": session or self._session, "update": update}
        self._send({"method": "session/update", "params": params})

    def _chunk(self, kind: str, text: str, step: Step) -> None:
        content = {"type": "text", "text": text * step.get("times", 1)}
        update: Message = {"sessionUpdate": kind, "content": content}
        if "id" in step:
            update["messageId"] = step["id"]
        self._update(update)

    def _call(self, step: Step) -> None:
        update = {"sessionUpdate": "tool_call", "toolCallId": step["call"]}
        update["title"] = step.get("title", "a call")
        update |= {key: step[key] for key in ("kind", "status") if key in step}
        if "input" in step:
            update["rawInput"] = step["input"]
        self._update(update)

    def _progress(self, step: Step) -> None:
        update: Message = {"sessionUpdate": "tool_call_update", "toolCallId": step["progress"]}
        update |= {key: step[key] for key in ("title", "kind", "status") if key in step}
        if "text" in step:
            content = {"type": "text", "text": step["text"]}
            update["content"] = [{"type": "content", "content": content}]
        self._update(update)

    def _ask(self, step: Step) -> None:
        call: Message = {"toolCallId": step["ask"]}
        call |= {key: step[key] for key in ("title", "kind") if key in step}
        params = {"toolCall": call, "options": step.get("options", _OPTIONS)}
        self._request("session/request_permission", params)

    def _request(self, method: str, params: Message) -> None:
        self._numbers += 1
        waiting = self._answers[self._numbers] = queue.Queue()
        if "sessionId" not in params:
            params = {"sessionId": self._session, **params}
        self._send({"id": self._numbers, "method": method, "params": params})
        self._answer = waiting.get()
        self._answer.pop("jsonrpc", None)
        self._answer.pop("id", None)

    def _flood(self, step: Step) -> None:
        update = {
            "sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": step.get("text", "word ")},
        }
        params = {"sessionId": self._session, "update": update}
        message = {"jsonrpc": "2.0", "method": "session/update", "params": params}
        line = json.dumps(message).encode() + b"\n"
        left: int = step["flood"]
        while left:
            some = min(left, 200)
            self._write(line * some)
            left -= some

    def _stderr(self, text: str) -> None:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(2, data) :]

    # Misbehaving

    def _start(self, step: Step) -> None:
        import subprocess  # only here: it takes longer than all the rest

        subprocess.Popen(step["start"], start_new_session=bool(step.get("session")))

    def _wait(self, step: Step) -> None:
        what = step["wait"]
        events = {"cancel": self._cancelled, "eof": self._eof, "client": self._signalled}
        events.get(what, threading.Event()).wait()

    def _close(self, step: Step) -> None:
        os.close({"stdin": 0, "stdout": 1}[step["close"]])


def main(argv: list[str] | None = None) -> None:
    """Play the script that the first argument is, or names."""
    text = (sys.argv[1:] if argv is None else argv)[0]
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8") as file:
            text = file.read()
    FakeAgent(json.loads(text)).run()


if __name__ == "__main__":
    main()
