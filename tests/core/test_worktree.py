"""Worktrees: made, reported on, removed; each with a real git."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gofer import _git, _worktree_attempt
from gofer.errors import PluginNotSupportedError, PluginValidationError
from gofer.subagents import WorktreeConfig
from gofer.worktree import Worktree, Worktrees, worktree_args

pytestmark = pytest.mark.anyio

GIT = shutil.which("git") or "git"

few = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def git_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give git a configuration of its own, with what makes it hard for us."""
    config = tmp_path_factory.mktemp("git") / "config"
    config.write_text(
        "[user]\nname = A\nemail = a@example.com\n[init]\ndefaultBranch = main\n"
        '[protocol "file"]\nallow = always\n[status]\nshowUntrackedFiles = no\nrenames = copies\n'
        "[worktree]\nguessRemote = true\n[branch]\nautoSetupMerge = always\n"
    )
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return config


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "repo")


@pytest.fixture
def worktrees() -> Worktrees:
    return Worktrees()


def git(cwd: Path, *args: str) -> str:
    done = subprocess.run([GIT, *args], cwd=cwd, capture_output=True, check=True)
    return os.fsdecode(done.stdout).strip()


def new_repository(path: Path) -> Path:
    git(path.parent, "init", "--quiet", str(path))
    (path / "a.txt").write_text("a\n")
    (path / "b.txt").write_text("b\n")
    (path / ".gitignore").write_text("*.log\nbuild/\n")
    commit(path, "first")
    return path


def commit(path: Path, message: str) -> str:
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(path, "rev-parse", "HEAD")


def everything(root: Path) -> dict[str, bytes | None]:
    """Return all that is below *root*: names, contents, repositories included."""
    found: dict[str, bytes | None] = {}
    for base, directories, files in os.walk(root):
        found.update((os.path.join(base, name), None) for name in directories)
        found.update((os.path.join(base, name), content(Path(base, name))) for name in files)
    return found


def content(file: Path) -> bytes:
    return os.fsencode(file.readlink()) if file.is_symlink() else file.read_bytes()


def put(directory: Path, name: bytes) -> None:
    """Make an empty file of that name."""
    Path(os.fsdecode(os.fsencode(directory) + b"/" + name)).write_text("")


