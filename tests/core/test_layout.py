"""The arrows between the parts of the distribution, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gofer
from gofer.testing import fake_agent

ROOT = Path(__file__).parents[2]
SOURCES = {
    "gofer": ROOT / "core" / "gofer",
    "gofer_runners": ROOT / "runners" / "gofer_runners",
    "gofer_plugins": ROOT / "plugins" / "gofer_plugins",
}
OURS = frozenset(SOURCES)
HEAVY = ("mcp", "xllamacpp", "typer", "rich", "httpx", "click")


def files(package: str) -> list[Path]:
    found = sorted(SOURCES[package].rglob("*.py"))
    assert found
    return found


def module_of(path: Path, package: str) -> str:
    relative = path.relative_to(SOURCES[package].parent).with_suffix("")
    return ".".join(relative.parts)


def imports(path: Path, package: str) -> Iterator[tuple[str, str | None]]:
    """Yield each module that *path* imports, absolutely, and the name taken from it."""
    parts = module_of(path, package).split(".")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # For a module and for a package's __init__ alike, one level is the folder it is in.
            base = [] if node.level == 0 else parts[: len(parts) - node.level]
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def part(module: str) -> str:
    """Return which part a module belongs to: one runner or plugin, or a whole package."""
    names = module.split(".")
    return ".".join(names[:2]) if names[0] in ("gofer_runners", "gofer_plugins") else names[0]


def test_imports_are_read_as_python_reads_them() -> None:
    path = SOURCES["gofer"] / "host.py"
    assert ("gofer.errors", "GoferError") in set(imports(path, "gofer"))
    assert ("anyio", None) in set(imports(path, "gofer"))
    path = SOURCES["gofer"] / "__init__.py"
    assert ("gofer.host", "Host") in set(imports(path, "gofer"))
    assert part("gofer_runners.acp.client") == "gofer_runners.acp"
    assert part("gofer.host") == "gofer"


def test_the_core_imports_neither_runners_nor_plugins() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in files("gofer")
        for module, _ in imports(path, "gofer")
        if module.split(".")[0] in OURS - {"gofer"}
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["gofer_runners", "gofer_plugins"])
def test_runners_and_plugins_import_public_names_only_and_never_each_other(package: str) -> None:
    wrong = []
    for path in files(package):
        mine = part(module_of(path, package))
        for module, name in imports(path, package):
            if module.split(".")[0] not in OURS or part(module) == mine:
                continue
            if part(module) != "gofer":
                wrong.append(f"{path.relative_to(ROOT)}: {module} is another's")
                continue
            names = module.split(".")[1:]
            if any(name.startswith("_") for name in names):
                wrong.append(f"{path.relative_to(ROOT)}: {module} is private")
            elif name is not None:
                exported = importlib.import_module(module).__all__
                is_module = (SOURCES["gofer"].parent / Path(*module.split("."), name)).with_suffix(
                    ".py"
                )
                if name not in exported and not (is_module.exists() and name[0] != "_"):
                    wrong.append(f"{path.relative_to(ROOT)}: {module} does not export {name}")
    assert wrong == []


def test_runners_and_plugins_reach_into_nothing_private_of_the_core() -> None:
    """``host._registry`` would be as bad as importing it."""
    private = {
        name
        for path in files("gofer")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name in ("Host", "Child", "Run", "TurnStream")
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
        for name in [inner.attr]
        if name.startswith("_")
    }
    assert "_registry" in private
    wrong = []
    for package in ("gofer_runners", "gofer_plugins"):
        for path in files(package):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr in private
                    and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
                    and ast.unparse(node.value).split(".")[-1] in ("host", "run", "child", "turn")
                ):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules, and ours in full, that a fresh interpreter has loaded."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}\nimport json, sys\n"
         "print(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ), cwd=ROOT,
    )  # fmt: skip
    assert answer.stderr == ""
    return set(json.loads(answer.stdout.splitlines()[-1]))


def test_importing_gofer_loads_nothing_heavy() -> None:
    loaded = loaded_by("from gofer import *")
    assert "gofer.host" in loaded
    assert loaded & {*HEAVY, "gofer_runners", "gofer_plugins", "gofer.cli", "trio"} == set()


def test_each_public_name_is_loaded_when_it_is_first_used() -> None:
    assert "pydantic" not in loaded_by("import gofer")
    assert set(gofer._HOME) == set(gofer.__all__)
    assert set(gofer.__all__) <= set(dir(gofer))
    for name in gofer.__all__:
        assert getattr(gofer, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Hots'"):
        gofer.Hots  # noqa: B018


def test_opening_a_host_loads_no_runner() -> None:
    loaded = loaded_by(
        "import anyio, gofer\n"
        "async def main():\n"
        "    async with gofer.Host() as host:\n"
        "        assert [i for i in host.plugins if i.status == 'available']\n"
        "anyio.run(main)"
    )
    assert "gofer_plugins.delegation" in loaded
    assert [name for name in loaded if name.startswith("gofer_runners")] == []
    assert loaded & set(HEAVY) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="supervision is Linux's")
def test_a_run_on_an_agent_loads_nothing_that_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = [sys.executable, fake_agent.__file__, json.dumps({"turns": [[{"say": "hello"}]]})]
    (tmp_path / "gofer").mkdir()
    (tmp_path / "gofer" / "gofer.toml").write_text(f"[agents.fake]\ncommand = {json.dumps(agent)}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    loaded = loaded_by(
        "import sys\n"
        "from gofer.__main__ import main\n"
        "sys.argv = ['gofer', 'run', '--agent', 'fake', 'go']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code"
    )
    assert "gofer_runners.acp" in loaded
    others = {"gofer_runners.internal", "gofer_runners.llama_server"}
    # The supervisor's half of supervision has a process of its own.
    unasked = {
        "gofer.testing",
        "gofer.worktree",
        "gofer._masked",
        "gofer._supervisor",
        "gofer._reaper",
    }
    commands = {name for name in loaded if name.startswith("gofer._cli_")}
    assert commands == {f"gofer._cli_{name}" for name in ("plain", "output", "begin", "child")}
    elsewhere = {"trio", "typer", "rich", "psutil", "httpx", "mcp", "xllamacpp"}
    assert loaded & {*others, *unasked, *elsewhere} == set()
    for module in ("__main__", "cli"):
        assert loaded_by(f"import gofer.{module}") & {"pydantic", "anyio", "gofer.host"} == set()


def public_modules() -> list[str]:
    names = ["gofer"]
    names += [
        info.name
        for info in pkgutil.walk_packages(gofer.__path__, "gofer.")
        if not any(name.startswith("_") for name in info.name.split("."))
    ]
    return names


@pytest.mark.parametrize("module", public_modules())
def test_every_exported_name_is_there(module: str) -> None:
    imported = importlib.import_module(module)
    exported = imported.__all__
    assert len(set(exported)) == len(exported)
    assert [name for name in exported if not hasattr(imported, name)] == []


def test_what_gofer_exports_is_sorted_and_public() -> None:
    assert gofer.__all__ == sorted(gofer.__all__, key=lambda name: (name.islower(), name))
    assert [name for name in gofer.__all__ if name.startswith("_")] == []
