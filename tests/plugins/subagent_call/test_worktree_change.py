"""A child makes a real change in a real worktree: edit, run a test, fix, report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from gofer import Host, Message, Request, ToolCall, ToolResult
from gofer.testing import ScriptedModel
from gofer_plugins.delegation import SubagentPlugin
from gofer_plugins.subagent_call import SubagentCallPlugin
from gofer_runners.internal import InternalRunner

pytestmark = pytest.mark.anyio

CODE = "def mean(values):\n    return sum(values) / 2\n"
TEST = "from stats import mean\n\nassert mean([1, 2, 3]) == 2\nassert mean([]) == 0\n"


def git(cwd: Path, *args: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *args],
        cwd=cwd, check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    path = tmp_path / "repo"
    path.mkdir()
    (path / "stats.py").write_text(CODE)
    (path / "test_stats.py").write_text(TEST)
    (path / "README").write_text("Numbers.\n")
    git(path, "init", "-q", "-b", "main")
    git(path, "add", ".")
    git(path, "commit", "-qm", "1")
    return path


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"{name}-{len(arguments)}", name=name, arguments=arguments)


def last(request: Request) -> ToolResult:
    block = request.messages[-1].content[0]
    assert isinstance(block, ToolResult)
    return block


def child_model() -> ScriptedModel:
    """Return what works as a developer would, and looks at what comes back."""
    run_test = call("run_shell", command=f"{sys.executable} -B test_stats.py")

    def saw_the_code(request: Request) -> None:
        assert last(request).output == CODE

    def saw_the_failure(request: Request) -> None:
        assert last(request).is_error
        assert "ZeroDivisionError" in last(request).output
        assert "[exit code 1]" in last(request).output

    def saw_the_success(request: Request) -> None:
        assert last(request).output == "[exit code 0, no output]"

    return ScriptedModel(
        [
            ["I look first.", call("search_files", pattern="def mean"),
             call("read_file", path="stats.py")],
            [saw_the_code, call("edit_file", path="stats.py", old="/ 2", new="/ len(values)")],
            [run_test],
            [saw_the_failure, call("edit_file", path="stats.py", old="    return",
                                   new="    if not values:\n        return 0\n    return")],
            [run_test],
            [saw_the_success, call("write_file", path="docs/changes.md", content="mean is fixed\n"),
             call("run_shell", command="git rm -q README && git add -A && "
                  "git -c user.name=C -c user.email=c@d.e commit -qm fixed && touch scratch.txt")],
            "mean() divided by 2; it divides by the count now, and gives 0 for nothing. Tested.",
        ]
    )  # fmt: skip


async def test_a_change_is_made_and_its_files_are_named(repo: Path, tmp_path: Path) -> None:
    child = child_model()
    tree = tmp_path / "tree"
    parent = ScriptedModel(
        [
            [call("spawn_subagent", task="Fix mean().",
                  worktree={"path": str(tree), "branch": "fix"})],
            [call("collect_subagent", subagent_id="sub-0")],
            "The child fixed it.",
        ]
    )  # fmt: skip
    before = git(repo, "rev-parse", "HEAD")
    plugins = [SubagentPlugin, SubagentCallPlugin, InternalRunner(child)]
    conversation = [Message("user", "Have mean() fixed.")]
    with anyio.fail_after(60):
        async with Host(plugins, discover=False, cwd=repo) as host:
            for _ in range(3):
                async with host.stream(Request(messages=conversation), parent) as stream:
                    async for _ in stream:
                        pass
                conversation += stream.response.messages
            result = await host.plugin("delegation").collect("sub-0")

    assert conversation[-1].text == "The child fixed it."
    spawned, collected = (
        block for message in conversation for block in message.content
        if isinstance(block, ToolResult)
    )  # fmt: skip
    assert spawned.output == "sub-0"
    assert collected.output.startswith("mean() divided by 2;")
    assert not collected.is_error

    assert result.exit_ok
    assert result.worktree_path == str(tree)
    assert result.worktree is not None
    assert result.worktree.branch == "fix"
    assert result.worktree.base_commit == before
    assert sorted(result.worktree.changed_files) == [
        "README", "docs/changes.md", "scratch.txt", "stats.py",
    ]  # fmt: skip
    # It really works there, and here nothing has changed.
    done = await anyio.run_process([sys.executable, "-B", "test_stats.py"], cwd=tree)
    assert done.returncode == 0
    assert (repo / "stats.py").read_text() == CODE
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "rev-parse", "main") == before