def fake_git(
    directory: Path, monkeypatch: pytest.MonkeyPatch, script: str, at: str = "worktree add"
) -> None:
    """Put a git in front that runs *script* (in sh) first, where it is asked for *at*."""
    directory.mkdir()
    program = directory / "git"
    program.write_text(
        f'#!/bin/sh\ngit={GIT}\ncase " $* " in *" {at} "*)\n{script}\n;; esac\nexec $git "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


def told(fifo: Path) -> str:
    """Return what a script writes to *fifo*, or "" if nothing comes."""
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ready, _, _ = select.select([descriptor], [], [], 20)
        return os.read(descriptor, 100).decode() if ready else ""
    finally:
        os.close(descriptor)


@contextmanager
def tell(fifo: Path) -> Iterator[None]:
    """Let a script go on that reads a line from *fifo*, now or later; never block."""
    descriptor = os.open(fifo, os.O_RDWR)
    try:
        os.write(descriptor, b"go on\n")
        yield
    finally:
        os.close(descriptor)


# --- arguments ---------------------------------------------------------------------------------


def test_worktree_args_are_those_of_git_worktree_add() -> None:
    assert worktree_args(WorktreeConfig(path="../x")) == ["worktree", "add", "../x"]
    assert worktree_args(WorktreeConfig(path="/p q/", branch="b/c")) == [
        *["worktree", "add", "-b", "b/c", "/p q"]
    ]


@pytest.mark.parametrize(
    ("path", "branch", "schema"),
    [
        ("", None, "worktree.path"),
        ("  ", None, "worktree.path"),
        ("--force", None, "worktree.path"),
        ("-x", "b", "worktree.path"),
        ("a\0b", None, "worktree.path"),
        ("a\nb", None, "worktree.path"),
        ("a\rb", None, "worktree.path"),
        ("~/x", None, "worktree.path"),
        ("~", "b", "worktree.path"),
        ("./-D", None, "worktree.path"),
        ("x/-D/", None, "worktree.path"),
        ("x", "", "worktree.branch"),
        ("x", "-D", "worktree.branch"),
        ("x", "a\nb", "worktree.branch"),
        ("x", "a\0b", "worktree.branch"),
    ],
)
async def test_bad_values_are_refused_before_anything_runs(
    path: str, branch: str | None, schema: str, tmp_path: Path, worktrees: Worktrees
) -> None:
    config = WorktreeConfig(path=path, branch=branch)
    with pytest.raises(PluginValidationError, match="give") as dry:
        worktree_args(config)
    assert dry.value.schema == schema
    with pytest.raises(PluginValidationError) as wet:
        await worktrees.make(config, tmp_path)
    assert str(wet.value) == str(dry.value)
    assert everything(tmp_path) == {}


# --- making ------------------------------------------------------------------------------------


async def test_make_returns_what_was_made(repo: Path, worktrees: Worktrees) -> None:
    base = git(repo, "rev-parse", "HEAD")
    made = await worktrees.make(WorktreeConfig(path="../deep/er/w", branch="topic/x"), repo)
    assert made == Worktree(
        path=repo.parent / "deep/er/w",
        base_commit=base,
        branch="topic/x",
        repository=repo / ".git",
        git_dir=repo / ".git/worktrees/w",
        parent=repo,
    )
    assert (made.path / "a.txt").read_text() == "a\n"
    assert git(made.path, "branch", "--show-current") == "topic/x"
    assert "topic" not in (repo / ".git/config").read_text()


async def test_the_branch_is_named_after_the_path_and_starts_at_head(
    repo: Path, worktrees: Worktrees, tmp_path: Path
) -> None:
    # A remote branch of that name would be taken as the start by git, as it is configured here.
    git(repo, "branch", "w")
    git(repo.parent, "clone", "--quiet", str(repo), "clone")
    clone = tmp_path / "clone"
    head = commit(clone, "second")
    made = await worktrees.make(WorktreeConfig(path="../w/"), clone)
    assert (made.branch, made.base_commit) == ("w", head)


async def test_an_empty_directory_may_be_there(repo: Path, worktrees: Worktrees) -> None:
    path = repo.parent / "w"
    path.mkdir()
    made = await worktrees.make(WorktreeConfig(path=str(path)), repo)
    assert made.path == path
    assert (path / "a.txt").exists()


async def test_missing_files_are_those_of_the_parent_that_are_not_committed(
    repo: Path, worktrees: Worktrees
) -> None:
    inner = await worktrees.make(WorktreeConfig(path="inner"), repo)
    (repo / "a.txt").write_text("changed\n")
    (repo / "b.txt").unlink()
    (repo / "staged").write_text("")
    git(repo, "add", "staged")
    (repo / "new dir").mkdir()
    (repo / 'new dir/"quoted"\nname').write_text("")
    (repo / "x.log").write_text("ignored")
    put(repo, b"caf\xe9")
    git(repo.parent, "init", "--quiet", str(repo / "nested"))
    (repo / "nested/file").write_text("")
    (repo / "sub").mkdir()

    made = await worktrees.make(WorktreeConfig(path="../w"), repo / "sub")
    names = ("a.txt", "caf\\xe9", "nested", 'new dir/"quoted"\nname', "staged")
    assert made.missing_files == names
    assert made.path == repo / "w"
    report = await worktrees.report(made)
    assert report.missing_files == list(names)
    assert report.model_validate_json(report.model_dump_json()) == report
    assert (await worktrees.report(inner)).missing_files == []


def no_repository(repo: Path) -> WorktreeConfig:
    shutil.rmtree(repo / ".git")
    return WorktreeConfig(path="../w")


def no_commit(repo: Path) -> WorktreeConfig:
    git(repo, "checkout", "--quiet", "--orphan", "other")
    return WorktreeConfig(path="../w")


def branch_exists(repo: Path) -> WorktreeConfig:
    git(repo, "branch", "b")
    return WorktreeConfig(path="../w", branch="b")


def branch_of_the_path_exists(repo: Path) -> WorktreeConfig:
    git(repo, "branch", "w")
    return WorktreeConfig(path="../w")


def branch_checked_out_elsewhere(repo: Path) -> WorktreeConfig:
    git(repo, "worktree", "add", "--quiet", "-b", "b", "../other")
    return WorktreeConfig(path="../w", branch="b")


def path_not_empty(repo: Path) -> WorktreeConfig:
    (repo.parent / "w").mkdir()
    (repo.parent / "w/mine").write_text("mine")
    return WorktreeConfig(path="../w", branch="b")


def path_is_a_file(repo: Path) -> WorktreeConfig:
    (repo.parent / "w").write_text("mine")
    return WorktreeConfig(path="../w", branch="b")


def path_is_a_dangling_link(repo: Path) -> WorktreeConfig:
    (repo.parent / "w").symlink_to("nowhere")
    return WorktreeConfig(path="../w", branch="b")


def path_where_nothing_may_be_made(repo: Path) -> WorktreeConfig:
    # Not even by root.
    return WorktreeConfig(path="/sys/kernel/gofer/w", branch="b")


def path_below_a_file(repo: Path) -> WorktreeConfig:
    return WorktreeConfig(path="a.txt/x/w", branch="b")


def path_in_the_repository(repo: Path) -> WorktreeConfig:
    return WorktreeConfig(path=".git/w")


def path_among_the_registrations(repo: Path) -> WorktreeConfig:
    return WorktreeConfig(path="../repo/./.git/worktrees/w", branch="b")


def path_linked_into_the_repository(repo: Path) -> WorktreeConfig:
    (repo.parent / "link").symlink_to(repo / ".git")
    return WorktreeConfig(path="../link/w")


def path_too_long(repo: Path) -> WorktreeConfig:
    return WorktreeConfig(path="../new/" + "x" * 300, branch="b")


def bad_branch_name(repo: Path) -> WorktreeConfig:
    return WorktreeConfig(path="../new/w", branch="a..b")


def bad_branch_name_from_the_path(repo: Path) -> WorktreeConfig:
    return WorktreeConfig(path="../new/a b")


def branch_below_a_branch(repo: Path) -> WorktreeConfig:
    return WorktreeConfig(path="../new/w", branch="main/b")


def stale(repo: Path) -> WorktreeConfig:
    git(repo, "worktree", "add", "--quiet", "-b", "old", "../w")
    shutil.rmtree(repo.parent / "w")
    return WorktreeConfig(path="../w", branch="b")


def stale_and_locked(repo: Path) -> WorktreeConfig:
    config = stale(repo)
    git(repo, "worktree", "lock", "../w")
    return config


def branch_is_locked(repo: Path) -> WorktreeConfig:
    (repo / ".git/refs/heads/b.lock").write_text("")
    return WorktreeConfig(path="../new/w", branch="b")


@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        (no_repository, ["not a git repository", "git init"]),
        (no_commit, ["no commit yet", "commit something"]),
        (branch_exists, ["branch named 'b' already exists", "worktree.branch"]),
        (branch_of_the_path_exists, ["branch named 'w' already exists", "worktree.branch"]),
        (branch_checked_out_elsewhere, ["branch named 'b' already exists", "worktree.branch"]),
        (path_not_empty, ["'../w' already exists", "worktree.path"]),
        (path_is_a_file, ["'../w' already exists", "worktree.path"]),
        (path_is_a_dangling_link, ["'../w' already exists", "worktree.path"]),
        (path_below_a_file, ["Not a directory", "worktree.path"]),
        pytest.param(
            path_where_nothing_may_be_made,
            ["'/sys/kernel/gofer", "worktree.path"],
            marks=pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="Linux's"),
        ),
        (path_in_the_repository, ["'.git/w'", "in the repository's own directory"]),
        (path_among_the_registrations, ["in the repository's own directory"]),
        (path_linked_into_the_repository, ["in the repository's own directory"]),
        (path_too_long, ["File name too long", "worktree.path"]),
        (bad_branch_name, ["'a..b' is not a valid branch name", "worktree.branch"]),
        (bad_branch_name_from_the_path, ["'a b' is not a valid", "worktree.branch"]),
        (branch_below_a_branch, ["cannot lock ref 'refs/heads/main/b'", "worktree.branch"]),
        (stale, ["missing but already registered", "git worktree prune"]),
        (stale_and_locked, ["missing but locked", "git worktree unlock"]),
        (branch_is_locked, ["b.lock': File exists", "holds that lock"]),
    ],
)
async def test_what_cannot_be_made_says_why_and_leaves_nothing(
    arrange: Callable[[Path], WorktreeConfig],
    words: list[str],
    repo: Path,
    worktrees: Worktrees,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_worktree_attempt, "RETRY_SECONDS", (0.0,))
    config = arrange(repo)
    before = everything(repo.parent)
    with pytest.raises(PluginNotSupportedError) as caught:
        await worktrees.make(config, repo)
    for word in [*words, config.branch or config.path]:
        assert word in str(caught.value)
    assert everything(repo.parent) == before


