"""``gofer new-runner``: which names it takes, what it writes, and what a failure leaves."""

from __future__ import annotations

import ast
import errno
import keyword
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gofer import GoferError, Host, PluginValidationError, SubagentSpec
from gofer._discovery import RUNNERS, find
from gofer._scaffold import Names, check_name, render, write_package
from gofer.cli import app

NAMES = st.from_regex(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", fullmatch=True).filter(lambda n: len(n) <= 32)
AUTHOR = "Ada Ümlaut <ada@host.test>"


def package_of(name: str) -> dict[str, str]:
    return render(Names(name), author=AUTHOR, year=2026, version="0.1.0")


def snapshot(directory: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def new_runner(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["new-runner", *arguments], catch_exceptions=True)
    if isinstance(result.exception, SystemExit):
        return result
    assert result.exception is None or isinstance(result.exception, GoferError), result.exception
    return result


def test_a_package_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = new_runner("shout")
    assert result.exit_code == 0
    files = snapshot(tmp_path / "gofer-shout")
    assert sorted(name for name, data in files.items() if data is not None) == [
        ".github/workflows/ci.yml",
        ".gitignore",
        "LICENSE",
        "README.md",
        "noxfile.py",
        "pyproject.toml",
        "src/gofer_shout/__init__.py",
        "src/gofer_shout/py.typed",
        "src/gofer_shout/runner.py",
        "tests/test_conformance.py",
    ]
    # The next three commands, and nothing else that looks like one.
    assert [line for line in result.stdout.splitlines() if line.startswith("  ")] == [
        "  cd gofer-shout && python -m pip install -e '.[test]'",
        "  gofer certify shout",
        '  gofer run --runner shout "Hello"',
    ]


@given(NAMES)
def test_every_name_makes_a_package_that_holds_together(name: str) -> None:
    names = Names(name)
    package = package_of(name)
    for path, text in package.items():
        assert "«" not in path + text
        assert "»" not in path + text
        assert text == "" or text.endswith("\n")
        if path.endswith(".py"):
            assert all(len(line) <= 100 for line in text.splitlines()), path
            compile(text, path, "exec", dont_inherit=True)
    project = tomllib.loads(package["pyproject.toml"])["project"]
    assert project["name"] == f"gofer-{name}"
    assert f"gofer certify {name}\n" in package[".github/workflows/ci.yml"]
    assert AUTHOR in package["LICENSE"]

    ((point, value),) = project["entry-points"]["gofer.runners"].items()
    entry = EntryPoint(point, value, "gofer.runners")
    assert point == name
    module = f"src/{entry.module.replace('.', '/')}/__init__.py"
    assert entry.module.isidentifier()
    assert not keyword.iskeyword(entry.module)
    assert entry.module not in sys.stdlib_module_names
    (imported,) = [
        node for node in ast.parse(package[module]).body
        if isinstance(node, ast.ImportFrom) and node.module == "runner"
    ]  # fmt: skip
    assert [alias.name for alias in imported.names] == [entry.attr] == [names.class_]
    runner = package[f"src/{entry.module}/runner.py"]
    assert f"class {entry.attr}(Runner):" in runner
    assert f'name: ClassVar[str] = "{name}"\n' in runner


def test_the_entry_point_resolves_and_the_runner_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path / "made", package_of("scaffold-9-probe"))
    monkeypatch.syspath_prepend(str(tmp_path / "made" / "src"))
    project = tomllib.loads((tmp_path / "made" / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["gofer.runners"].items()
    runner = EntryPoint(name, value, "gofer.runners").load()
    assert runner.name == name == "scaffold-9-probe"

    async def main() -> None:
        with anyio.fail_after(60):
            async with Host([runner], discover=False) as host:
                result = await host.run(SubagentSpec(task="word " * 100, runner=name))
        assert (result.summary, result.exit_ok) == ("word " * 100, True)

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)


@pytest.mark.parametrize("name", ["class", "json", "runner", "test", "a", "x1-2", "a" * 32])
def test_names_that_only_look_as_if_they_clashed(name: str) -> None:
    assert check_name(name).module == f"gofer_{name.replace('-', '_')}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is no name for a runner"),
        ("Shout", "'shout' is one"),
        ("my_runner", "'my-runner' is one"),
        ("my runner", "'my-runner' is one"),
        ("-x-", "'x' is one"),
        ("a--b", "'a-b' is one"),
        ("7zip", "a letter first"),
        ("größe", "is no name"),
        ("a\n", "is no name"),
        ("a/../b", "is no name"),
        ("a" * 33, "32 at most"),
        ("x" * 100_000, "is no name"),
        ("gofer-shout", "leave out 'gofer-'"),
        ("acp", "the runner 'acp' is gofer's own"),
        ("llama-server", "is gofer's own"),
        ("runners", "gofer_runners, which is installed here"),
        ("plugins", "gofer_plugins, which is installed here"),
    ],
)
def test_a_name_that_is_no_good_is_refused_with_what_is(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginValidationError) as caught:
        check_name(name)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert new_runner("--", name).exit_code == 2
    assert snapshot(tmp_path) == {}


