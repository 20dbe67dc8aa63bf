"""``gofer plugins``: each is loaded in a process of its own; what is wrong is found and named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import psutil
import pytest

from gofer import _probing
from gofer._cli_commands import load_command
from gofer._config_sources import user_file
from gofer._discovery import COMMANDS, GROUPS, Found, find
from gofer.errors import GoferError

from .sites import BROKEN, REASONS, Site

GOFERS = [f"gofer:{entry.info.name}" for entry in find(groups=(*GROUPS, COMMANDS))]
HOOK = """
    from gofer import hookimpl

    class Plugin:
        @hookimpl
        def on_request(self, request): ...
"""
COMMAND = """
    import typer

    app = typer.Typer()

    @app.command()
    def hello() -> None:
        typer.echo("hello")
"""
# What ends the interpreter or never ends, and what is said of it; {file} is the plugin's own.
FATAL = {
    "os._exit": ("import os\nos._exit(0)", "ends the interpreter: it exited with code 0"),
    "exit code": ("import os\nos._exit(7)", "ends the interpreter: it exited with code 7"),
    "killed": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "ends the interpreter: it was ended by SIGKILL",
    ),
    "segmentation fault": (
        "import faulthandler\n\n\nfaulthandler._sigsegv()",
        "ends the interpreter: it was ended by SIGSEGV (it was at {file}, line 4)",
    ),
    "abort": ("import os\nos.abort()", "it was ended by SIGABRT (it was at {file}, line 2)"),
    "hangs": (
        "import threading\n\nthreading.Event().wait()",
        "takes more than 2 seconds (it was at {file}, line 3)",
    ),
    "spins": ("while True:\n    pass", "takes more than 2 seconds (it was at {file}, line "),
    "hangs when made": (
        HOOK + "\n        def __init__(self):\n            import threading\n"
        "            threading.Event().wait()\n",
        "takes more than 2 seconds (it was at {file}, line ",
    ),
    "hangs when bound": (
        HOOK + "\n        def bind(self, host):\n            import threading\n"
        "            threading.Event().wait()\n",
        "takes more than 2 seconds (it was at {file}, line ",
    ),
}


@pytest.fixture
def here(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory; processes find the site too."""
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    # What comes with gofer takes its time, and has tests of its own.
    write_settings(f"disable = {GOFERS}\n")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write_settings(text: str) -> Path:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(text)
    return user_file()


def gofer(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "gofer", *args],
        capture_output=True, text=True, timeout=120, check=False, env=os.environ | variables,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