async def test_the_place_must_be_in_a_checkout(repo: Path, worktrees: Worktrees) -> None:
    config = WorktreeConfig(path="w")
    with pytest.raises(PluginNotSupportedError, match="not in its checkout"):
        await worktrees.make(config, repo / ".git")
    with pytest.raises(PluginNotSupportedError, match=r"cannot be run in '.*nowhere'"):
        await worktrees.make(config, repo / "nowhere")


async def test_a_bare_repository_will_do(repo: Path, tmp_path: Path, worktrees: Worktrees) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repo), "bare.git")
    made = await worktrees.make(WorktreeConfig(path="w"), tmp_path / "bare.git")
    assert (made.path, made.parent) == (tmp_path / "bare.git/w", None)
    for own in ("worktrees/x", "refs/heads", "objects/x/y"):
        with pytest.raises(PluginNotSupportedError, match="in the repository's own directory"):
            await worktrees.make(WorktreeConfig(path=own, branch="x"), tmp_path / "bare.git")
    (made.path / "a.txt").write_text("changed")
    assert (await worktrees.report(made)).changed_files == ["a.txt"]
    git(made.path, "checkout", "--quiet", ".")
    await worktrees.remove(made)
    assert not made.path.exists()


async def test_inside_a_linked_worktree_the_repository_is_the_common_one(
    repo: Path, worktrees: Worktrees
) -> None:
    first = await worktrees.make(WorktreeConfig(path="../first"), repo)
    git(first.path, "checkout", "--quiet", "--detach")
    head = commit(first.path, "on nothing but this HEAD")
    second = await worktrees.make(WorktreeConfig(path="../second"), first.path)
    assert second.repository == first.repository
    assert (second.base_commit, second.parent) == (head, first.path)
    await worktrees.remove(second)
    with pytest.raises(PluginNotSupportedError, match="nowhere else"):
        await worktrees.remove(first)


