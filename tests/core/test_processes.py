"""Processes under the supervisor: how they start, talk and end, and that nothing outlives them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import GoferError, PluginNotSupportedError, RunnerError, _patience, _process, processes
from gofer._launch import Launched, early
from gofer._proc import descendants, marked, parent_of, rouse, started_at
from gofer.processes import STDERR_TAIL, Process, Supervisor

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="supervision is Linux's"),
]

HERE = Path("/")
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
SECONDS = 30


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    async with Supervisor() as supervisor:
        yield supervisor


def start(supervisor: Supervisor, *argv: str, **options: Any) -> Any:
    return supervisor.process(
        argv, **{"cwd": HERE, "environment": ENVIRONMENT, "grace": 0.2, **options}
    )


def shell(supervisor: Supervisor, script: str, **options: Any) -> Any:
    return start(supervisor, "/bin/sh", "-c", script, **options)


def python(supervisor: Supervisor, script: str, *args: str, **options: Any) -> Any:
    program = textwrap.dedent(script)
    return start(supervisor, sys.executable, "-I", "-S", "-c", program, *args, **options)


async def lines(process: Process, count: int) -> list[str]:
    data = b""
    with anyio.fail_after(SECONDS):
        while data.count(b"\n") < count:
            more = await process.receive()
            assert more, f"its output ended after {data!r}"
            data += more
    return data.decode().splitlines()


async def everything(process: Process) -> bytes:
    data = b""
    with anyio.fail_after(SECONDS):
        while more := await process.receive():
            data += more
    return data


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_end(pids: Iterable[int]) -> list[int]:
    """Wait for the end of processes that are nobody's children here; return who lives on."""
    ends = time.monotonic() + SECONDS
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(max(0.0, ends - time.monotonic()) * 1000)
        finally:
            os.close(fd)
    return [pid for pid in pids if lives(pid)]


def tree_of(supervisor: Supervisor) -> set[int]:
    """Return all that the supervisor's reapers have below them."""
    top = supervisor.pid
    return {pid for pid, _ in descendants(top) if parent_of(pid) not in (0, top)}


# Starting


async def test_a_process_is_talked_to_through_its_pipes(supervisor: Supervisor) -> None:
    async with start(supervisor, "cat") as process:
        assert process.pid > 0
        assert process.returncode is None
        assert process.exit_text == "it is still running"
        await process.send(b"hello\n")
        assert await lines(process, 1) == ["hello"]
        process.close_stdin()
        assert await everything(process) == b""
        assert await process.wait() == 0
    assert process.left == []
    assert process.exit_text == "it exited with code 0"


async def test_more_goes_through_than_a_pipe_holds(supervisor: Supervisor) -> None:
    data = bytes(range(256)) * 8192
    got = b""
    async with start(supervisor, "cat") as process:
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                await process.send(data)
                process.close_stdin()

            tasks.start_soon(write)
            got = await everything(process)
    assert got == data


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
async def test_its_exit_code_is_told(supervisor: Supervisor, code: int) -> None:
    async with shell(supervisor, f"exit {code}") as process:
        with anyio.fail_after(SECONDS):
            assert await process.wait() == code
    assert process.exit_text == f"it exited with code {code}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, 40])
async def test_the_signal_that_ended_it_is_told(supervisor: Supervisor, number: int) -> None:
    async with shell(supervisor, f"kill -{int(number)} $$; sleep 60") as process:
        with anyio.fail_after(SECONDS):
            assert await process.wait() == -number
    name = signal.Signals(number).name if number != 40 else "signal 40"
    assert process.exit_text == f"it was ended by {name}"


@pytest.mark.parametrize(
    ("argv", "cwd", "expected"),
    [
        (["no-such-program-here"], "/", "No such file or directory ('no-such-program-here')"),
        (["/no/such/program"], "/", "No such file or directory ('/no/such/program')"),
        (["no-path", "no-such-program-here"], "/", "since its environment has no PATH"),
        (["no-path", "/no/such/program"], "/", "No such file or directory ('/no/such/program')"),
        (["no-path", "true"], "/no/such/directory", "directory ('/no/such/directory')"),
        (["lost"], "/", "'lost' is there, but its interpreter '/no/such' is not"),
        (["./lost"], ".", "'./lost' is there, but its interpreter '/no/such' is not"),
        (["crlf"], "/", r"'crlf' is there, but its interpreter '/bin/sh\r' is not"),
        (["./chained"], ".", "'./chained' is there, but its interpreter '/no/such' is not"),
        (["text"], "/", "'text' is no program: neither"),
        (["empty"], "/", "'empty' is no program: neither"),
        (["/etc/passwd"], "/", "Permission denied"),
        (["/"], "/", "Permission denied"),
        (["true"], "/no/such/directory", "No such file or directory ('/no/such/directory')"),
        (["true"], "/etc/passwd", "Not a directory"),
        (["true", "a\0b"], "/", "null byte"),
        (["true", "x" * 3_000_000], "/", "Argument list too long"),
        (["true", "\ud800"], "/", "surrogates not allowed"),
    ],
)
async def test_what_cannot_be_started_is_an_error_that_says_why(
    supervisor: Supervisor, tmp_path: Path, argv: list[str], cwd: str, expected: str
) -> None:
    programs = {
        "lost": "#!/no/such -x\n",
        "crlf": "#!/bin/sh\r\ntrue\r\n",
        "chained": "#! ./lost\n",
        "text": "true\n",
        "empty": "",
    }
    for name, text in programs.items():
        (tmp_path / name).write_bytes(text.encode())
        (tmp_path / name).chmod(0o755)
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{ENVIRONMENT['PATH']}"}
    if argv[0] == "no-path":
        argv = argv[1:]
        del environment["PATH"]
    cwd = str(tmp_path) if cwd == "." else cwd
    with pytest.raises(RunnerError) as caught:
        async with start(supervisor, *argv, cwd=Path(cwd), environment=environment):
            pass
    assert expected in str(caught.value)
    assert repr(cwd) in str(caught.value)
    # It is the order's fault alone.
    async with start(supervisor, "true") as process:
        assert await process.wait() == 0