def listed(*args: str, **variables: str) -> dict[tuple[str, str], dict[str, Any]]:
    done = gofer("plugins", "--json", *args, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    return {(row["distribution"], row["name"]): row for row in rows}


def third_parties(site: Site) -> list[Found]:
    """Return the entries of the site, without what is installed here besides."""
    names = {path.name.partition("-")[0] for path in site.path.glob("*.dist-info")}
    return [entry for entry in find() if str(entry.info.distribution).replace("-", "_") in names]


def probed(site: Site, seconds: float = 2) -> dict[str, Found]:
    entries = third_parties(site)
    anyio.run(_probing.probe, entries, seconds)
    return {entry.info.name: entry for entry in entries}


# On Linux under the supervisor, elsewhere without: both ways are tested here.


@pytest.fixture(
    params=[
        pytest.param(True, marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")),
        False,
    ],
    ids=["supervised", "plain"],
)
def supervised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(_probing, "SUPERVISED", request.param)
    return bool(request.param)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_what_hangs_or_ends_the_interpreter_is_found_and_named(
    site: Site, here: Path, supervised: bool
) -> None:
    for number, (source, _) in enumerate(FATAL.values()):
        site.module(f"fake_fatal_{number}", source)
        site.metadata("acme", f"[gofer.plugins]\np{number} = fake_fatal_{number}:Plugin\n")
    entries = probed(site)
    for number, (_, said) in enumerate(FATAL.values()):
        found = entries[f"p{number}"].info
        assert found.status == "failed"
        assert said.format(file=site.path / f"fake_fatal_{number}.py") in str(found.error)
        assert f"GOFER_DISABLE=p{number}" in str(found.remedy)
    assert "--timeout" in str(entries["p5"].info.remedy)


TIMEOUT = """\
Timeout (0:00:02)!
Thread 0x00007f01 [watcher] (most recent call first):
  File "/x/other.py", line 9 in watch

Thread 0x00007f02 (most recent call first):
  File "{library}/threading.py", line 355 in wait
  File "/x/plugin.py", line 3 in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
"""
CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/x/other.py", line 9 in watch

Current thread 0x00007f02 (most recent call first):
  File "/x/plugin.py", line 4 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/lib/libc.so.6", at +0x1 [0x7f]
"""


@pytest.mark.parametrize(
    ("traceback", "where"),
    [
        (TIMEOUT, " (it was at /x/plugin.py, line 3)"),
        (CRASH, " (it was at /x/plugin.py, line 4)"),
        ("", ""),
        ("Timeout (0:00:02)!\nThread 0x1 (most recent call first):\n  <no Python frame>\n", ""),
    ],
)
def test_where_it_was_is_read_from_a_traceback(traceback: str, where: str) -> None:
    library = sysconfig.get_path("stdlib")
    assert _probing._where(f"noise\n{traceback.format(library=library)}") == where


def test_a_plugin_that_does_not_stop_the_clock_is_found_too(
    site: Site, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probing, "_START_SECONDS", 3.0)
    source = "import faulthandler, threading\nfaulthandler.cancel_dump_traceback_later()\n"
    site.install("acme", "slow", source + "threading.Event().wait()")
    assert "takes more than 2 seconds" in str(probed(site)["slow"].info.error)


@pytest.mark.skipif(sys.platform == "win32", reason="processes of POSIX")
def test_nothing_stays_behind_of_what_a_plugin_starts(
    site: Site, here: Path, supervised: bool
) -> None:
    source = """
        import os, subprocess, sys, threading
        threading.Thread(target=threading.Event().wait).start()
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open("{name}.pid", "w") as file:
            file.write(str(child.pid))
    """
    apart = source.replace('time.sleep(600)"]', 'time.sleep(600)"], start_new_session=True')
    assert apart != source
    site.install("acme", "starts", source + dedent(HOOK).replace("\n", "\n        "))
    site.install("acme", "apart", apart + dedent(HOOK).replace("\n", "\n        "))
    site.install("acme", "dies", source + "\n        os._exit(3)")
    entries = probed(site, 20)
    assert {name: entry.info.status for name, entry in entries.items()} == {
        "apart": "loaded", "dies": "failed", "starts": "loaded",
    }  # fmt: skip
    # Its end is seen at once, though what it started holds its pipes.
    assert "exited with code 3" in str(entries["dies"].info.error)
    for name in entries:
        pid = int((here / f"{name}.pid").read_text())
        if name == "dies" and not supervised:
            os.kill(pid, signal.SIGKILL)  # its parent is gone, and with it whose child it was
            continue
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    assert [p for p in psutil.Process().children(recursive=True) if "-P" in p.cmdline()] == []


@pytest.mark.parametrize("fault", ["import raises", "exits", "no words", "signature", "bind"])
def test_a_fault_is_told_as_a_host_tells_it(site: Site, here: Path, fault: str) -> None:
    site.install("acme", "broken", BROKEN[fault])
    found = probed(site)["broken"].info
    assert found.status == "failed"
    assert REASONS[fault] in str(found.error)
    assert "GOFER_DISABLE" in str(found.remedy)


def test_an_interrupt_of_a_plugins_own_is_a_fault(site: Site, here: Path) -> None:
    site.install("acme", "rude", "raise KeyboardInterrupt")
    assert "KeyboardInterrupt" in str(probed(site)["rude"].info.error)


def test_what_is_installed_is_listed_with_its_hooks(site: Site, here: Path) -> None:
    site.install("acme", "one", HOOK)
    site.install("acme", "far", group="gofer.runners")
    site.install("acme", "greet", COMMAND, group="gofer.commands", target="fake_acme_greet:app")
    site.install("acme", "bad", "app = 3", group="gofer.commands", target="fake_acme_bad:app")
    site.install("acme", "hung", "import time; time.sleep(600)", group="gofer.commands")
    rows = listed("--timeout", "2")
    assert rows["acme", "one"] == {
        "name": "one", "kind": "plugin", "group": "gofer.plugins", "distribution": "acme",
        "version": "1.5", "status": "loaded", "error": None, "remedy": None, "warning": None,
        "hooks": ["on_request"],
    }  # fmt: skip
    assert rows["acme", "far"]["hooks"] == ["run_subagent"]
    assert (rows["acme", "greet"]["kind"], rows["acme", "greet"]["status"]) == ("command", "loaded")
    assert "no typer.Typer" in rows["acme", "bad"]["error"]
    assert "more than 2 seconds" in rows["acme", "hung"]["error"]
    assert rows["gofer", "demo"]["status"] == "disabled"


@pytest.mark.parametrize(
    "source",
    [
        "print('NOISE')",
        "import os; os.write(1, b'NOISE')",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(\"NOISE\")'])",
    ],
    ids=["print", "descriptor", "child"],
)
def test_what_writes_to_stdout_is_named_and_harms_no_output(
    site: Site, here: Path, source: str
) -> None:
    site.install("acme", "loud", f"{source}\n{dedent(HOOK)}")
    row = listed()["acme", "loud"]
    assert row["status"] == "loaded"
    assert "writes to stdout while it is loaded: 'NOISE'" in row["warning"]
    assert "authors of acme" in row["warning"]


def test_an_added_command_offers_no_completion_of_a_program_that_is_not_there(site: Site) -> None:
    site.install("acme", "greet", COMMAND, group="gofer.commands", target="fake_acme_greet:app")
    (entry,) = (e for e in find(groups=(COMMANDS,)) if e.info.name == "greet")
    assert load_command(entry).params == []


def test_much_on_stdout_and_stderr_is_no_matter(site: Site, here: Path) -> None:
    source = "import sys\nfor _ in range(100):\n    print('x' * 99_999)\n"
    site.install("acme", "loud", source + "    sys.stderr.write('y' * 99_999)\n" + dedent(HOOK))
    row = listed()["acme", "loud"]
    assert row["status"] == "loaded"
    assert len(row["warning"]) < 300


def test_a_plugin_that_reads_stdin_gets_its_end(site: Site, here: Path) -> None:
    site.install("acme", "asks", "answer = input()")
    assert "raised EOFError" in str(probed(site)["asks"].info.error)


def test_settings_reach_what_is_loaded(site: Site, here: Path) -> None:
    site.install("acme", "broken", BROKEN["needs settings"].replace("pass", "raise OSError(url)"))
    user = write_settings("plugins.broken.url = 'http://host'\n")
    assert "OSError: http://host" in str(probed(site)["broken"].info.error)
    write_settings("plugins.broken.uri = 'http://host'\n")
    found = probed(site)["broken"].info
    assert found.status == "failed"
    assert f"{user}:plugins.broken: url is missing" in str(found.error)


def test_what_is_out_is_not_loaded(site: Site, here: Path) -> None:
    bomb = "import os\nopen('loaded', 'w')"
    site.install("acme", "off", bomb)
    site.install("acme", "shared", bomb)
    site.install("zeta", "shared", bomb)
    rows = listed(GOFER_DISABLE="off")
    assert rows["acme", "off"]["status"] == "disabled"
    assert rows["acme", "shared"]["status"] == rows["zeta", "shared"]["status"] == "set aside"
    assert list(here.iterdir()) == []


def test_no_load_imports_nothing_of_theirs(site: Site, here: Path) -> None:
    for group in ("plugins", "runners", "commands"):
        bomb = "open('loaded', 'w')"
        site.install("acme", group, bomb, group=f"gofer.{group}")
    rows = listed("--no-load")
    states = {row["status"] for (package, _), row in rows.items() if package == "acme"}
    assert states == {"available"}
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("load", [[], ["--no-load"]], ids=["loaded", "metadata"])
def test_strict_is_an_exit_code(site: Site, here: Path, load: list[str]) -> None:
    site.install("acme", "helper", HOOK)
    site.install("zeta", "helper", HOOK)
    done = gofer("plugins", "--strict", *load)
    assert done.returncode == 1
    assert "set aside" in done.stdout
    left_out = ",".join(["zeta:helper", *GOFERS])
    assert gofer("plugins", "--strict", *load, GOFER_DISABLE=left_out).returncode == 0


def test_strict_mode_of_the_settings_is_no_matter_of_the_list(site: Site, here: Path) -> None:
    site.install("acme", "broken", "import no_such_module_of_ours")
    assert listed(GOFER_STRICT="1")["acme", "broken"]["status"] == "failed"
    assert gofer("plugins", "--timeout", "0").returncode == 2


def test_a_table_for_people(site: Site, here: Path) -> None:
    site.install("acme", "broken", "raise ImportError('no libfoo, ' + 'which is long ' * 9)")
    site.install("acme", "far", group="gofer.runners")
    lines = gofer("plugins").stdout.splitlines()
    assert lines[0].split() == ["name", "kind", "package", "version", "state", "hooks"]
    assert ["far", "runner", "acme", "1.5", "loaded", "run_subagent"] in map(str.split, lines)
    at = next(number for number, line in enumerate(lines) if line.startswith("broken"))
    assert lines[at].split() == ["broken", "plugin", "acme", "1.5", "failed"]
    # In a pipe each text is one line.
    assert lines[at + 1].startswith("    loading fake_acme_broken:Plugin raised ImportError")
    assert lines[at + 2].startswith("    Reinstall or uninstall acme")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of POSIX")
def test_a_terminal_of_80_columns_is_not_overrun(site: Site, here: Path) -> None:
    pty = pytest.importorskip("pty")
    site.install("acme", "broken", "raise ImportError('no libfoo, ' + 'which is long ' * 9)")
    hooks = "\n".join(
        f"    @hookimpl\n    def {hook}(self): ..."
        for hook in ("on_request", "on_stream_chunk", "on_response_complete", "run_subagent")
    )
    site.install("acme", "all", f"from gofer import hookimpl\nclass Plugin:\n{hooks}\n")
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "24"}
    command = [sys.executable, "-m", "gofer", "plugins"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, env=environment):
        os.close(slave)
        screen = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            screen += data
            if not data:
                break
    os.close(master)
    lines = screen.decode().replace("\r\n", "\n").splitlines()
    assert any("broken" in line for line in lines)
    assert "    on_request, on_stream_chunk, on_response_complete" in "\n".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_the_list_ends_all_that_it_started(
    site: Site, here: Path, number: signal.Signals
) -> None:
    os.mkfifo(here / "ready")
    source = "import os, threading\nopen('ready', 'w').write(str(os.getpid()))\n"
    site.install("acme", "hangs", source + "threading.Event().wait()")
    command = [sys.executable, "-m", "gofer", "plugins"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        probe = psutil.Process(int((here / "ready").read_text()))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs([probe], timeout=30)
    assert alive == []


def test_a_process_that_cannot_be_started_is_told(
    site: Site, here: Path, monkeypatch: pytest.MonkeyPatch, supervised: bool
) -> None:
    monkeypatch.setattr(sys, "executable", str(here / "gone"))
    site.install("acme", "fine", HOOK)
    if supervised:
        with pytest.raises(GoferError, match=r"no process can be started.*gone.*--no-load"):
            probed(site)
        return
    found = probed(site)["fine"].info
    assert found.status == "failed"
    assert "no process can be started" in str(found.error)


def test_several_are_loaded_at_once_and_no_more_than_there_are_processors(
    site: Site, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probing, "_processors", lambda: 2)
    # Each waits until another is there: alone it would wait for ever.
    source = """
        import os
        name = "{name}"
        number = int(name[1:])
        partner = f"p{number ^ 1}"
        for fifo in sorted([name, partner]):
            mode = "w" if fifo == name else "r"
            open("fifo-" + fifo, mode).close()
        os.mkdir("at-" + name)
        assert len([d for d in os.listdir() if d.startswith("at-")]) <= 2, os.listdir()
        os.rmdir("at-" + name)
    """
    for number in range(4):
        os.mkfifo(here / f"fifo-p{number}")
        body = dedent(source)
        site.install("acme", f"p{number}", body + dedent(HOOK))
    entries = probed(site, 30)
    assert {name: entry.info.error for name, entry in entries.items()} == dict.fromkeys(entries)