async def test_submodules_are_empty_said_to_be_missing_and_removable(
    repo: Path, worktrees: Worktrees
) -> None:
    library = new_repository(repo.parent / "library")
    git(repo, "submodule", "--quiet", "add", str(library), "lib dir")
    commit(repo, "a submodule")
    git(repo, "config", "submodule.recurse", "true")
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    assert made.missing_files == ("lib dir",)
    assert list((made.path / "lib dir").iterdir()) == []
    await worktrees.remove(made)
    assert not made.path.exists()

    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    git(made.path, "submodule", "--quiet", "update", "--init")
    with pytest.raises(PluginNotSupportedError, match="in submodules: lib dir"):
        await worktrees.remove(made)
    git(made.path, "submodule", "--quiet", "deinit", "--all", "--force")
    with pytest.raises(PluginNotSupportedError, match="in submodules: lib dir"):
        await worktrees.remove(made)  # its commits are in the worktree's own git directory
    assert made.path.exists()


async def test_inside_a_submodule_the_worktree_is_the_submodules(
    repo: Path, worktrees: Worktrees
) -> None:
    library = new_repository(repo.parent / "library")
    git(repo, "submodule", "--quiet", "add", str(library), "lib")
    made = await worktrees.make(WorktreeConfig(path="../../w"), repo / "lib")
    assert made.repository == repo / ".git/modules/lib"
    (made.path / "a.txt").write_text("changed")
    assert (await worktrees.report(made)).changed_files == ["a.txt"]
    git(made.path, "checkout", "--quiet", ".")
    await worktrees.remove(made)
    assert git(repo / "lib", "worktree", "list").count("\n") == 0


async def test_no_hook_runs(repo: Path, tmp_path: Path, worktrees: Worktrees) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ["post-checkout", "post-index-change", "reference-transaction"]:
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\nexit 1\n")
        (hooks / name).chmod(0o755)
    shutil.copytree(hooks, repo / ".git/hooks", dirs_exist_ok=True)
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    git(repo, "config", "core.hooksPath", str(hooks))
    git(repo, "config", "core.fsmonitor", str(hooks / "post-checkout"))
    await worktrees.make(WorktreeConfig(path="../x"), repo)
    await worktrees.report(made)
    await worktrees.remove(made)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("ran-")]


async def test_hooks_of_the_configuration_are_switched_off(
    repo: Path, tmp_path: Path, worktrees: Worktrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repo, "config", "hook.my lint.v=2.event", "post-checkout")
    git(repo, "config", "hook.my lint.v=2.command", "false")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "hook.mine.command")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "false")
    fake_git(
        tmp_path / "bin",
        monkeypatch,
        '$git config --get "hook.my lint.v=2.enabled" >>"$0.log"\n'
        '$git config --get hook.mine.enabled >>"$0.log"',
    )
    await worktrees.make(WorktreeConfig(path="../w"), repo)
    assert (tmp_path / "bin/git.log").read_text() == "false\nfalse\n"


@pytest.mark.parametrize("many_hosts", [False, True], ids=["one-host", "many-hosts"])
async def test_twenty_at_once(many_hosts: bool, repo: Path) -> None:
    shared = Worktrees()
    made: list[Worktree] = []

    async def child(number: int) -> None:
        worktrees = Worktrees() if many_hosts else shared
        worktree = await worktrees.make(WorktreeConfig(path=f"../w{number}"), repo)
        made.append(worktree)
        await worktrees.report(worktree)
        if number % 2:
            await worktrees.remove(worktree)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(child, number)
    assert len({worktree.path for worktree in made}) == 20
    assert git(repo, "worktree", "list").count("\n") == 10
    assert git(repo, "branch", "--format=%(refname:short)").split() == sorted(
        ["main", *(f"w{number}" for number in range(0, 20, 2))]
    )


