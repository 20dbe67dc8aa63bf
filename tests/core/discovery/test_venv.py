"""Packages that pip installs into a real environment, and takes out of it again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from .sites import PLUGIN, RUNNER


class Environment:
    """A virtual environment with pip, in which this gofer can be imported."""

    def __init__(self, path: Path) -> None:
        venv.create(path, with_pip=True)
        scripts = "Scripts" if os.name == "nt" else "bin"
        self.python = path / scripts / "python"
        [self.site] = path.rglob("site-packages")
        # What is imported here: gofer as it is installed, and what it needs.
        here = [entry for entry in sys.path if entry and Path(entry).is_dir()]
        (self.site / "_here.pth").write_text("\n".join(here) + "\n", encoding="utf-8")
        self.path = path
        self.cwd = path / "work"
        self.cwd.mkdir()

    def run(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *args], cwd=self.cwd, env=os.environ | variables,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def pip(self, *args: str) -> None:
        done = self.run("-m", "pip", "--disable-pip-version-check", *args)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, *args: str) -> None:
        self.pip("install", "--no-deps", "--no-index", "--no-build-isolation", *args)

    def uninstall(self, *names: str) -> None:
        self.pip("uninstall", "--yes", *names)

    def gofer(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "gofer", *args, **variables)

    def listed(self, *args: str) -> dict[str, dict[str, Any]]:
        """Return what ``gofer plugins`` tells of third parties, by name."""
        own = "acp,internal,llama-server,delegation,subagent_call,demo"  # for they take their time
        done = self.gofer("plugins", "--json", *args, GOFER_DISABLE=own)
        assert done.returncode == 0, done.stderr
        return {r["name"]: r for r in json.loads(done.stdout) if r["distribution"] != "gofer"}


def wheel(folder: Path, name: str, modules: dict[str, str], points: str) -> Path:
    """Write a wheel, as a build tool does."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {f"{module.replace('.', '/')}.py": dedent(text) for module, text in modules.items()}
    files |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(file, text)
    return path