async def test_arguments_and_environment_arrive_as_they_are(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    odd = os.fsdecode(b"caf\xe9 \xff \xe2\x82\xac")
    folder = tmp_path / "a b é"
    folder.mkdir()
    script = """
        import os, sys
        out = {"argv": sys.argv[1:], "odd": os.environ["ODD"], "cwd": os.getcwd()}
        sys.stdout.write(ascii(out | {"names": sorted(os.environ)}))
    """
    environment = {"ODD": odd, "EMPTY": "", "LC_ALL": "C.UTF-8"}
    args = ["", " ", "'\"$x`", "\n\t", odd, "-c"]
    async with python(supervisor, script, *args, cwd=folder, environment=environment) as process:
        said = eval((await everything(process)).decode())
    names = ["EMPTY", "GOFER_TREE", "LC_ALL", "ODD"]
    assert said == {"argv": args, "odd": odd, "cwd": str(folder), "names": names}


async def test_the_program_is_looked_up_on_its_own_path(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    async with start(supervisor, "only-here", environment={"PATH": str(tmp_path)}) as process:
        assert await lines(process, 1) == ["found"]


async def test_it_finds_signals_descriptors_and_session_as_usual(supervisor: Supervisor) -> None:
    script = """
        import os, signal
        usual = (signal.SIG_DFL, signal.default_int_handler)
        dfl = [n for n in (1, 2, 15, 17) if signal.getsignal(n) in usual]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        fds = sorted(os.listdir("/proc/self/fd"), key=int)[:-1]
        print(dfl, sorted(blocked), fds, os.getsid(0) == os.getpgid(0) == os.getpid())
    """
    async with python(supervisor, script) as process:
        assert await lines(process, 1) == ["[1, 2, 15, 17] [] ['0', '1', '2'] True"]


async def test_its_name_is_in_messages(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    async with shell(supervisor, "echo oops >&2", name="agent x") as process:
        assert process.name == "agent x"
        with caplog.at_level("DEBUG", "gofer"):
            await process.drained(SECONDS)
    assert "agent x stderr: oops" in caplog.text


async def test_a_closed_supervisor_starts_nothing() -> None:
    async with Supervisor() as supervisor:
        pass
    with pytest.raises(GoferError, match="not open"):
        async with start(supervisor, "true"):
            pass


async def test_a_program_that_was_started_early_is_taken_over() -> None:
    with early(True) as launched:
        assert launched is not None
        async with Supervisor(launched) as supervisor:
            assert supervisor.pid == launched.program.pid
            async with shell(supervisor, "echo ready; cat") as process:
                assert await lines(process, 1) == ["ready"]
        assert launched.program.returncode == 0


async def test_one_that_was_started_early_and_killed_is_replaced() -> None:
    with early(True) as launched:
        assert launched is not None
        launched.program.kill()
        async with Supervisor(launched) as supervisor:
            await anyio.to_thread.run_sync(await_end, [launched.program.pid])
            async with shell(supervisor, "echo ready; cat") as process:
                assert await lines(process, 1) == ["ready"]
            assert supervisor.pid != launched.program.pid
        assert launched.program.returncode == -signal.SIGKILL


def test_one_that_was_started_early_for_nobody_ends_with_the_block() -> None:
    with early(True) as launched:
        assert launched is not None
    assert launched.program.returncode is not None
    with early(False) as none:
        assert none is None


async def test_elsewhere_than_on_linux_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(PluginNotSupportedError, match="need Linux for now, not darwin"):
        async with Supervisor():
            pass


# stderr and stdin


async def test_stderr_never_stops_it_and_its_end_is_kept(supervisor: Supervisor) -> None:
    script = "head -c 400000 /dev/zero | tr '\\0' x >&2; echo the end >&2; echo ready; cat"
    async with shell(supervisor, script) as process:
        assert await lines(process, 1) == ["ready"]
        process.close_stdin()
        await process.wait()
        await process.drained(SECONDS)
        tail = process.stderr_tail
    assert len(tail) == STDERR_TAIL
    assert tail.endswith("xxxthe end\n")


async def test_stderr_that_is_no_text_is_told_all_the_same(supervisor: Supervisor) -> None:
    async with shell(supervisor, r"printf 'a\377b' >&2") as process:
        await process.drained(SECONDS)
        assert process.stderr_tail == "a\ufffdb"


async def test_stderr_may_go_where_stdout_goes(supervisor: Supervisor) -> None:
    async with shell(supervisor, "echo out; echo err >&2", merge_stderr=True) as process:
        assert await lines(process, 2) == ["out", "err"]
        assert process.stderr_tail == ""


async def test_who_does_not_read_breaks_the_writer_not_the_loop(supervisor: Supervisor) -> None:
    async with shell(supervisor, "exec <&-; echo closed; sleep 60") as process:
        await lines(process, 1)
        with pytest.raises(anyio.BrokenResourceError), anyio.fail_after(SECONDS):
            while True:  # the supervisor may hold its end of the pipe a moment longer
                await process.send(b"x")


async def test_who_closes_its_stdin_and_lives_on_is_seen(supervisor: Supervisor) -> None:
    async with shell(supervisor, "read line; exec 0<&-; echo $line; exec sleep 4005") as process:
        with anyio.fail_after(SECONDS):
            await process.send(b"one\nnever read\n")
            assert await lines(process, 1) == ["one"]
            assert await process.deafened() == len(b"never read\n")
            assert process.sent == len(b"one\nnever read\n")
            assert await process.deafened() == len(b"never read\n")
            process.close_stdin()
            assert await process.deafened() == 0
        assert process.returncode is None


async def test_who_watches_its_stdin_sees_that_it_was_closed_here(supervisor: Supervisor) -> None:
    async with shell(supervisor, "exec sleep 4008") as process:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process.deafened)
                await anyio.wait_all_tasks_blocked()
                process.close_stdin()
            assert await process.deafened() == 0


async def test_a_write_need_not_be_waited_for(supervisor: Supervisor) -> None:
    async with shell(supervisor, "exec sleep 4009") as process:
        with anyio.fail_after(SECONDS):
            process.stop_sending()  # nothing is being sent
            async with anyio.create_task_group() as tasks:

                async def send() -> None:
                    with pytest.raises(anyio.BrokenResourceError):
                        await process.send(bytes(10**6))

                tasks.start_soon(send)
                await anyio.wait_all_tasks_blocked()
                process.stop_sending()
            assert 0 < process.sent < 10**6


@contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """Leave this process so many descriptors that it can open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize("free", [0, 1, 2])
async def test_who_lives_is_not_taken_for_dead_where_descriptors_run_out(free: int) -> None:
    pid = os.getppid()
    started = started_at(pid)
    with few_descriptors(free):
        assert rouse(os.getsid(pid)) == []
        assert bool([*descendants(pid)]) is (free > 0)
        with anyio.move_on_after(0.1) as waiting:
            assert await _patience.exit_of(pid, started) is False
        assert waiting.cancelled_caught is (free > 0)


async def test_a_write_that_waits_ends_when_stdin_is_closed(supervisor: Supervisor) -> None:
    async with shell(supervisor, "sleep 60") as process:
        broken = []

        async def write() -> None:
            try:
                await process.send(bytes(1 << 20))
            except anyio.ClosedResourceError as error:
                broken.append(error)

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                await anyio.wait_all_tasks_blocked()
                process.close_stdin()
        assert len(broken) == 1
        with pytest.raises(anyio.ClosedResourceError):
            await process.send(b"x")


async def test_a_read_that_is_cancelled_loses_nothing(supervisor: Supervisor) -> None:
    async with start(supervisor, "cat") as process:
        with anyio.move_on_after(0.01):
            await process.receive()
        await process.send(b"kept\n")
        assert await lines(process, 1) == ["kept"]


async def test_what_lies_in_the_pipe_can_be_counted_and_taken(supervisor: Supervisor) -> None:
    # Its child holds the pipe open, so that there is no end of it to wait for.
    async with shell(supervisor, "sleep 60 & printf 12345") as process:
        with anyio.fail_after(SECONDS):
            await process.wait()
        assert process.unread == 5
        assert process.receive_nowait(2) == b"12"
        assert process.receive_nowait() == b"345"
        assert process.unread == 0
        assert process.receive_nowait() == b""


# Ending

TREES = {
    "a child": "sleep 1001 & echo $!",
    "a child in a session of its own": "setsid sleep 1002 & sleep 0; echo $!",
    "a daemon, forked twice": "(setsid sh -c 'sleep 1003 & echo $!' )",
    "a deaf one": "sh -c 'trap \"\" TERM INT HUP; echo $$; while :; do sleep 1004; done' &",
    "a stopped one": "sleep 1005 & kill -STOP $!; echo $!",
    "one without an environment": "env -i /bin/sleep 1006 & echo $!",
    "one that closed everything": "setsid sleep 1007 <&- >/dev/null 2>&1 & echo $!",
    "one elsewhere": "(cd /tmp; exec setsid sleep 1008) & echo $!",
}

THEN = ["exec sleep 1000", "exit 0", "kill -KILL $$", "trap '' TERM; sleep 1000"]


@pytest.mark.parametrize("then", THEN)
async def test_nothing_of_a_tree_lives_after_its_end(supervisor: Supervisor, then: str) -> None:
    async def one(kind: str) -> None:
        async with shell(supervisor, f"{TREES[kind]}\n{then}", grace=0.05) as process:
            found = {int(line) for line in await lines(process, 1)}
            assert all(map(lives, found)), kind
            started.append(process)
            if len(started) == len(TREES):
                all_there.set()
            await all_there.wait()
            tree = tree_of(supervisor)
            assert found <= tree, kind
        assert process.left == [], kind
        assert not lives(process.pid), kind
        assert not [pid for pid in found if lives(pid)], kind
        trees.append(tree)

    started: list[Process] = []
    trees: list[set[int]] = []
    all_there = anyio.Event()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for kind in TREES:
                tasks.start_soon(one, kind)
    assert not [pid for pid in set().union(*trees) if lives(pid)]
    assert len(trees) == len(TREES)


async def test_a_polite_process_ends_by_the_end_of_its_stdin_alone(supervisor: Supervisor) -> None:
    script = "trap 'echo term' TERM; echo up; cat; echo eof"
    async with shell(supervisor, script, grace=SECONDS) as process:
        await lines(process, 1)
        with anyio.fail_after(SECONDS):
            await process.end(SECONDS)
        assert process.returncode == 0
        assert await everything(process) == b"eof\n"


async def test_a_process_that_goes_on_gets_term_before_kill(supervisor: Supervisor) -> None:
    script = """
        import signal, os
        def told(*_):
            os.write(1, b"term\\n")
            os._exit(9)
        signal.signal(signal.SIGTERM, told)
        os.write(1, b"up\\n")
        while True:
            signal.pause()
    """
    async with python(supervisor, script, grace=0.05) as process:
        await lines(process, 1)
        await process.end(0.05)
        assert process.returncode == 9
        assert await everything(process) == b"term\n"


async def test_tools_in_their_own_sessions_get_term_before_kill(supervisor: Supervisor) -> None:
    tool = "trap 'echo saved; exit' TERM; echo up; while :; do sleep 1; done"
    script = f'setsid sh -c "{tool}" & exec sleep 60'
    async with shell(supervisor, script, grace=0.05) as process:
        await lines(process, 1)
        await process.end(0.05)
        assert b"saved\n" in await everything(process)


@pytest.mark.parametrize("told", ["terminate", "kill"])
async def test_its_group_can_be_signalled_also_when_it_has_ended(
    supervisor: Supervisor, told: str
) -> None:
    script = "sleep 1009 & echo $!; setsid sh -c 'echo $$; exec sleep 1010' &"
    async with shell(supervisor, script) as process:
        member, other = map(int, await lines(process, 2))
        with anyio.fail_after(SECONDS):
            await process.wait()
        getattr(process, told)()
        assert await anyio.to_thread.run_sync(await_end, [member]) == []
        assert lives(other)
    assert not lives(other)


@pytest.mark.parametrize("shape", ["comet", "bush"])
async def test_a_storm_of_forks_is_outrun(supervisor: Supervisor, shape: str) -> None:
    script = """
        import os, sys, time
        print("up", flush=True)
        if sys.argv[1] == "comet":
            # Each generation lives only until the next does.
            for _ in range(4):
                if os.fork() == 0:
                    os.setsid()
                    break
            while True:
                if os.fork():
                    os._exit(0)
        for _ in range(7):
            if os.fork() == 0:
                os.setsid()
        time.sleep(1000)
    """
    async with python(supervisor, script, shape, grace=0.05) as process:
        await lines(process, 1)
        tree = tree_of(supervisor)
    assert process.left == []
    assert not [pid for pid in tree if lives(pid)]


async def test_end_can_be_called_again_and_after_the_end(supervisor: Supervisor) -> None:
    async with shell(supervisor, "exit 4") as process:
        with anyio.fail_after(SECONDS):
            for _ in range(3):
                await process.end()
        assert process.returncode == 4


async def test_two_trees_do_not_touch_each_other(supervisor: Supervisor) -> None:
    script = "setsid sleep 1011 & echo $!; cat"
    async with shell(supervisor, script) as one:
        (first,) = map(int, await lines(one, 1))
        async with shell(supervisor, script) as other:
            (second,) = map(int, await lines(other, 1))
        assert not lives(second)
        assert lives(first)
        assert one.returncode is None
        await one.send(b"still here\n")
        assert await lines(one, 1) == ["still here"]
    assert not lives(first)


async def test_many_at_once(supervisor: Supervisor) -> None:
    ended = []

    async def one(number: int) -> None:
        async with shell(supervisor, f"setsid sleep 1012 & cat; exit {number}") as process:
            await process.send(b"x\n")
            assert await lines(process, 1) == ["x"]
            process.close_stdin()
            assert await process.wait() == number
        ended.append(process)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(one, number)
    assert len(ended) == 40
    assert all(process.left == [] for process in ended)


async def test_closing_the_supervisor_ends_what_is_there() -> None:
    async with Supervisor() as supervisor:
        pid = supervisor.pid
        async with shell(supervisor, "echo up; sleep 60") as process:
            await lines(process, 1)
    assert not lives(pid)
    assert not lives(process.pid)


# Cancellation


async def test_cancelled_at_any_point_it_leaves_nothing(supervisor: Supervisor) -> None:
    async def live() -> None:
        async with shell(supervisor, "setsid sleep 1013 & exec sleep 1014", grace=0.02):
            await anyio.sleep_forever()

    await start_and_forget(supervisor)
    fds = len(os.listdir("/proc/self/fd"))
    for steps in range(13):
        seen: set[int] = set()
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(live)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                while len(seen) < steps - 10:  # at last, late enough for both to be there
                    await anyio.lowlevel.checkpoint()
                    seen = tree_of(supervisor)
                tasks.cancel_scope.cancel()
        assert not [pid for pid in seen | tree_of(supervisor) if lives(pid)], steps
        assert len(os.listdir("/proc/self/fd")) == fds, steps


async def start_and_forget(supervisor: Supervisor) -> None:
    """Have the loop open what it keeps open, for counting descriptors."""
    async with start(supervisor, "true") as process:
        await process.wait()


async def test_a_cancelled_owner_still_waits_for_the_end(supervisor: Supervisor) -> None:
    with anyio.CancelScope() as scope:
        async with shell(supervisor, "setsid sleep 1015 & echo $!; cat") as process:
            (tool,) = map(int, await lines(process, 1))
            scope.cancel()
            await anyio.sleep_forever()
    assert process.left == []
    assert process.returncode == 0
    assert not lives(tool)


# What kills the supervisors themselves


async def test_a_killed_supervisor_ends_nothing_and_is_replaced(supervisor: Supervisor) -> None:
    async with shell(supervisor, "setsid sleep 1016 & echo $!; cat") as process:
        (tool,) = map(int, await lines(process, 1))
        first = supervisor.pid
        os.kill(first, signal.SIGKILL)
        assert await anyio.to_thread.run_sync(await_end, [first]) == []
        await process.send(b"on\n")
        assert await lines(process, 1) == ["on"]
        async with start(supervisor, "cat") as other:
            assert supervisor.pid != first
            await other.send(b"too\n")
            assert await lines(other, 1) == ["too"]
        assert other.left == []
    assert process.left == []
    assert not lives(tool)


@pytest.mark.parametrize("moment", ["before the order", "when orders are on their way"])
async def test_all_who_find_the_supervisor_killed_share_one_new_one(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    launched: list[Launched] = []
    codes: list[int] = []

    def launch() -> Launched:
        launched.append(Launched())
        return launched[-1]

    async def one(number: int) -> None:
        async with shell(supervisor, f"exit {number}") as process:
            codes.append(await process.wait())

    async def kill() -> None:
        os.kill(supervisor.pid, signal.SIGKILL)
        assert await anyio.to_thread.run_sync(await_end, [supervisor.pid]) == []

    monkeypatch.setattr(processes, "Launched", launch)
    with anyio.fail_after(SECONDS):
        if moment == "before the order":
            await kill()
        else:
            os.kill(supervisor.pid, signal.SIGSTOP)
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(one, number)
            if moment != "before the order":
                await anyio.wait_all_tasks_blocked()
                os.kill(supervisor.pid, signal.SIGKILL)
    assert sorted(codes) == list(range(8))
    assert [supervisor.pid] == [new.program.pid for new in launched]


async def test_closed_while_a_killed_supervisor_is_replaced_it_stays_closed() -> None:
    ends: list[object] = []

    async def one(supervisor: Supervisor) -> None:
        try:
            async with start(supervisor, "true") as process:
                ends.append(await process.wait())
        except GoferError as error:
            ends.append(str(error))

    for steps in range(8):
        ends.clear()
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                async with Supervisor() as supervisor:
                    os.kill(supervisor.pid, signal.SIGKILL)
                    for _ in range(3):
                        tasks.start_soon(one, supervisor)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
        assert len(ends) == 3
        assert all(end == 0 or "supervisor" in str(end) for end in ends), ends
        assert not lives(supervisor.pid)
        with pytest.raises(GoferError, match="not open"):
            await start(supervisor, "true").__aenter__()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_polite_signal_does_not_end_the_supervisor(
    supervisor: Supervisor, number: int
) -> None:
    async with start(supervisor, "cat") as process:
        os.killpg(supervisor.pid, number)
        await process.send(b"on\n")
        assert await lines(process, 1) == ["on"]
        async with start(supervisor, "true") as other:
            assert await other.wait() == 0
    assert process.left == []


async def test_the_tree_of_a_killed_reaper_is_ended(supervisor: Supervisor) -> None:
    async with start(supervisor, "cat") as bystander:
        async with shell(supervisor, "setsid sleep 1017 & echo $!; cat") as process:
            (tool,) = map(int, await lines(process, 1))
            os.kill(parent_of(process.pid), signal.SIGKILL)
            with anyio.fail_after(SECONDS):
                assert await process.wait() == -signal.SIGKILL
        assert process.left == []
        assert not lives(tool)
        assert not lives(process.pid)
        await bystander.send(b"on\n")
        assert await lines(bystander, 1) == ["on"]


async def test_a_process_that_kills_its_reaper_at_once_was_started(supervisor: Supervisor) -> None:
    ends = []

    async def one() -> None:
        async with shell(supervisor, "(setsid sleep 1019 &); kill -9 $PPID; sleep 1019") as process:
            ends.append(await process.wait())
        assert process.left == []

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(one)
    assert ends == [-signal.SIGKILL] * 20


@pytest.mark.parametrize(
    ("said", "started"), [({"left": [], "reaper": -9}, True), ({"left": [], "reaper": 1}, False)]
)
async def test_the_end_of_a_reaper_that_had_said_nothing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, said: Any, started: bool
) -> None:
    async def instead(_: Supervisor, fds: list[int]) -> None:
        os.write(fds[3], json.dumps(said).encode() + b"\n")

    monkeypatch.setattr(Supervisor, "_order", instead)
    with anyio.fail_after(SECONDS):
        if not started:
            with pytest.raises(RunnerError, match="cannot be started in '/': its reaper failed"):
                await start(supervisor, "true").__aenter__()
            return
        async with start(supervisor, "true") as process:
            assert await process.wait() == -signal.SIGKILL
            assert process.exit_text == "it was ended by SIGKILL"
        assert process.left == []


async def test_where_supervisor_and_reaper_are_killed_the_tree_is_searched_for(
    supervisor: Supervisor,
) -> None:
    async with shell(supervisor, "setsid sleep 1018 & echo $!; cat") as process:
        (tool,) = map(int, await lines(process, 1))
        for pid in (supervisor.pid, parent_of(process.pid)):
            os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(SECONDS):
            await process.wait()
    assert await anyio.to_thread.run_sync(await_end, [tool, process.pid]) == []


DESERTER = """
    import os, signal, subprocess
    reaper = os.getppid()
    with open(f"/proc/{reaper}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    os.write(1, os.environ["GOFER_TREE"].encode() + bytes([10]))
    os.read(0, 1)
    for pid in (supervisor, reaper):
        os.kill(pid, signal.SIGKILL)
    subprocess.Popen(["sleep", "4010"], start_new_session=True)
    os._exit(0)
"""


async def test_who_kills_all_that_supervises_him_and_goes_leaves_nothing(
    supervisor: Supervisor,
) -> None:
    for _ in range(5):
        async with python(supervisor, DESERTER) as process:
            (mark,) = await lines(process, 1)
            await process.send(b"!")
            with anyio.fail_after(SECONDS):
                await process.wait()
        left = [pid for pid, _ in marked(f"GOFER_TREE={mark}".encode())]
        assert await anyio.to_thread.run_sync(await_end, [*left, process.pid]) == []


async def test_a_process_is_marked_so_that_it_can_be_found(supervisor: Supervisor) -> None:
    async with shell(supervisor, "setsid sleep 4011 & echo $! $GOFER_TREE; cat") as process:
        tool, mark = (await lines(process, 1))[0].split()
        assert {int(tool), process.pid} <= dict(marked(f"GOFER_TREE={mark}".encode())).keys()
        assert dict(marked(f"GOFER_TREE={mark}x".encode())) == {}


# What stops the supervisors: each of these does at its time, and knows nothing better

STOPPERS = """
    import os, signal, sys, time
    whom, moment = sys.argv[1:]
    reaper = os.getppid()
    with open(f"/proc/{reaper}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    def stop():
        if whom != "the reaper":
            os.kill(supervisor, signal.SIGSTOP)
        if whom != "the supervisor":
            number = signal.SIGKILL if whom.endswith("killed") else signal.SIGSTOP
            try:
                os.kill(reaper, number)
            except ProcessLookupError:
                pass
    def told(*_):
        if moment == "at TERM":
            stop()
    signal.signal(signal.SIGTERM, told)
    tool = os.fork()
    if not tool:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        if moment == "again and again":
            while os.getppid() > 1:
                stop()
        while True:
            signal.pause()
    if moment == "at once":
        stop()
    os.write(1, b"%d\\n" % tool)
    while os.read(0, 100):
        pass
    if moment == "at the end of stdin":
        stop()
    while True:
        signal.pause()
"""

WHOM = ["the reaper", "the supervisor", "both", "both, and the reaper is killed"]


@pytest.mark.parametrize("moment", ["at once", "at the end of stdin", "at TERM", "again and again"])
@pytest.mark.parametrize("whom", WHOM)
async def test_who_stops_his_supervisors_does_not_outlive_his_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, whom: str, moment: str
) -> None:
    monkeypatch.setattr(_patience, "LOOK_SECONDS", 0.2)
    async with Supervisor() as supervisor:
        async with python(supervisor, STOPPERS, whom, moment) as process:
            (tool,) = map(int, await lines(process, 1))
            top = supervisor.pid
            tree = {pid for pid, _ in descendants(top)}
            assert {process.pid, tool} <= tree
            began = time.monotonic()
    assert time.monotonic() - began < _patience.LAST_SECONDS / 2
    assert await anyio.to_thread.run_sync(await_end, tree | {top}) == []
    assert not process.left
    if whom != "the reaper":
        assert f"the supervising processes [{top}" in caplog.text
    elif moment == "again and again":
        assert "its reaper (status -9) was killed" in caplog.text
    else:
        assert caplog.text == ""


async def test_an_exit_is_told_also_where_nobody_is_left_to_tell(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    code = f"read go; kill -STOP {supervisor.pid} $PPID; sleep 4006 & exit 7"
    async with shell(supervisor, code) as process:
        with anyio.fail_after(SECONDS):
            await process.send(b"go\n")
            assert await process.wait() == 7
    assert "/bin/sh: the supervising processes [" in caplog.text
    assert process.left == []


async def test_an_exit_that_cannot_be_told_is_taken_for_a_kill(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"read go; kill -STOP {supervisor.pid} $PPID; exit 7"
    async with shell(supervisor, code) as process:
        # Who makes them go on may be beaten by who stops them.
        monkeypatch.setattr(_patience, "rouse", lambda session: [session])
        monkeypatch.setattr(_patience, "LOOK_SECONDS", 0.2)
        with anyio.fail_after(SECONDS):
            await process.send(b"go\n")
            assert await process.wait() == -signal.SIGKILL
        monkeypatch.undo()
    assert "/bin/sh: nobody tells how it exited; what can be found" in caplog.text


async def test_a_stopped_supervisor_starts_and_calls_off_all_the_same(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    os.kill(supervisor.pid, signal.SIGSTOP)
    with anyio.fail_after(SECONDS):
        async with shell(supervisor, "exit 3") as process:
            assert await process.wait() == 3
    told = f"/bin/sh: the supervising processes [{supervisor.pid}] had been stopped"
    assert told in caplog.text
    await start_and_forget(supervisor)
    fds = len(os.listdir("/proc/self/fd"))
    os.kill(supervisor.pid, signal.SIGSTOP)
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start_and_forget, supervisor)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - began < _patience.LAST_SECONDS / 2
    assert tree_of(supervisor) == set()
    assert len(os.listdir("/proc/self/fd")) == fds


@pytest.mark.parametrize("whom", ["its reaper", "its reaper and the supervisor"])
async def test_who_cannot_be_made_to_go_on_is_killed_with_the_tree(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, whom: str
) -> None:
    async def impatiently(*given: Any) -> bool:
        return await patiently(*given[:3], 0.5)

    patiently = _process.patiently
    async with Supervisor() as supervisor:
        async with shell(supervisor, "setsid sleep 1024 & echo $!; sleep 1025") as process:
            (tool,) = map(int, await lines(process, 1))
            # Killed, the supervisor cannot make the reaper go on; stopped, it cannot end.
            end = signal.SIGKILL if whom == "its reaper" else signal.SIGSTOP
            os.kill(supervisor.pid, end)
            if end == signal.SIGKILL:
                await anyio.to_thread.run_sync(await_end, [supervisor.pid])
            reaper = parent_of(process.pid)
            os.kill(reaper, signal.SIGSTOP)
            monkeypatch.setattr(_process, "patiently", impatiently)
            monkeypatch.setattr(processes, "patiently", impatiently)
    assert "its reaper does not answer; what can be found of its processes is killed" in caplog.text
    assert ("the supervisor does not end" in caplog.text) == (end == signal.SIGSTOP)
    left = await anyio.to_thread.run_sync(await_end, [tool, process.pid, reaper, supervisor.pid])
    assert left == []


@pytest.mark.parametrize("whom", WHOM)
def test_when_gofer_is_killed_who_stopped_his_supervisors_is_not_left(
    anyio_backend: str, tmp_path: Path, whom: str
) -> None:
    program = tmp_path / "stoppers.py"
    program.write_text(textwrap.dedent(STOPPERS))
    script = f"exec '{sys.executable}' -I -S '{program}' '{whom}' 'at once'"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(GOFER), anyio_backend, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as gofer:
        assert gofer.stdout is not None
        pids = [int(word) for _ in range(2) for word in gofer.stdout.readline().split()]
        assert len(pids) == 3
        tree = {pid for pid, _ in descendants(pids[0])} | set(pids)
        gofer.kill()
        gofer.wait(SECONDS)
        assert await_end(tree) == []


GOFER = """
    import os, sys, anyio
    from pathlib import Path
    from gofer.processes import Supervisor

    async def main():
        async with Supervisor() as supervisor:
            async with supervisor.process(
                ["/bin/sh", "-c", sys.argv[2]], cwd=Path("/"), environment={}, grace=0.1
            ) as process:
                print(supervisor.pid, process.pid, flush=True)
                while data := await process.receive():
                    os.write(1, data)

    anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_gofer_is_killed_nothing_is_left(anyio_backend: str, number: int) -> None:
    script = "setsid sleep 1019 & echo $!; trap '' TERM HUP; sleep 1020 & echo $!; sleep 1021"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(GOFER), anyio_backend, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as gofer:
        assert gofer.stdout is not None
        pids = [int(word) for _ in range(3) for word in gofer.stdout.readline().split()]
        assert len(pids) == 4
        tree = {pid for pid, _ in descendants(pids[0])} | set(pids)
        assert all(map(lives, tree))
        gofer.send_signal(number)
        gofer.wait(SECONDS)
        assert await_end(tree) == []


def test_when_a_gofer_that_has_forked_is_killed_nothing_is_left(anyio_backend: str) -> None:
    script = "setsid sleep 1022 & echo $!; sleep 1023"
    program = textwrap.dedent(GOFER).replace("print(supervisor.pid", "fork(); print(supervisor.pid")
    program = (
        "import os, signal\n"
        + (
            "def fork():\n"
            "    pid = os.fork()\n"
            "    if not pid:\n"
            "        signal.pause()\n"
            "    print(pid)\n"
        )
        + program
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, anyio_backend, script],
        stdout=subprocess.PIPE,
    ) as gofer:
        assert gofer.stdout is not None
        copy, *pids = [int(word) for _ in range(3) for word in gofer.stdout.readline().split()]
        try:
            gofer.kill()
            gofer.wait(SECONDS)
            assert await_end(pids) == []
            assert lives(copy)
        finally:
            os.kill(copy, signal.SIGKILL)


# Leaks


async def test_many_starts_leak_nothing() -> None:
    own = psutil.Process()
    async with Supervisor() as supervisor:
        program = psutil.Process(supervisor.pid)

        async def one(number: int) -> None:
            with anyio.move_on_after(0.001 * number if number % 5 == 0 else SECONDS):
                argv = ["true"] if number % 3 else ["no-such-program"]
                try:
                    async with start(supervisor, *argv, grace=SECONDS) as process:
                        await process.wait()
                except RunnerError:
                    assert number % 3 == 0

        for number in range(12):
            await one(number)
        before = own.num_fds(), own.num_threads(), program.num_fds(), len(own.children())
        for number in range(60):
            await one(number)
        # The last reaper may still be on its way out.
        await start_and_forget(supervisor)
        after = own.num_fds(), own.num_threads(), program.num_fds(), len(own.children())
    assert after[0] == before[0]
    assert after[1] <= before[1]
    assert after[2] <= before[2] + 1
    assert after[3] == before[3]


async def test_where_descriptors_run_out_the_error_says_so(supervisor: Supervisor) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    few = [number for number in range(1000) if number not in used][4]
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        with pytest.raises(RunnerError, match="Too many open files"):
            async with start(supervisor, "true"):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await start_and_forget(supervisor)


async def test_where_the_supervisor_runs_out_of_descriptors_the_error_says_so(
    supervisor: Supervisor,
) -> None:
    import resource

    await start_and_forget(supervisor)
    limits = resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE, (9, limits[1]))
    with pytest.raises(RunnerError, match="descriptors"):
        async with start(supervisor, "true"):
            pass
    resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE, limits)
    await start_and_forget(supervisor)


# The tail of stderr, in pieces


@given(st.lists(st.binary(min_size=1, max_size=3 * STDERR_TAIL // 2), max_size=8))
@settings(max_examples=50, deadline=None)
def test_the_tail_is_the_last_of_all_pieces(pieces: list[bytes]) -> None:
    import socket

    async def main() -> tuple[str, int]:
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        process = Process("x", -1, os.dup(reader), reader, ours)
        with theirs:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process._drain_stderr)
                for piece in pieces:
                    await anyio.to_thread.run_sync(write_all, writer, piece)
                os.close(writer)
        kept = sum(map(len, process._tail))
        process._close()
        return process.stderr_tail, kept

    tail, kept = anyio.run(main)
    assert tail == b"".join(pieces)[-STDERR_TAIL:].decode(errors="replace")
    assert kept <= 2 * STDERR_TAIL


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
