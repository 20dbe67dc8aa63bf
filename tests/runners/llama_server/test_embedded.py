"""The embedded server: its process with a stand-in for xllamacpp, its answers with the real one."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from gofer import ModelError
from gofer_plugins.delegation._prefill import opening
from gofer_runners.llama_server._embedded import EmbeddedServer, embedded_server

pytestmark = pytest.mark.anyio

posix = pytest.mark.skipif(sys.platform == "win32", reason="it ends processes by signals")
linux = pytest.mark.skipif(sys.platform != "linux", reason="it waits for processes by pidfd")

# Its server does what a test says in the environment, where the real one loads a model.
STAND_IN = """
import ctypes, os, signal, sys
from types import SimpleNamespace

class CommonParams(SimpleNamespace):
    def __init__(self):
        super().__init__(
            model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
        )

class Server:
    listening_address = "http://127.0.0.1:1"

    def __init__(self, params):
        exec(os.environ["STAND_IN"])
"""

Does = Callable[[str], None]


@pytest.fixture
def xllamacpp_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Does:
    """Return a function that puts a stand-in in xllamacpp's place, and says what it does."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "xllamacpp.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def does(code: str) -> None:
        monkeypatch.setenv("STAND_IN", textwrap.dedent(code))

    return does


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """Return a file that passes for a model until somebody loads it."""
    file = tmp_path / "own model.gguf"
    file.write_bytes(b"GGUF")
    return file


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Return a FIFO, through which a child's stand-in says that it is there."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


async def refusal(file: Path | None, **options: Any) -> ModelError:
    with anyio.fail_after(30), pytest.raises(ModelError) as caught:
        async with embedded_server(file, **options):
            pytest.fail("it serves")
    assert psutil.Process().children() == []
    return caught.value


async def ended(pidfd: int) -> None:
    await anyio.wait_readable(pidfd)
    os.close(pidfd)


async def test_it_is_told_what_to_serve(xllamacpp_does: Does, gguf: Path, tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    xllamacpp_does(f"""
        import json, pathlib
        told = {{
            "file": params.model.path, "alias": list(params.model_alias), "keys": params.api_keys,
            "context": params.n_ctx, "slots": params.n_parallel, "port": params.port,
            "threads": params.cpuparams.n_threads, "template": params.chat_template,
            "beside": [path for path in sys.path if path.endswith("llama_server")],
        }}
        pathlib.Path({str(said)!r}).write_text(json.dumps(told))
    """)
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages }}")
    with anyio.fail_after(30):
        async with embedded_server(
            gguf, slots=3, context=512, threads=2, chat_template=template
        ) as server:
            assert server.base_url == "http://127.0.0.1:1/v1"
            assert server.model == "own model"
            told = json.loads(said.read_text())
    assert told == {
        "file": str(gguf),
        "alias": ["own model"],
        "keys": [server.api_key],
        "context": 3 * 512,
        "slots": 3,
        "port": 0,
        "threads": 2,
        "template": "{{ messages }}",
        "beside": [],
    }
    assert len(server.api_key) >= 32


async def test_the_template_inside_an_own_file_is_left_alone(
    xllamacpp_does: Does, gguf: Path
) -> None:
    xllamacpp_does("assert not hasattr(params, 'chat_template')")
    with anyio.fail_after(30):
        async with embedded_server(gguf):
            pass