def test_every_installed_runner_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "their_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gofer.runners]\ntheirs = nowhere:Gone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginValidationError, match="'theirs' is that of their-dist"):
        check_name("theirs")
    for entry in find(groups=(RUNNERS,)):
        with pytest.raises(PluginValidationError):
            check_name(entry.info.name)


def test_nothing_that_is_there_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    full = tmp_path / "gofer-full"
    full.mkdir()
    (full / "README.md").write_text("mine")
    (tmp_path / "gofer-file").write_text("mine")
    (tmp_path / "gofer-link").symlink_to("nowhere")
    (tmp_path / "gofer-empty").mkdir()
    before = snapshot(tmp_path)
    for name, words in (
        ("full", "'gofer-full' is not empty"),
        ("file", "'gofer-file' is no directory"),
        ("link", "'gofer-link' is no directory"),
    ):
        result = new_runner(name)
        assert result.exit_code == 2
        assert words in result.stderr
    assert snapshot(tmp_path) == before
    assert new_runner("empty").exit_code == 0
    assert new_runner("empty").exit_code == 2


def test_a_directory_of_ones_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = new_runner("shout", "--directory", "deep/a place")
    assert result.exit_code == 0
    assert "cd 'deep/a place' &&" in result.stdout
    assert (tmp_path / "deep" / "a place" / "pyproject.toml").is_file()


def broken_at(number: int, error: BaseException) -> Callable[..., Any]:
    """Return an ``open`` that fails when a file is made for the *number*-th time, half-way."""
    made = 0

    def opened(path: Any, mode: str = "r", **more: Any) -> Any:
        nonlocal made
        file = open(path, mode, **more)  # noqa: SIM115 - as the one that it stands for
        if mode == "x":
            made += 1
            if made == number:
                write = file.write

                def half(text: str) -> None:
                    write(text[: len(text) // 2])
                    file.flush()
                    raise error

                file.write = half
        return file

    return opened


@pytest.mark.parametrize("number", [1, 5, 10])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no room"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", ["nothing", "an empty directory"])
def test_a_failure_leaves_nothing_half_written(
    number: int,
    error: BaseException,
    there: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "deep" / "gofer-shout"
    if there != "nothing":
        target.mkdir(parents=True)
    before = snapshot(tmp_path)
    with monkeypatch.context() as patch:
        import gofer._scaffold._write as module

        patch.setattr(module, "open", broken_at(number, error), raising=False)
        expected = GoferError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected):
            write_package(target, package_of("shout"))
    assert snapshot(tmp_path) == before
    write_package(target, package_of("shout"))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(GoferError, match="cannot be written: Permission denied"):
        write_package(closed / "gofer-shout", package_of("shout"))
    assert snapshot(tmp_path) == {"closed": None}


def test_a_place_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = new_runner("shout", "--directory", str(tmp_path / "file" / "gofer-shout"))
    assert result.exit_code == 1
    assert "cannot be written: Not a directory" in result.stderr
    assert snapshot(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize(
    ("name", "author"),
    [
        ("Ada Lovelace", "Ada Lovelace"),
        ('  "Q"\\ \t«class»\x1b ', '"Q"\\ class'),
        ("", "The authors of gofer-shout"),
    ],
)
def test_the_licence_is_the_users(
    name: str, author: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    subprocess.run(["git", "config", "--global", "user.name", name], check=True)
    target = tmp_path / "made"
    assert new_runner("shout", "--directory", str(target)).exit_code == 0
    assert f" {author}\n" in (target / "LICENSE").read_text(encoding="utf-8")


def test_without_git_the_authors_are_those_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    target = tmp_path / "made"
    assert new_runner("shout", "--directory", str(target)).exit_code == 0
    assert " The authors of gofer-shout\n" in (target / "LICENSE").read_text()