def runner(name: str) -> str:
    return dedent(RUNNER).replace("{name}", name).replace("{label}", name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture
def environment(made: Environment, tmp_path: Path) -> Iterator[Environment]:
    """The environment, without what a test has installed when it is over."""
    before = set(made.site.iterdir())
    yield made
    for path in set(made.site.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_runner_from_a_wheel_comes_and_goes(environment: Environment, tmp_path: Path) -> None:
    points = "[gofer.runners]\nfar = acme_far:Plugin\n"
    environment.install(str(wheel(tmp_path, "acme_far", {"acme_far": runner("far")}, points)))
    row = environment.listed()["far"]
    assert (row["status"], row["kind"], row["distribution"]) == ("loaded", "runner", "acme_far")
    done = environment.gofer("run", "--runner", "far", "hello")
    assert (done.returncode, done.stdout) == (0, "by far\n")
    environment.uninstall("acme-far")
    assert environment.listed() == {}
    done = environment.gofer("run", "--runner", "far", "hello")
    assert done.returncode == 2
    assert "there is no runner 'far'; installed: " in done.stderr


HOST = """
    import sys

    import anyio
    import gofer

    async def main():
        async with gofer.Host() as host:
            print((await host.run(gofer.SubagentSpec(task="t", runner="near"))).summary, flush=True)
            sys.stdin.readline()  # meanwhile the packages are removed
            print((await host.run(gofer.SubagentSpec(task="t", runner="near"))).summary)
            late = await host.run(gofer.SubagentSpec(task="late", runner="near"))
            print(late.exit_ok, late.error)
            try:
                await host.run(gofer.SubagentSpec(task="t", runner="far"))
            except gofer.PluginNotSupportedError as error:
                print(error)
            print({i.name: i.status for i in host.plugins if i.name in ("near", "far")})
        async with gofer.Host() as host:
            print([i.name for i in host.plugins if i.name in ("near", "far")])

    anyio.run(main)
"""


def test_packages_that_are_removed_while_a_host_runs(
    environment: Environment, tmp_path: Path
) -> None:
    near = runner("near").replace(
        "        return",
        "        if spec.task == 'late':\n            import acme_late\n        return",
    )
    for name, modules in (
        ("acme_near", {"acme_near": near, "acme_late": ""}),
        ("acme_far", {"acme_far": runner("far")}),
    ):
        points = f"[gofer.runners]\n{name[5:]} = {name}:Plugin\n"
        environment.install(str(wheel(tmp_path, name, modules, points)))
    command = [environment.python, "-c", dedent(HOST)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=environment.cwd, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "by near\n"
        environment.uninstall("acme-near", "acme-far")
        out, errors = process.communicate("go on\n", timeout=120)
    assert process.returncode == 0, errors
    still, late, gone, states, after = out.splitlines()
    assert still == "by near"
    assert late.startswith("False ")
    assert "No module named 'acme_late'" in late
    assert "runner 'far' cannot be used: loading acme_far:Plugin raised ModuleNotFound" in gone
    assert "the package was removed" in gone
    assert states == "{'far': 'failed', 'near': 'loaded'}"
    assert after == "[]"
    assert errors.count("is set aside") == 1


BACKEND = """
    import pathlib, zipfile

    def build_editable(folder, config_settings=None, metadata_directory=None):
        name = "acme_dev-1.0-0.editable-py3-none-any.whl"
        info = "acme_dev-1.0.dist-info"
        files = {
            "acme_dev.pth": str(pathlib.Path.cwd() / "src"),
            f"{info}/METADATA": "Metadata-Version: 2.1\\nName: acme_dev\\nVersion: 1.0\\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
            f"{info}/entry_points.txt": "[gofer.runners]\\ndev = acme_dev:Plugin\\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{file},,\\n" for file in files)
        with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
        return name

    build_wheel = build_editable
"""


def test_an_editable_install_and_its_source_that_goes(
    environment: Environment, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "backend.py").write_text(dedent(BACKEND))
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "acme_dev"\nversion = "1.0"\n'
    )
    source = project / "src" / "acme_dev.py"
    source.write_text(runner("dev"))
    environment.install("-e", str(project))
    assert environment.gofer("run", "--runner", "dev", "x").stdout == "by dev\n"
    source.write_text(runner("dev").replace("by dev", "changed"))
    assert environment.gofer("run", "--runner", "dev", "x").stdout == "changed\n"
    shutil.rmtree(project)
    row = environment.listed()["dev"]
    assert row["status"] == "failed"
    assert "No module named 'acme_dev'" in row["error"]
    assert "removed, moved" in row["remedy"]
    assert "uninstall acme_dev" in row["remedy"]
    environment.uninstall("acme_dev")
    assert environment.listed() == {}


def test_one_namespace_of_two_wheels(environment: Environment, tmp_path: Path) -> None:
    for name in ("one", "two"):
        module = {f"acme_space.{name}": dedent(PLUGIN).replace("{label}", name)}
        points = f"[gofer.plugins]\n{name} = acme_space.{name}:Plugin\n"
        environment.install(str(wheel(tmp_path, f"acme_{name}", module, points)))
    rows = environment.listed()
    assert {name: row["status"] for name, row in rows.items()} == {"one": "loaded", "two": "loaded"}
    environment.uninstall("acme_one")
    assert {name: row["status"] for name, row in environment.listed().items()} == {"two": "loaded"}


def test_a_package_that_ends_the_interpreter_can_be_found_and_left_out(
    environment: Environment, tmp_path: Path
) -> None:
    points = "[gofer.plugins]\nbomb = acme_bomb:Plugin\n[gofer.commands]\nbomb = acme_bomb:app\n"
    bomb = {"acme_bomb": "import os\nos._exit(5)"}
    environment.install(str(wheel(tmp_path, "acme_bomb", bomb, points)))
    points = "[gofer.runners]\nfar = acme_far:Plugin\n"
    environment.install(str(wheel(tmp_path, "acme_far", {"acme_far": runner("far")}, points)))
    # No Host survives it, and that is the point of the list.
    assert environment.gofer("run", "--runner", "far", "x").returncode == 5
    assert environment.gofer("--help").returncode == 0
    rows = environment.listed()
    assert rows["far"]["status"] == "loaded"
    assert "ends the interpreter: it exited with code 5" in rows["bomb"]["error"]
    assert "uninstall acme_bomb" in rows["bomb"]["remedy"]
    done = environment.gofer("run", "--runner", "far", "x", GOFER_DISABLE="bomb")
    assert (done.returncode, done.stdout) == (0, "by far\n")
