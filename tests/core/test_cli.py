"""The command line: what goes where, exit codes, signals, and what is loaded when."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gofer._cli_output import Plain, plain, write
from gofer._config_sources import user_file
from gofer.cli import app
from gofer.testing import fake_agent

RUNNER = '''
import json
import os
import sys
import tempfile

import anyio
import gofer


class Fake(gofer.Runner):
    """Does what its task names."""

    name = "fake"
    capabilities = gofer.Capabilities(tool_scope=True)

    async def run(self, spec, run):
        return await getattr(self, run.prompt.partition(" ")[0])(spec, run)

    async def say(self, spec, run):
        await run.emit(gofer.Text(text=run.prompt.partition(" ")[2]))
        return run.result()

    async def work(self, spec, run):
        await run.emit(gofer.Text(text="Let me look.", message_id="1"))
        await run.emit(gofer.ToolCall(id="c", name="read", title="Read\\x1b[31m\\na file"))
        await run.emit(gofer.ToolCall(id="c", name="read", status="completed"))
        await run.emit(gofer.Text(text="All \\x1b[3", message_id="2"))
        await run.emit(gofer.Text(text="1mgood\\x1b[0m.", message_id="2"))
        session = gofer.SessionInfo(id="s-1")
        return run.result(session=session)

    async def much(self, spec, run):
        await run.emit(gofer.Text(text="line\\n" * 1_000_000))
        return run.result()

    async def print(self, spec, run):
        print("NOISE")
        await run.emit(gofer.Text(text="printed"))
        return run.result()

    async def keep(self, spec, run):
        self.file = tempfile.NamedTemporaryFile(dir=".")  # goes when it is collected
        await run.emit(gofer.Text(text=" ".join(os.listdir(run.cwd))))
        return run.result()

    async def stop(self, spec, run):
        await run.emit(gofer.Text(text="so far"))
        return run.result(stop_reason=run.prompt.partition(" ")[2])

    async def half(self, spec, run):
        await run.emit(gofer.Text(text="half of it"))
        raise RuntimeError("it broke")

    async def spec(self, spec, run):
        told = spec.model_dump_json(exclude_defaults=True)
        settings = run.host.config.model_dump_json(include={"base_url", "model"})
        await run.emit(gofer.Text(text=f'[{told}, {settings}, "{run.cwd}"]'))
        return run.result()

    async def hang(self, spec, run):
        await run.emit(gofer.Text(text="so far"))
        try:
            print("ready", file=sys.stderr, flush=True)
            await anyio.sleep_forever()
        finally:
            print("closed", file=sys.stderr, flush=True)

    async def stay(self, spec, run):
        await run.emit(gofer.Text(text="so far", message_id="1"))
        await run.emit(gofer.Text(text=run.prompt.partition(" ")[2], message_id="2"))
        with anyio.CancelScope(shield=True):
            print("ready", file=sys.stderr, flush=True)
            await run.cancel_requested.wait()
            print("asked", file=sys.stderr, flush=True)
            await anyio.sleep_forever()

    async def anew(self, spec, run):
        await run.emit(gofer.Text(text="begun"))
        given = json.loads(run.prompt.partition(" ")[2])
        return run.result(session=gofer.SessionInfo(**given))

    async def denied(self, spec, run):
        await run.emit(gofer.Text(text="I may not"))
        return run.result(permissions_denied=json.loads(run.prompt.partition(" ")[2]))


class Asks(Fake):
    """Makes its model requests itself, through its Host."""

    name = "asks"
    observed = False
'''

COMMANDS = """
import typer

app = typer.Typer()


@app.command()
def hello(name: str = "you") -> None:
    '''Greet somebody.'''
    typer.echo(f"hello {name}")


@app.command()
def wrong() -> None:
    import gofer

    raise gofer.ConfigError("the greeting is wrong")