async def test_it_leaves_nothing_behind(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does("")
    this = psutil.Process()
    with anyio.fail_after(60):
        async with embedded_server(gguf):
            pass  # what a backend opens at its first process stays
        handles = this.num_handles() if sys.platform == "win32" else this.num_fds()
        for _ in range(3):
            async with embedded_server(gguf) as server:
                assert psutil.pid_exists(server.pid)
            assert not psutil.pid_exists(server.pid)
    assert handles == (this.num_handles() if sys.platform == "win32" else this.num_fds())


async def test_an_error_of_the_body_arrives_as_it_is(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does("")
    with anyio.fail_after(30), pytest.raises(ZeroDivisionError):
        async with embedded_server(gguf):
            raise ZeroDivisionError
    assert psutil.Process().children() == []


async def test_what_the_library_prints_is_not_the_address(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does(r"""os.write(1, b'{"address": "http://noise"}\n' * 20000)""")
    with anyio.fail_after(30):
        async with embedded_server(gguf) as server:
            assert server.base_url == "http://127.0.0.1:1/v1"
            assert await server.failure() is None


async def test_a_long_log_is_drained_and_its_end_is_kept(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does("""
        sys.stderr.write("line\\n" * 400_000 + "the last word\\n")
        os._exit(7)
    """)
    error = await refusal(gguf)
    assert "ended with exit code 7" in str(error)
    assert str(error).endswith("the last word")
    assert len(str(error)) < 4000
    assert error.body is not None
    assert len(error.body) <= 64 * 1024


async def test_a_model_that_does_not_load_is_named(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does("""
        sys.stderr.write("tensor 7 is missing\\n")
        raise RuntimeError("no such luck")
    """)
    message = str(await refusal(gguf))
    assert message.startswith(
        f"the embedded llama.cpp server could not serve {gguf}: RuntimeError: no such luck"
    )
    assert "tensor 7 is missing" in message


@posix
async def test_an_abort_of_the_library_is_named(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does("os.abort()")
    assert "was ended by SIGABRT" in str(await refusal(gguf))


@posix
async def test_start_up_has_a_bound(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does("ctypes.PyDLL(None).pause()")  # with the interpreter's lock, as when loading
    error = await refusal(gguf, startup_timeout=0.5)
    assert "did not load" in str(error)
    assert "within 0.5 s" in str(error)


@posix
async def test_cancelled_while_it_loads_it_leaves_nothing(
    xllamacpp_does: Does, gguf: Path, fifo: Path
) -> None:
    xllamacpp_does(f"""
        with open({str(fifo)!r}, "w") as file:
            file.write(str(os.getpid()))
        ctypes.PyDLL(None).pause()
    """)

    async def serve() -> None:
        async with embedded_server(gguf):
            pytest.fail("it serves")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            pid = int(await anyio.to_thread.run_sync(fifo.read_text))
            tasks.cancel_scope.cancel()
    assert not psutil.pid_exists(pid)


@posix
async def test_a_server_that_died_says_of_what(xllamacpp_does: Does, gguf: Path) -> None:
    xllamacpp_does('sys.stderr.write("so long\\n")')
    with anyio.fail_after(30):
        async with embedded_server(gguf) as server:
            os.kill(server.pid, signal.SIGKILL)
            failure = await server.failure()
            assert server.returncode == -signal.SIGKILL
    assert str(failure) == "the embedded llama.cpp server was ended by SIGKILL\nso long"


PARENT = """
import os, signal, sys
from pathlib import Path
import anyio
from gofer_runners.llama_server._embedded import embedded_server

async def main():
    async with embedded_server(Path(sys.argv[1])) as server:
        if sys.argv[3] == "forked" and os.fork() == 0:
            os.write(1, f"{os.getpid()}\\n".encode())
            signal.pause()  # and holds meanwhile what the parent held
        os.write(1, f"{server.pid}\\n".encode())
        await anyio.sleep_forever()

anyio.run(main, backend=sys.argv[2])
"""


@asynccontextmanager
async def parent(gguf: Path, backend: str, how: str = "") -> AsyncIterator[Any]:
    command = [sys.executable, "-c", PARENT, str(gguf), backend, how]
    async with await anyio.open_process(command, stdin=PIPE, stderr=None) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


@linux
@pytest.mark.parametrize("how", ["", "forked"])
async def test_it_ends_with_a_killed_parent(
    xllamacpp_does: Does, gguf: Path, anyio_backend: str, how: str
) -> None:
    xllamacpp_does("")
    with anyio.fail_after(30):
        async with parent(gguf, anyio_backend, how) as process:
            lines = BufferedByteReceiveStream(process.stdout)
            pids = [int(await lines.receive_until(b"\n", 100)) for _ in range(2 if how else 1)]
            [server] = [pid for pid in pids if _serves(pid)]
            watched = os.pidfd_open(server)
            try:
                process.kill()
                await ended(watched)
            finally:
                for pid in pids:
                    if pid != server:
                        os.kill(pid, signal.SIGKILL)  # it was there until now


def _serves(pid: int) -> bool:
    return any(part.endswith("_serve.py") for part in psutil.Process(pid).cmdline())


@linux
async def test_it_ends_with_a_parent_that_is_killed_while_it_loads(
    xllamacpp_does: Does, gguf: Path, fifo: Path, anyio_backend: str
) -> None:
    xllamacpp_does(f"""
        with open({str(fifo)!r}, "w") as file:
            file.write(str(os.getpid()))
        ctypes.PyDLL(None).pause()
    """)
    with anyio.fail_after(30):
        async with parent(gguf, anyio_backend) as process:
            watched = os.pidfd_open(int(await anyio.to_thread.run_sync(fifo.read_text)))
            process.kill()
            await ended(watched)


async def test_without_xllamacpp_it_says_how_to_get_a_server(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert str(await refusal(gguf)) == (
        "no model server: install the embedded one with: pip install 'gofer[local]', or set"
        " GOFER_BASE_URL to the address of a server"
    )


async def test_where_there_is_no_wheel_it_says_so(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    message = str(await refusal(gguf))
    assert f"is not to be had for {platform.system()} on riscv64" in message
    assert "GOFER_BASE_URL" in message
    assert "pip install" not in message


async def test_a_missing_template_is_named(
    xllamacpp_does: Does, gguf: Path, tmp_path: Path
) -> None:
    xllamacpp_does("")
    error = await refusal(gguf, chat_template=tmp_path / "none.jinja")
    assert "none.jinja cannot be read" in str(error)


def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def call(name: str, arguments: dict[str, str]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def exchange(question: str, answer: str, child: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": question},
        call("spawn_subagent", {"task": question}),
        {"role": "tool", "tool_call_id": "c1", "content": child},
        call("collect_subagent", {"subagent_id": child}),
        {"role": "tool", "tool_call_id": "c1", "content": answer},
        {"role": "assistant", "content": answer},
    ]


async def ask(server: EmbeddedServer, path: str, body: dict[str, Any] | None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=120) as client:
        if body is None:
            return await client.get(server.base_url + path)
        return await client.post(server.base_url + path, json=body)


@pytest.mark.model
async def test_the_default_model_answers(embedded_model: Path) -> None:
    question = "What is the largest moon of Saturn?"
    told = [
        {"role": "system", "content": "Delegate every question with spawn_subagent."},
        *exchange("What is the capital of Italy?", "It is Rome.", "sub-7"),
        *exchange("Which planet is closest to the Sun?", "Mercury is.", "sub-3"),
        {"role": "user", "content": question},
    ]
    forced = {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stop": ["</tool_call>"],
        "max_tokens": 160,
        "temperature": 0,
    }

    def begun(name: str) -> dict[str, str]:
        return {"role": "assistant", "content": opening(name)}

    with anyio.fail_after(240):
        async with embedded_server() as server:
            assert server.file == embedded_model
            models = (await ask(server, "/models", None)).json()["data"]
            assert [model["id"] for model in models] == ["smollm2-135m"]

            async with httpx.AsyncClient() as stranger:
                assert (await stranger.get(f"{server.base_url}/models")).status_code == 401

            body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24}
            streamed = await ask(server, "/chat/completions", {**body, "stream": True})
            events = streamed.text.split("\n\n")
            assert len([event for event in events if '"content":"' in event]) > 3
            assert "data: [DONE]" in events

            spawn = tool("spawn_subagent", {"task": {"type": "string", "maxLength": 120}})
            messages = [*told, begun("spawn_subagent")]
            spawned = await ask(
                server, "/chat/completions", {"messages": messages, "tools": [spawn], **forced}
            )
            name, arguments = only_call(spawned)
            assert name == "spawn_subagent"
            assert list(arguments) == ["task"]
            assert "Saturn" in arguments["task"]

            told += [
                call("spawn_subagent", {"task": question}),
                {"role": "tool", "tool_call_id": "c1", "content": "sub-0"},
            ]
            collect = tool("collect_subagent", {"subagent_id": {"type": "string"}})
            messages = [*told, begun("collect_subagent")]
            collected = await ask(
                server, "/chat/completions", {"messages": messages, "tools": [collect], **forced}
            )
            assert only_call(collected) == ("collect_subagent", {"subagent_id": "sub-0"})


def only_call(response: httpx.Response) -> tuple[str, dict[str, Any]]:
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [made] = choice["message"]["tool_calls"]
    return made["function"]["name"], json.loads(made["function"]["arguments"])


def shortened(file: Path, to: Path) -> Path:
    to.write_bytes(file.read_bytes()[:3_000_000])
    return to


@pytest.mark.model
async def test_a_broken_model_file_is_refused_by_the_real_library(
    embedded_model: Path, gguf: Path
) -> None:
    cut = shortened(embedded_model, gguf)
    message = str(await refusal(cut))
    assert message.startswith(f"the embedded llama.cpp server could not serve {cut}")
    assert "corrupted or incomplete" in message


@pytest.mark.model
@linux
async def test_the_real_server_ends_with_a_killed_parent(
    embedded_model: Path, anyio_backend: str
) -> None:
    with anyio.fail_after(120):
        async with parent(embedded_model, anyio_backend) as process:
            lines = BufferedByteReceiveStream(process.stdout)
            watched = os.pidfd_open(int(await lines.receive_until(b"\n", 100)))
            process.kill()
            await ended(watched)