async def test_two_processes_at_once(repo: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import anyio, pathlib, sys\n"
        "from gofer.subagents import WorktreeConfig\n"
        "from gofer.worktree import Worktrees\n"
        "async def main():\n"
        "    worktrees = Worktrees()\n"
        "    async with anyio.create_task_group() as group:\n"
        "        for n in range(4):\n"
        "            config = WorktreeConfig(path=f'../{sys.argv[1]}{n}')\n"
        "            group.start_soon(worktrees.make, config, pathlib.Path.cwd())\n"
        "anyio.run(main)\n"
    )

    async def other(name: str) -> None:
        await anyio.run_process([sys.executable, str(program), name], cwd=repo, stderr=None)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for name in "xyz":
                group.start_soon(other, name)
    assert git(repo, "worktree", "list").count("\n") == 12


async def test_git_must_be_there_and_run(
    repo: Path, tmp_path: Path, worktrees: Worktrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    with pytest.raises(PluginNotSupportedError, match="not found on PATH"):
        await worktrees.make(WorktreeConfig(path="w"), repo)
    (path / "git").write_text("#!/nonexistent/interpreter\n")
    (path / "git").chmod(0o755)
    with pytest.raises(PluginNotSupportedError, match="cannot be run"):
        await worktrees.make(WorktreeConfig(path="w"), repo)


async def test_variables_of_a_hook_around_us_do_not_lead_astray(
    repo: Path, tmp_path: Path, worktrees: Worktrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_repository(tmp_path / "other")
    before = everything(other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_PREFIX", "x/")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.bare'='true'")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    assert made.repository == repo / ".git"
    assert (await worktrees.report(made)).changed_files == []
    await worktrees.remove(made)
    assert everything(other) == before


@pytest.mark.parametrize("existed", [False, True], ids=["new", "empty-directory"])
async def test_a_late_failure_is_taken_back(
    existed: bool,
    repo: Path,
    tmp_path: Path,
    worktrees: Worktrees,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "deep/er/w"
    if existed:
        path.mkdir(parents=True)
        path.chmod(0o711)
    git(repo, "worktree", "add", "--quiet", "../other/w")
    fake_git(
        tmp_path / "bin",
        monkeypatch,
        '$git "$@" || exit 9; echo "fatal: No space left on device" >&2; exit 128',
    )
    before = everything(tmp_path)
    with pytest.raises(PluginNotSupportedError, match="No space left on device"):
        await worktrees.make(WorktreeConfig(path=str(path), branch="b"), repo)
    assert everything(tmp_path) == before
    assert not existed or path.stat().st_mode & 0o777 == 0o711


async def test_a_git_that_was_killed_before_it_wrote_the_path_is_taken_back(
    repo: Path, worktrees: Worktrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = repo / ".git/worktrees/w"
    fake_git(tmp_path / "bin", monkeypatch, f"mkdir -p {admin}; touch {admin}/locked; kill -9 $$")
    before = everything(tmp_path)
    with pytest.raises(PluginNotSupportedError, match="exit code: -9"):
        await worktrees.make(WorktreeConfig(path="../w"), repo)
    assert everything(tmp_path) == before


async def test_a_branch_that_somebody_makes_at_that_moment_is_theirs(
    repo: Path, worktrees: Worktrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_git(tmp_path / "bin", monkeypatch, "$git branch b; $git branch w main")
    with pytest.raises(PluginNotSupportedError, match="already exists"):
        await worktrees.make(WorktreeConfig(path="../x", branch="b"), repo)
    assert git(repo, "branch", "--format=%(refname:short)").split() == ["b", "main", "w"]


async def test_another_gits_lock_is_waited_for(
    repo: Path, worktrees: Worktrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_worktree_attempt, "RETRY_SECONDS", (0.0, 0.0))
    fake_git(
        tmp_path / "bin",
        monkeypatch,
        'echo >>"$0.log"; if [ $(wc -l <"$0.log") -lt 3 ]; then $git branch w\n'
        'echo "fatal: failed to read .git/worktrees/x/commondir: Success" >&2; exit 128; fi',
    )
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    assert made.branch == "w"
    assert (tmp_path / "bin/git.log").read_text() == "\n" * 3


async def test_a_process_that_git_leaves_behind_holds_nothing_up(
    repo: Path, worktrees: Worktrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end = tmp_path / "begin", tmp_path / "end"
    os.mkfifo(begin)
    os.mkfifo(end)
    fake_git(tmp_path / "bin", monkeypatch, f"(read line <{begin}; echo ended >{end}) &")
    with anyio.fail_after(20):
        await worktrees.make(WorktreeConfig(path="../w"), repo)
        with tell(begin):
            assert await to_thread.run_sync(told, end) == "ended\n"


def blocking_filter(repo: Path, fifo: Path) -> None:
    """Make git's checkout write to *fifo*, once it is at work, and then wait for ever."""
    os.mkfifo(fifo)
    (repo / ".gitattributes").write_text("a.txt filter=slow\n")
    commit(repo, "with a filter")
    git(repo, "config", "filter.slow.smudge", f"echo begun >{fifo}; cat {fifo}")


async def cancelled_at_work(worktrees: Worktrees, repo: Path, fifo: Path) -> None:
    """Begin to make a worktree, and cancel that when *fifo* is written to."""
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            config = WorktreeConfig(path="../deep/w", branch="b")
            group.start_soon(worktrees.make, config, repo)
            assert await to_thread.run_sync(told, fifo) == "begun\n"
            group.cancel_scope.cancel()


async def test_a_cancelled_checkout_is_taken_back(
    repo: Path, worktrees: Worktrees, tmp_path: Path
) -> None:
    blocking_filter(repo, tmp_path / "fifo")
    before = everything_but(tmp_path, "fifo")
    await cancelled_at_work(worktrees, repo, tmp_path / "fifo")
    assert everything_but(tmp_path, "fifo") == before


async def test_a_git_that_does_not_end_is_killed(
    repo: Path, worktrees: Worktrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_git, "TERMINATE_SECONDS", 0.05)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fake_git(
        tmp_path / "bin",
        monkeypatch,
        f'trap "" TERM; $git "$@"; echo begun >{fifo}; while :; do read x <{fifo}; done',
    )
    before = everything_but(tmp_path, "fifo")
    await cancelled_at_work(worktrees, repo, fifo)
    assert everything_but(tmp_path, "fifo") == before


def everything_but(root: Path, name: str) -> dict[str, bytes | None]:
    """Return all that is below *root* but a FIFO, which cannot be read."""
    aside = root.parent / f"{root.name}-{name}"
    (root / name).rename(aside)
    found = everything(root)
    aside.rename(root / name)
    return found


async def test_cancelled_while_it_waits_its_turn(
    repo: Path, worktrees: Worktrees, tmp_path: Path
) -> None:
    before = everything(tmp_path)
    with anyio.fail_after(20):
        async with _git.directory_lock(repo / ".git"):
            with anyio.move_on_after(0.3) as scope:
                await worktrees.make(WorktreeConfig(path="../w"), repo)
    assert scope.cancelled_caught
    assert everything(tmp_path) == before
    await worktrees.make(WorktreeConfig(path="../w"), repo)


# --- reporting ---------------------------------------------------------------------------------


async def test_report_names_all_that_changed(repo: Path, worktrees: Worktrees) -> None:
    for name in ["deleted", "renamed from", "moved"]:
        (repo / name).write_text(name * 50)
    base = commit(repo, "more")
    made = await worktrees.make(WorktreeConfig(path="../w", branch="b"), repo)
    path = made.path
    (path / "committed").write_text("")
    git(path, "mv", "renamed from", "renamed to")
    commit(path, "work")
    (path / "deleted").unlink()
    git(path, "mv", "moved", "moved to")
    (path / "a.txt").write_text("changed")
    (path / "un").mkdir()
    (path / "un/tracked").write_text("")
    (path / "x.log").write_text("ignored")
    (repo / "b.txt").write_text("not the child's")
    (path / ".git").unlink()  # a child can do anything

    report = await worktrees.report(made)
    assert report.changed_files == [
        *["a.txt", "committed", "deleted", "moved", "moved to"],
        *["renamed from", "renamed to", "un/tracked"],
    ]
    assert (report.path, report.base_commit, report.branch) == (str(path), base, "b")


async def test_report_follows_the_branch_that_is_checked_out(
    repo: Path, worktrees: Worktrees
) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    git(made.path, "checkout", "--quiet", "-b", "own")
    (made.path / "new").write_text("")
    commit(made.path, "work")
    report = await worktrees.report(made)
    assert (report.branch, report.changed_files) == ("own", ["new"])
    git(made.path, "checkout", "--quiet", "--detach")
    assert (await worktrees.report(made)).branch is None
    git(made.path, "checkout", "--quiet", "--orphan", "unborn")
    report = await worktrees.report(made)
    assert (report.branch, "a.txt" in report.changed_files) == ("unborn", True)


async def test_report_of_a_worktree_that_is_gone(repo: Path, worktrees: Worktrees) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    shutil.rmtree(made.path)
    with pytest.raises(PluginNotSupportedError, match="check that this directory exists"):
        await worktrees.report(made)


names = st.binary(min_size=1, max_size=40).filter(
    lambda name: (
        not {b"\0"[0], b"/"[0]} & set(name)
        and name not in {b".", b"..", b"a.txt", b"b.txt"}
        and not name.lower().startswith((b".git", b"git~"))
        and not name.endswith(b".log")
        and name != b"build"
        and b"\xe2\x80" not in name  # git strips some of these when it looks for ".git"
    )
)


@given(
    committed=st.sets(names, max_size=4), untracked=st.sets(names, max_size=4), sub=st.booleans()
)
@few
async def test_any_file_name_is_reported(
    committed: set[bytes], untracked: set[bytes], sub: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        worktrees = Worktrees()
        made = await worktrees.make(
            WorktreeConfig(path="../w"), new_repository(Path(directory, "repo"))
        )
        prefix = b"s p/" if sub else b""
        (made.path / os.fsdecode(prefix)).mkdir(exist_ok=True)
        for name in committed:
            put(made.path, prefix + name)
        commit(made.path, "work")
        for name in untracked - committed:
            put(made.path, prefix + name)
        report = await worktrees.report(made)
        expected = {
            (prefix + name).decode("utf-8", "backslashreplace") for name in committed | untracked
        }
        assert set(report.changed_files) == expected
        assert report.model_validate_json(report.model_dump_json()) == report


# --- removing ----------------------------------------------------------------------------------


async def test_remove_takes_files_registration_and_branch(repo: Path, worktrees: Worktrees) -> None:
    before = everything(repo.parent)
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    git(made.path, "config", "branch.w.description", "about it")
    await worktrees.remove(made)
    after = everything(repo.parent)
    assert after.keys() == before.keys()
    assert 'branch "w"' not in (repo / ".git/config").read_text()
    await worktrees.remove(made)  # nothing to do, nothing to complain about


async def test_a_removal_that_has_begun_is_finished_before_it_is_cancelled(
    repo: Path, worktrees: Worktrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fake_git(
        tmp_path / "bin", monkeypatch, f"echo begun >{fifo}; read x <{fifo}", "worktree remove"
    )
    with anyio.fail_after(30), ExitStack() as until_the_end:
        async with anyio.create_task_group() as group:
            group.start_soon(worktrees.remove, made)
            assert await to_thread.run_sync(told, fifo) == "begun\n"
            group.cancel_scope.cancel()
            until_the_end.enter_context(tell(fifo))
    assert not made.path.exists()
    assert git(repo, "branch", "--format=%(refname:short)") == "main"


def modified(path: Path) -> str:
    (path / "a.txt").write_text("changed")
    return "modified: a.txt"


def staged(path: Path) -> str:
    (path / "a.txt").write_text("changed")
    git(path, "add", "a.txt")
    (path / "a.txt").write_text("a\n")
    return "modified: a.txt"


def deleted(path: Path) -> str:
    (path / "a.txt").unlink()
    return "modified: a.txt"


def untracked(path: Path) -> str:
    (path / "new dir").mkdir()
    (path / "new dir/new").write_text("")
    return "untracked: new dir/"


def many_untracked(path: Path) -> str:
    for number in range(25):
        (path / f"n{number:02}").write_text("")
    return "n19, and 5 more"


def ignored(path: Path) -> str:
    (path / "build").mkdir()
    (path / "build/result").write_text("")
    (path / "x.log").write_text("")
    return "ignored: build/, x.log"


def ignored_by_the_repository_only(path: Path) -> str:
    Path(git(path, "rev-parse", "--git-path", "info/exclude")).write_text("secret\n")
    (path / "secret").write_text("")
    return "ignored: secret"


def nested_repository(path: Path) -> str:
    new_repository(path / "nested")
    return "untracked: nested/"


def assumed_unchanged(path: Path) -> str:
    git(path, "update-index", "--assume-unchanged", "a.txt")
    (path / "a.txt").write_text("changed")
    return "hidden from git status: a.txt"


def skipped(path: Path) -> str:
    git(path, "update-index", "--skip-worktree", "a.txt")
    (path / "a.txt").write_text("changed")
    return "hidden from git status: a.txt"


def committed(path: Path) -> str:
    head = commit(path, "work")
    return f"commits that are nowhere else: {head[:7]}"


def committed_on_no_branch(path: Path) -> str:
    git(path, "checkout", "--quiet", "--detach")
    return committed(path)


def merging(path: Path) -> str:
    git(path, "branch", "--quiet", "side")
    git(path, "checkout", "--quiet", "side")
    commit(path, "aside")
    git(path, "checkout", "--quiet", "w")
    git(path, "merge", "--quiet", "--no-ff", "--no-commit", "side")
    return "unfinished: merge"


def locked(path: Path) -> str:
    git(path, "worktree", "lock", "--reason", "on a stick", ".")
    return "locked: on a stick"


def locked_without_a_reason(path: Path) -> str:
    git(path, "worktree", "lock", ".")
    return "locked: no reason given"


def branch_elsewhere(path: Path) -> str:
    git(path, "checkout", "--quiet", "--detach")
    git(path, "worktree", "add", "--quiet", "../else", "w")
    return "branch checked out at: "


LOSSES = [
    *[modified, staged, deleted, untracked, many_untracked, ignored],
    *[ignored_by_the_repository_only, nested_repository, assumed_unchanged, skipped],
    *[committed, committed_on_no_branch, merging, locked, locked_without_a_reason],
    branch_elsewhere,
]


@pytest.mark.parametrize("arrange", LOSSES)
async def test_remove_refuses_to_lose_anything(
    arrange: Callable[[Path], str], repo: Path, worktrees: Worktrees
) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    expected = arrange(made.path)
    before = everything(repo.parent)
    with pytest.raises(PluginNotSupportedError) as caught:
        await worktrees.remove(made)
    assert expected in str(caught.value)
    assert str(made.path) in str(caught.value)
    assert everything(repo.parent) == before


async def test_commits_are_safe_on_a_kept_branch_or_on_another_one(
    repo: Path, worktrees: Worktrees
) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    head = commit(made.path, "work")
    await worktrees.remove(made, delete_branch=False)
    assert not made.path.exists()
    assert git(repo, "rev-parse", "w") == head
    with pytest.raises(PluginNotSupportedError, match=head[:7]):
        await worktrees.remove(made)  # the branch is left, and only it has the commit
    git(repo, "merge", "--quiet", "w")
    await worktrees.remove(made)
    assert git(repo, "branch", "--format=%(refname:short)") == "main"


async def test_a_directory_that_was_deleted_by_hand_is_tidied_up(
    repo: Path, worktrees: Worktrees
) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    shutil.rmtree(made.path)
    await worktrees.remove(made)
    assert not made.git_dir.exists()
    assert git(repo, "branch", "--format=%(refname:short)") == "main"


async def test_a_directory_that_is_no_longer_a_worktree_stays(
    repo: Path, worktrees: Worktrees
) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    git(repo, "worktree", "remove", str(made.path))
    made.path.mkdir()
    with pytest.raises(PluginNotSupportedError, match="no longer a worktree"):
        await worktrees.remove(made)
    assert made.path.exists()


async def test_a_repository_put_in_place_of_the_worktree_stays(
    repo: Path, worktrees: Worktrees
) -> None:
    made = await worktrees.make(WorktreeConfig(path="../w"), repo)
    (made.path / ".git").unlink()
    git(made.path, "init", "--quiet")
    commit(made.path, "elsewhere")
    before = everything(repo.parent)
    with pytest.raises(PluginNotSupportedError):
        await worktrees.remove(made)
    assert everything(repo.parent) == before


STEPS = ["modify", "add", "stray", "ignore", "stage", "commit", "detach", "keep", "reset", "clean"]


@given(steps=st.lists(st.sampled_from(STEPS), max_size=8), delete_branch=st.booleans())
@few
async def test_remove_refuses_exactly_where_something_would_be_lost(
    steps: list[str], delete_branch: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        worktrees = Worktrees()
        repo = new_repository(Path(directory, "repo"))
        made = await worktrees.make(WorktreeConfig(path="../w"), repo)
        dirty: set[str] = set()
        head = branch = kept = 0  # how many commits each is ahead: they are in one line
        detached = False
        for number, step in enumerate(steps):
            match step:
                case "modify":
                    (made.path / "a.txt").write_text(f"{number}")
                    dirty.add("modified")
                case "stray":
                    (made.path / f"new{number}").write_text("")
                    dirty.add("untracked")
                case "ignore":
                    (made.path / f"{number}.log").write_text("")
                    dirty.add("ignored")
                case "add" | "stage":
                    git(made.path, "add", "--all")
                    if "untracked" in dirty:
                        dirty = dirty - {"untracked"} | {"modified"}
                case "commit":
                    commit(made.path, step)
                    dirty &= {"ignored"}
                    head += 1
                    branch = branch if detached else head
                case "detach":
                    git(made.path, "checkout", "--quiet", "--detach")
                    detached = True
                case "keep":
                    git(made.path, "branch", "--force", "kept")
                    kept = head
                case "reset":
                    git(made.path, "reset", "--quiet", "--hard")
                    dirty.discard("modified")
                case "clean":
                    git(made.path, "clean", "--quiet", "-fdx")
                    dirty &= {"modified"}
        tips = [head, branch] if delete_branch else [head]
        safe = [kept] if delete_branch else [kept, branch]
        if max(tips) > max(safe):
            dirty.add("commits that are nowhere else")
        if not dirty:
            await worktrees.remove(made, delete_branch=delete_branch)
            assert not made.path.exists()
            assert ("w" in git(repo, "branch", "--list", "w")) is not delete_branch
            return
        before = everything(Path(directory))
        with pytest.raises(PluginNotSupportedError) as caught:
            await worktrees.remove(made, delete_branch=delete_branch)
        lines = str(caught.value).splitlines()[1:-1]
        assert {line.strip().partition(":")[0] for line in lines} == dirty
        assert everything(Path(directory)) == before