not_an_app = 3
"""


def package(site: Path, name: str, modules: dict[str, str], **groups: dict[str, str]) -> None:
    """Install a package the way a wheel is: its modules, and its metadata next to them."""
    info = site / f"{name.replace('-', '_')}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[gofer.{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where further packages go; it holds a runner ``fake`` and a command ``greet``."""
    site = tmp_path / "site"
    package(
        site,
        "faker",
        {"fake_runner": RUNNER, "fake_commands": COMMANDS},
        runners={"fake": "fake_runner:Fake", "asks": "fake_runner:Asks"},
        commands={"greet": "fake_commands:app"},
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def command(*args: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "gofer", *args]


def gofer(*args: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    done = subprocess.run(
        command(*args),
        input=stdin.encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=60,
        env=os.environ | variables,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    return subprocess.CompletedProcess(
        args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def fake(task: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return gofer("run", "--runner", "fake", *args, task, **variables)


def on_terminal(args: Sequence[str], *, stdout_too: bool = True) -> tuple[int, str, str]:
    """Run a command whose stderr, and maybe stdout, is a terminal: exit code, screen, stdout."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        args, stdin=slave, stdout=slave if stdout_too else subprocess.PIPE, stderr=slave
    )
    os.close(slave)
    screen = bytearray()
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # on Linux, nobody has the other end any more
            break
        if not data:
            break
        screen += data
    os.close(master)
    out, _ = process.communicate(timeout=60)
    return process.returncode, screen.decode().replace("\r\n", "\n"), (out or b"").decode()


# gofer run: what goes where


def test_the_final_message_goes_to_stdout(site: Path, here: Path) -> None:
    done = fake("work")
    assert (done.returncode, done.stdout, done.stderr) == (0, "All \x1b[31mgood\x1b[0m.\n", "")


def test_json_is_one_object_and_nothing_else(site: Path, here: Path) -> None:
    for option in (["--json"], ["--format", "json"]):
        done = fake("work", *option)
        assert done.stdout.count("\n") == 1
        result = json.loads(done.stdout)
        assert result["summary"] == "All \x1b[31mgood\x1b[0m."
        assert (result["exit_ok"], result["session"]["id"]) == (True, "s-1")
        assert done.stderr == ""


def test_a_failed_child(site: Path, here: Path) -> None:
    done = fake("half")
    assert (done.returncode, done.stdout) == (1, "half of it\n")
    assert done.stderr == "gofer: RuntimeError: it broke\n"
    assert json.loads(fake("half", "--json").stdout)["error"] == "RuntimeError: it broke"


def test_no_text_is_a_failure(site: Path, here: Path) -> None:
    done = fake("say")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no text" in done.stderr


def test_text_comes_out_as_utf8_whatever_the_locale(site: Path, here: Path) -> None:
    done = fake(
        "say gr\u00fc\u00df \U0001f642", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert done.stdout == "gr\u00fc\u00df \U0001f642\n"


def test_the_task_can_come_from_stdin(site: Path, here: Path) -> None:
    done = gofer("run", "--runner", "fake", "-", stdin="say é\n\udcff")
    assert done.stdout == "é\n\ufffd\n"


def test_options_reach_the_spec(site: Path, here: Path) -> None:
    other = here / "other"
    other.mkdir()
    done = gofer(
        "run", "--runner", "asks",
        "spec", "--agent", "a", "--cwd", "other", "--timeout", "50", "--idle-timeout", "40.5",
        "--resume", "s-0", "--tool", "read", "--tool", "write",
        "--base-url", "http://host.test/v1", "--model", "m",
    )  # fmt: skip
    spec, settings, cwd = json.loads(done.stdout)
    assert spec == {
        "task": "spec",
        "agent": "a",
        "runner": "asks",
        "resume": "s-0",
        "tool_scope": ["read", "write"],
        "timeout": 50.0,
        "idle_timeout": 40.5,
    }
    assert settings == {"base_url": "http://host.test/v1", "model": "m"}
    assert cwd == str(other)
    # An agent of a runner that asks a model server itself: the same settings reach it.
    (here / "gofer").mkdir()
    (here / "gofer" / "gofer.toml").write_text("[agents.mine]\nrunner = 'asks'")
    line = ["run", "--agent", "mine", "--base-url", "http://host.test/v1", "--model", "m", "spec"]
    _, settings, _ = json.loads(gofer(*line, XDG_CONFIG_HOME=str(here)).stdout)
    assert settings == {"base_url": "http://host.test/v1", "model": "m"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--agent", "", "x"], "--agent"),
        (["--runner", " ", "x"], "--runner"),
        (["--resume=", "x"], "--resume"),
        (["--base-url=", "x"], "--base-url"),
        (["--tool", "a", "--tool", "", "x"], "--tool"),
        ([" "], "TASK"),
        (["--branch", "b", "x"], "--branch"),
        (["--timeout", "0", "x"], "--timeout"),
    ],
)
def test_an_option_that_cannot_be_so_is_named(here: Path, args: list[str], said: str) -> None:
    done = gofer("run", *args, COLUMNS="200")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Invalid value for {said}: " in done.stderr


def test_a_closed_stdin_is_told_of(here: Path) -> None:
    line = shlex.join(command("run", "-")) + " <&-"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin, which is closed" in done.stderr


def test_a_directory_that_is_gone_is_told_of(site: Path, here: Path) -> None:
    line = f"rmdir {shlex.quote(str(here))}; {shlex.join(command('run', '--runner', 'fake', 'x'))}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gofer: the current directory does not exist any more")


def test_an_end_that_is_none_of_the_good_ones_is_told_of(site: Path, here: Path) -> None:
    done = fake("stop max_tokens")
    assert (done.returncode, done.stdout) == (1, "so far\n")
    assert done.stderr == "gofer: the child ended with 'max_tokens'\n"


def test_a_scope_that_would_not_be_kept_is_refused(here: Path) -> None:
    (here / "gofer").mkdir()
    (here / "gofer" / "gofer.toml").write_text("[agents.mine]\ncommand = ['true']")
    done = gofer("run", "--agent", "mine", "--tool", "read", "x", XDG_CONFIG_HOME=str(here))
    assert (done.returncode, done.stdout) == (2, "")
    assert "agent 'mine' has tools of its own, which --tool cannot take away" in done.stderr


@pytest.mark.parametrize("runner", ["acp", "fake"])
def test_a_model_server_that_would_not_be_used_is_refused(
    site: Path, here: Path, runner: str
) -> None:
    (here / "gofer").mkdir()
    command = "command = ['true']" if runner == "acp" else ""
    (here / "gofer" / "gofer.toml").write_text(f"[agents.mine]\nrunner = '{runner}'\n{command}")
    line = ["run", "--agent", "mine", "--base-url", "http://host.test/v1", "say x"]
    done = gofer(*line, XDG_CONFIG_HOME=str(here))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gofer: agent 'mine' makes its model requests itself, to a server that --base-url cannot "
        "choose: leave it out, and name the server in the agent's own configuration\n"
    )
    # A runner without an agent may read the settings, whatever it does with them.
    assert fake("say x", "--base-url", "http://host.test/v1").stdout == "x\n"


def test_a_model_of_an_agent_is_its_setting(here: Path) -> None:
    models = {
        "currentModelId": "big",
        "availableModels": [{"modelId": "big"}, {"modelId": "small"}],
    }
    script = {
        "session/new": [{"result": {"sessionId": "s", "models": models}}],
        "session/set_model": [{"result": {}}],
        "turns": [[{"say": "hello"}]],
    }
    command = json.dumps(fake_agent.command(script))
    (here / "gofer").mkdir()
    (here / "gofer" / "gofer.toml").write_text(f"[agents.mine]\ncommand = {command}")
    line = ["run", "--agent", "mine", "--model"]
    done = gofer(*line, "small", "x", XDG_CONFIG_HOME=str(here))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    for more in ([], ["--runner", "acp"]):
        done = gofer(*line, "huge", *more, "x", XDG_CONFIG_HOME=str(here))
        assert done.returncode == 1
        assert "huge" in done.stderr
    line[2] = "mien"
    done = gofer(*line, "small", "x", XDG_CONFIG_HOME=str(here))
    assert done.returncode == 2
    assert "agent 'mien' is unsupported; did you mean mine?" in done.stderr


def test_verbose_tells_what_the_agent_does(here: Path) -> None:
    script = {"turns": [[{"stderr": "oops é\n"}, {"say": "hello"}]]}
    command = json.dumps(fake_agent.command(script))
    (here / "gofer").mkdir()
    (here / "gofer" / "gofer.toml").write_text(f"[agents.mine]\ncommand = {command}")
    done = gofer("-v", "run", "--agent", "mine", "x", XDG_CONFIG_HOME=str(here))
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert f"gofer: agent mine: {sys.executable} runs as process " in done.stderr
    assert "gofer: agent mine stderr: oops é\n" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locales")
def test_arguments_in_a_locale_that_is_not_utf_8(site: Path, here: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = fake("spec", "--agent", "zö", "--resume", "é", "--tool", "ü", **plain)
    spec, _, _ = json.loads(done.stdout)
    assert (spec["agent"], spec["resume"], spec["tool_scope"]) == ("zö", "é", ["ü"])
    # What is no text in any is replaced in a task, and refused where it names something.
    assert json.loads(fake("spec \udcff").stdout)[0]["task"] == "spec �"
    done = fake("spec", "--worktree", "w\udcff")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Invalid value for --worktree: b'w\\xff' is no UTF-8" in done.stderr


def test_a_worktree(site: Path, here: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.test"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    tree = here.parent / "tree"
    done = fake("say done", "--worktree", str(tree), "--branch", "topic", "--json")
    result = json.loads(done.stdout)
    assert result["worktree_path"] == str(tree)
    assert result["worktree"]["branch"] == "topic"
    assert (tree / ".git").exists()
    assert done.stderr == ""


@pytest.mark.parametrize("form", ["text", "json", "quiet"])
def test_the_worktree_of_a_failed_child_stays_and_says_how_to_remove_it(
    site: Path, here: Path, form: str
) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.test"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    tree = here.parent / "a tree"
    done = fake("half", "--worktree", str(tree), "--branch", "topic", "--format", form)
    assert done.returncode == 1
    error, said = done.stderr.splitlines()
    assert error == "gofer: RuntimeError: it broke"
    remove = f"git worktree remove '{tree}'"
    assert said == f"gofer: the worktree {tree} stays; to remove it: {remove}"
    subprocess.run(shlex.split(remove), check=True)
    assert not tree.exists()


# gofer run: what is not to be missed


@pytest.mark.parametrize("form", ["text", "json", "quiet"])
@pytest.mark.parametrize(
    ("session", "said"),
    [
        (
            {"id": "s-2", "reason": "it is\ngone"},
            "gofer: session 's-1' was not resumed (it is gone): a new one was begun, 's-2'\n",
        ),
        ({"id": "s-2"}, "gofer: session 's-1' was not resumed: a new one was begun, 's-2'\n"),
        ({"id": "s-1", "resumed": True}, ""),
    ],
)
def test_a_session_that_was_not_resumed_is_told_of(
    site: Path, here: Path, form: str, session: dict[str, Any], said: str
) -> None:
    task = f"anew {json.dumps(session)}"
    done = fake(task, "--resume", "s-1", "--format", form)
    assert (done.returncode, done.stderr) == (0, said)
    assert "begun" in done.stdout
    assert fake(task, "--format", form).stderr == ""  # none was asked for


@pytest.mark.parametrize("form", ["text", "json", "quiet"])
@pytest.mark.parametrize(
    ("denied", "said"),
    [
        ([{"title": "Run\ntests", "kind": "execute"}], "1 permission was denied (Run tests)"),
        (
            [{"title": None, "kind": "edit"}] * 2
            + [{"kind": "x" * 200}, {"title": 3}, {}, [], "y"],
            f"7 permissions were denied (edit, {'x' * 100}..., 3, ...)",
        ),
        ([None], "1 permission was denied (a tool)"),
    ],
)
def test_what_was_not_permitted_is_told_of(
    site: Path, here: Path, form: str, denied: list[Any], said: str
) -> None:
    done = fake(f"denied {json.dumps(denied)}", "--agent", "mine", "--format", form)
    assert "I may not" in done.stdout
    *_, last = done.stderr.splitlines()
    assert last == f"gofer: {said}: permissions, in the settings of agent 'mine', decides that"


# gofer run: on a terminal


def test_a_terminal_shows_text_as_it_comes_and_no_escapes(site: Path, here: Path) -> None:
    code, screen, _ = on_terminal(command("run", "--runner", "fake", "work"))
    assert code == 0
    assert screen == "Let me look.\n> Read a file\nAll good.\nsession: s-1\n"


def test_progress_is_on_stderr_and_the_result_on_stdout(site: Path, here: Path) -> None:
    code, screen, out = on_terminal(command("run", "--runner", "fake", "work"), stdout_too=False)
    assert (code, out) == (0, "All \x1b[31mgood\x1b[0m.\n")
    assert screen == "> Read a file\nsession: s-1\n"


@pytest.mark.parametrize("form", ["json", "quiet"])
def test_no_progress_where_none_is_wanted(site: Path, here: Path, form: str) -> None:
    _, screen, out = on_terminal(
        command("run", "--runner", "fake", "--format", form, "work"), stdout_too=False
    )
    assert screen == ""
    assert "good" in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://host.test\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x9ctext\x1bc", "text"),
        ("\x9b31mred", "red"),
        ("\x1b(Bx\x1b7y", "xy"),
        ("a\x07\x08b\rc\td\n", "abc\td\n"),
        ("\x1b]unfinished", ""),
    ],
)
def test_escapes_are_taken_out(text: str, shown: str) -> None:
    assert Plain().feed(text) == shown


FRAGMENTS = st.lists(
    st.one_of(
        st.sampled_from(["\x1b[", "\x1b]", "\x1bP", "\x1b\\", "\x1b", "\x07", "\x9b", "\x9c", "m"]),
        st.text("0;m[]\\ aé\n", max_size=4),
    )
)


@given(FRAGMENTS)
def test_nothing_that_drives_a_terminal_gets_through(pieces: list[str]) -> None:
    stripper = Plain()
    shown = "".join(stripper.feed(piece) for piece in pieces)
    whole = Plain().feed("".join(pieces))
    assert shown == whole
    for text in (shown, plain("".join(pieces))):
        assert all(char in "\n\t" or (char >= " " and not "\x7f" <= char < "\xa0") for char in text)


def test_a_sequence_without_an_end_swallows_little() -> None:
    stripper = Plain()
    shown = stripper.feed("\x1b]") + "".join(stripper.feed("x" * 100) for _ in range(100))
    assert shown.count("x") > 5000


# gofer run: usage, and what cannot be started


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["run"], "TASK"),
        (["run", "x", "--nope"], "--nope"),
        (["run", "x", "--timeout", "0"], "--timeout"),
        (["run", "x", "--timeout", "nan"], "--timeout"),
        (["run", "x", "--branch", "b"], "--worktree"),
        (["run", "x", "--format", "xml"], "xml"),
        (["nope"], "nope"),
        (["run", "--runner", "nope", "x"], "there is no runner 'nope'; installed: "),
        (["run", "--runner", "fake", "  "], "is blank"),
        (["run", "--runner", "fake", "--cwd", "nowhere", "say x"], "nowhere"),
        (
            ["run", "--runner", "fake", "--base-url", "host", "say x"],
            "argument base_url: should be an http",
        ),
        (["run", "--runner", "fake", "--worktree", "../tree", "say x"], "git"),
    ],
)
def test_what_cannot_be_started_has_exit_code_2(
    site: Path, here: Path, args: list[str], told: str
) -> None:
    done = gofer(*args, COLUMNS="200")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_an_error_of_gofers_is_one_line(site: Path, here: Path) -> None:
    (here / "gofer.toml").write_text("base_url = 'http://elsewhere.test'\n")
    done = fake("say x")
    assert done.returncode == 2
    assert done.stderr.startswith(f"gofer: {here}/gofer.toml: a project's file may set base_url")
    assert done.stderr.count("\n") == 1


def test_log_messages_go_to_stderr(site: Path, here: Path) -> None:
    done = fake("say x", GOFER_MODLE="m")
    assert done.stdout == "x\n"
    assert done.stderr == (
        "gofer: GOFER_MODLE is no variable that gofer knows; did you mean GOFER_MODEL?\n"
    )


# gofer run: signals and closed pipes


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_stops_the_child(site: Path, here: Path, name: str) -> None:
    number = getattr(signal, name)
    process = subprocess.Popen(
        command("run", "--runner", "fake", "--json", "hang"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == "closed\n"
    result = json.loads(out)
    assert (result["stop_reason"], result["summary"]) == ("cancelled", "so far")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_second_signal_does_not_wait(site: Path, here: Path) -> None:
    process = subprocess.Popen(
        command("run", "--runner", "fake", "stay"), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in ("ready\n", "asked\n"):
        assert process.stderr.readline() == line
        process.send_signal(signal.SIGINT)
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 130
    process.stderr.close()


def interrupted_twice(line: list[str], stdout: int) -> tuple[int, str | None]:
    """Have a child that stays be stopped, and gofer too: its exit code, and its stdout."""
    process = subprocess.Popen(line, stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in ("ready\n", "asked\n"):
        assert process.stderr.readline() == line
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert err == ""
    return process.returncode, out


def staying(form: str, task: str = "stay") -> list[str]:
    return command("run", "--runner", "fake", "--format", form, task)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_what_a_child_has_said_survives_a_second_signal(site: Path, here: Path) -> None:
    for form in ("text", "quiet"):
        assert interrupted_twice(staying(form), subprocess.PIPE) == (130, "so far\n")
    code, out = interrupted_twice(staying("json", "stay on"), subprocess.PIPE)
    result = json.loads(out or "")
    assert (code, result["subagent_id"], result["summary"]) == (130, "sub-0", "on")
    assert (result["stop_reason"], result["exit_ok"]) == ("cancelled", False)
    assert result["error"] == "the child was cancelled before it ended"
    closed = ["/bin/sh", "-c", f"exec {shlex.join(staying('text'))} >&-"]
    assert interrupted_twice(closed, subprocess.PIPE) == (130, "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_second_signal_does_not_wait_for_who_does_not_read(
    site: Path, here: Path, form: str
) -> None:
    read, to = os.pipe()
    os.set_blocking(to, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(to, b"x" * 512)
    os.set_blocking(to, True)
    assert interrupted_twice(staying(form), to)[0] == 130
    os.close(to)
    with open(read, "rb") as left:
        assert not left.read().strip(b"x")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_ignored_signal_stays_ignored(site: Path, here: Path) -> None:
    process = subprocess.Popen(
        command("run", "--runner", "fake", "hang"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "closed\n")


INTERRUPTED = """
import os, signal, sys

where = sys.argv.pop(1)


class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == where:
            os.kill(os.getpid(), signal.SIGINT)


from gofer.__main__ import main

sys.meta_path.insert(0, Interrupting())
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("gofer._cli_plain", ["run", "--runner", "fake", "say x"]),
        ("pydantic_core", ["run", "--runner", "fake", "say x"]),
        ("gofer.host", ["run", "--runner", "fake", "say x"]),
        ("anyio._backends._asyncio", ["run", "--runner", "fake", "say x"]),
        ("typer", ["-v", "run", "--runner", "fake", "say x"]),
        ("gofer.host", ["-v", "run", "--runner", "fake", "say x"]),
    ],
)
def test_an_interrupt_while_it_loads_is_no_traceback(
    site: Path, here: Path, where: str, line: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, where, *line],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nobody_reads_any_more(site: Path, here: Path) -> None:
    process = subprocess.Popen(
        command("run", "--runner", "fake", "much"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0
    process.stderr.close()


ALL_OF_IT = b"line\n" * 1_000_000 + b"\n"


@pytest.fixture(params=["buffered", "unbuffered"])
def buffering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes whose stdout has a buffer of Python's, and such whose has none."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1" if request.param == "unbuffered" else "")


@pytest.mark.skipif(sys.platform == "win32", reason="non-blocking pipes")
def test_a_pipe_that_does_not_wait_is_waited_for(site: Path, here: Path, buffering: None) -> None:
    read, to = os.pipe()
    os.set_blocking(to, False)
    process = subprocess.Popen(
        command("run", "--runner", "fake", "much"), stdout=to, stderr=subprocess.PIPE
    )
    os.close(to)
    with open(read, "rb", buffering=0) as pipe:
        got = b"".join(iter(lambda: pipe.read(1000), b""))
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert got == ALL_OF_IT


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_a_file_that_may_not_grow_is_told_of(site: Path, here: Path, buffering: None) -> None:
    line = f"trap '' XFSZ; ulimit -f 100; exec {shlex.join(command('run', 'much'))} --runner fake"
    with open("out", "wb") as out:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            stdout=out, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        b"gofer: cannot write to stdout: File too large\n",
    )
    written = Path("out").read_bytes()
    assert written
    assert ALL_OF_IT.startswith(written)


class Sips(io.RawIOBase):
    """Takes three bytes at a time."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.taken += bytes(data[:3])
        return len(data[:3])


@pytest.mark.parametrize("buffered", [True, False])
def test_what_is_taken_in_parts_is_written_whole(
    monkeypatch: pytest.MonkeyPatch, buffered: bool
) -> None:
    raw = Sips()
    buffer: Any = io.BufferedWriter(raw) if buffered else raw
    stream = io.TextIOWrapper(buffer, encoding="ascii", write_through=not buffered)
    monkeypatch.setattr(sys, "stdout", stream)
    if buffered:
        print("before", end=" ")  # noqa: T201
    write("grüß dich")
    assert raw.taken == ("before " if buffered else "").encode() + "grüß dich\n".encode()


GOES_ON = """
import gc, signal
from gofer.__main__ import main

try:
    main()
except SystemExit as end:
    print("goes on", end.code, gc.get_freeze_count())
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
TEES = """
import sys
from gofer.__main__ import main

class Tee:
    def __init__(self):
        self.copy = open("copy", "w", encoding="utf-8")

    def write(self, text):
        self.copy.write(text)
        return sys.__stdout__.write(text)

    def flush(self):
        pass

sys.stdout = Tee()
main()
"""


@pytest.fixture
def scripted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent ``mine`` that says hello."""
    script = json.dumps(fake_agent.command({"turns": [[{"say": "hello"}]]}))
    Path("gofer").mkdir(exist_ok=True)
    Path("gofer", "gofer.toml").write_text(f"[agents.mine]\ncommand = {script}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here))


def program(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", code, *args]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("agent", "said", "error"),
    [("mine", "hello\ngoes on 0 ", ""), ("no", "goes on 2 ", "gofer: agent 'no' is unsupported")],
)
def test_a_program_that_catches_the_exit_goes_on(
    scripted: None, agent: str, said: str, error: str
) -> None:
    done = program(GOES_ON, "run", "--agent", agent, "x")
    assert (done.returncode, done.stdout) == (0, f"{said}0\n"), done.stderr
    assert done.stderr.startswith(error)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_stdout_of_a_programs_own_loses_nothing(
    scripted: None, buffering: None, form: str
) -> None:
    done = program(TEES, "run", "--agent", "mine", "--format", form, "x")
    assert (done.returncode, done.stderr) == (0, "")
    assert "hello" in done.stdout
    assert done.stdout.endswith("\n")
    assert Path("copy").read_text(encoding="utf-8") == done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_cannot_be_written_is_told(site: Path, here: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("run", "--runner", "fake", "say x"),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        b"gofer: cannot write to stdout: No space left on device\n",
    )


# What is loaded when


def test_help_and_version_load_nothing_of_others(site: Path, here: Path) -> None:
    package(
        site,
        "bomb",
        {"bomb": "raise SystemExit('loaded')"},
        runners={"bomb": "bomb:Bomb"},
        plugins={"bomb": "bomb:Bomb"},
        commands={"bomb": "bomb:app"},
    )
    code = (
        "import sys\n"
        "from gofer.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'gofer_runners', 'gofer_plugins', 'httpx', 'mcp', 'xllamacpp', 'bomb', 'trio'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    for args in (["--help"], ["--version"], ["run", "--help"], ["plugins", "--no-load"]):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, *args],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == "[]\n"
        if args == ["--help"]:
            for name in ("run", "plugins", "config", "greet", "bomb", "Comes with faker 1.5"):
                assert name in done.stdout


def test_the_command_line_is_not_loaded_with_the_package() -> None:
    code = (
        "import sys, gofer; print({'typer', 'rich', 'httpx', 'mcp'} & set(sys.modules) or 'none')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "none\n"


# Commands of other packages


def test_a_command_of_another_package(site: Path, here: Path) -> None:
    assert gofer("greet", "hello", "--name", "me").stdout == "hello me\n"
    assert "Greet somebody." in gofer("greet", "--help").stdout
    done = gofer("greet", "wrong")
    assert (done.returncode, done.stderr) == (2, "gofer: the greeting is wrong\n")


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("raise SystemExit(0)", "SystemExit"),
        ("import not_installed", "No module named 'not_installed'"),
        ("app = 3", "it is a int and no typer.Typer"),
        ("import typer; app = typer.Typer()", "RuntimeError"),
        ("", "AttributeError"),
    ],
)
def test_a_broken_command_is_named_and_harms_no_other(
    site: Path, here: Path, module: str, why: str
) -> None:
    package(site, "broken", {"broken": module}, commands={"broken": "broken:app"})
    done = gofer("broken", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gofer: the command 'broken' of broken 1.5 cannot be used: ")
    assert why in done.stderr
    assert "GOFER_DISABLE=broken" in done.stderr
    assert done.stderr.count("\n") == 1
    assert gofer("greet", "hello").stdout == "hello you\n"


def test_a_disabled_command(site: Path, here: Path) -> None:
    cases = [
        ("GOFER_DISABLE", "faker:greet", "disabled (GOFER_DISABLE): take it out of there"),
        ("GOFER_ALLOW", "fake", "not in the allow-list. Add 'greet' to allow in [tool.gofer]"),
    ]
    for variable, value, why in cases:
        variables = {variable: value}
        done = gofer("greet", "hello", **variables)
        assert done.returncode == 2
        assert done.stderr == (
            f"gofer: the command 'greet' of faker 1.5 cannot be used: it is {why} to use it\n"
        )
        assert "greet" not in gofer("--help", **variables).stdout


def test_no_command_runs_while_the_settings_are_wrong(site: Path, here: Path) -> None:
    (here / "gofer.toml").write_text("disable = ['greet']\n")
    done = gofer("greet", "hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gofer config trust" in done.stderr


def test_names_that_clash(site: Path, here: Path) -> None:
    package(site, "rival", {"rival": COMMANDS}, commands={"greet": "rival:app", "run": "rival:app"})
    done = gofer("greet", "hello")
    assert done.returncode == 2
    assert "claimed by" in done.stderr
    assert gofer("greet", "hello", GOFER_DISABLE="rival:greet").stdout == "hello you\n"
    assert fake("say x").stdout == "x\n"
    rows = {
        (row["distribution"], row["name"]): row
        for row in json.loads(gofer("plugins", "--json").stdout)
        if row["group"] == "gofer.commands"
    }
    assert rows["rival", "run"]["status"] == "set aside"
    assert "gofer's own" in rows["rival", "run"]["error"]
    assert rows["rival", "greet"]["status"] == rows["faker", "greet"]["status"] == "set aside"


# gofer plugins


def test_plugins_lists_what_is_installed(site: Path, here: Path) -> None:
    package(site, "stale", {}, runners={"stale": "gone:Gone"}, plugins={"lost": "gone:Lost"})
    rows = {
        (row["group"], row["name"]): row for row in json.loads(gofer("plugins", "--json").stdout)
    }
    good = rows["gofer.runners", "fake"]
    assert (good["distribution"], good["version"], good["status"]) == ("faker", "1.5", "loaded")
    assert good["error"] is None
    assert rows["gofer.commands", "greet"]["status"] == "loaded"
    for key in (("gofer.runners", "stale"), ("gofer.plugins", "lost")):
        assert rows[key]["status"] == "failed"
        assert "gone" in rows[key]["error"]
        assert "GOFER_DISABLE" in rows[key]["remedy"]


def test_plugins_as_text_and_without_loading(site: Path, here: Path) -> None:
    package(site, "stale", {}, runners={"stale": "gone:Gone"})
    done = gofer("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["name", "kind", "package", "version", "state", "hooks"]
    assert ["fake", "runner", "faker", "1.5", "loaded", "run_subagent"] in lines
    position = lines.index(["stale", "runner", "stale", "1.5", "failed"])
    assert "'gone'" in lines[position + 1]
    unloaded = gofer("plugins", "--no-load", GOFER_DISABLE="fake").stdout
    rows = [line.split() for line in unloaded.splitlines()]
    assert ["stale", "runner", "stale", "1.5", "available"] in rows
    assert ["fake", "runner", "faker", "1.5", "disabled"] in rows


def test_plugins_tells_of_what_strict_mode_refuses(site: Path, here: Path) -> None:
    package(site, "stale", {}, plugins={"stale": "gone:Gone"})
    assert fake("say x", GOFER_STRICT="1").returncode == 2
    assert "failed" in gofer("plugins", GOFER_STRICT="1").stdout


# gofer config


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def test_version() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"gofer {version('gofer')}\n")


def test_no_command_at_all_shows_the_help() -> None:
    assert "plugins" in invoke().output


def test_config_tells_where_each_value_comes_from(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "pyproject.toml").write_text("[tool.gofer]\nmodel = 'mine'\ntimeout = 5\n")
    user_file().parent.mkdir(parents=True)
    user_file().write_text("[runners.acp]\ncommand = 'x'\nenv = {A = 'hunter2'}\n")
    monkeypatch.setenv("GOFER_API_KEY", "hunter2")
    monkeypatch.setenv("GOFER_TIMEOUT", "7")
    lines = invoke("config").stdout.splitlines()
    assert lines[:2] == [f"# read: {here}/pyproject.toml", f"# read: {user_file()}"]
    assert f'model = "mine"  # {here}/pyproject.toml:tool.gofer.model' in lines
    assert "timeout = 7.0  # GOFER_TIMEOUT" in lines
    assert f'runners.acp.command = "x"  # {user_file()}:runners.acp.command' in lines
    assert 'api_key = "********"  # GOFER_API_KEY' in lines
    assert "idle_timeout = none  # default" in lines
    assert not any("hunter2" in line for line in lines)
    text = invoke("config", "--json").stdout
    assert "hunter2" not in text
    told = json.loads(text)
    assert told["files"] == [f"{here}/pyproject.toml", str(user_file())]
    assert told["values"]["timeout"] == 7
    assert told["origins"]["timeout"] == "GOFER_TIMEOUT"


def test_config_says_where_ones_own_settings_would_be(here: Path) -> None:
    assert f"would be in: {user_file()}" in invoke("config").stdout


@pytest.mark.parametrize("path", [None, ".", "gofer.toml", "sub"])
def test_trust_and_untrust(here: Path, path: str | None) -> None:
    (here / "sub").mkdir()
    (here / "gofer.toml").write_text(
        "base_url = 'http://me:hunter2@host.test'\nmodel = 'm'\nmax_depth = 3\n"
    )
    args = [] if path is None else [path]
    assert invoke("config").exit_code == 2
    result = invoke("config", "trust", *args)
    assert result.exit_code == 0
    assert result.stdout == (
        f"trusted as it is now: {here}/gofer.toml\n"
        '  base_url = "http://********@host.test"\n'
        "  max_depth = 3\n"
    )
    assert invoke("config").exit_code == 0
    assert "no longer trusted" in invoke("config", "untrust", *args).stdout
    assert invoke("config").exit_code == 2
    assert "was not trusted" in invoke("config", "untrust", *args).stdout


def test_nothing_to_trust(here: Path) -> None:
    for args in ([], ["."]):
        result = invoke("config", "trust", *args)
        assert result.exit_code == 2
        assert "no project with settings" in result.output
    (here / "gofer.toml").write_text("model = 'm'")
    assert "sets nothing that needs trust" in invoke("config", "trust").stdout
    (here / "pyproject.toml").write_text("[project]\nname = 'gofer'")
    assert "no table [tool.gofer]" in invoke("config", "trust", "pyproject.toml").output
    assert "no such file" in invoke("config", "trust", "other.toml").output


def test_a_wrong_file_is_not_trusted(here: Path) -> None:
    (here / "gofer.toml").write_text("max_dept = 3")
    result = invoke("config", "trust")
    assert result.exit_code == 2
    assert "did you mean max_depth?" in result.output


def test_a_file_that_is_gone_can_lose_its_trust(here: Path) -> None:
    (here / "gofer.toml").write_text("max_depth = 3")
    invoke("config", "trust")
    (here / "gofer.toml").unlink()
    assert "no longer trusted" in invoke("config", "untrust", "gofer.toml").stdout


@pytest.mark.parametrize(
    ("agent", "said"), [("nope", "is unsupported"), ("goose", "not installed")]
)
def test_an_agent_that_cannot_be_used_is_a_start_that_failed(
    here: Path, monkeypatch: pytest.MonkeyPatch, agent: str, said: str
) -> None:
    monkeypatch.setenv("PATH", str(here))
    done = gofer("run", "--agent", agent, "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_plugin_prints_is_no_part_of_the_result(site: Path, here: Path) -> None:
    done = gofer("run", "--runner", "fake", "--json", "print")
    assert json.loads(done.stdout)["summary"] == "printed"
    assert "NOISE" in done.stderr


def test_what_others_leave_to_the_interpreters_end_is_done_there(site: Path, here: Path) -> None:
    assert gofer("run", "--runner", "fake", "keep").stdout.startswith("tmp")
    assert [*here.iterdir()] == []


FROZEN = """
import atexit, gc
from gofer.__main__ import main

atexit.register(lambda: print("frozen" if gc.get_freeze_count() else "not frozen"))
main()
"""


def test_only_where_others_have_left_nothing_is_the_end_without_a_search(
    site: Path, scripted: None
) -> None:
    assert program(FROZEN, "run", "--agent", "mine", "x").stdout == "hello\nfrozen\n"
    assert program(FROZEN, "run", "--runner", "fake", "say x").stdout == "x\nnot frozen\n"
