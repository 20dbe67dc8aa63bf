"""Reading metadata: what is broken is recorded, and everything else is found."""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import Host, PluginError, PluginInfo, PluginNotSupportedError, SubagentSpec
from gofer._installed import _parse, normal, read

from .sites import PLUGIN, Site, info, marks

pytestmark = pytest.mark.anyio

GOOD = "[gofer.plugins]\nhelper = fake_acme_helper:Plugin\n"


def package(host: Host, name: str = "acme") -> PluginInfo:
    """Return what the Host knows of a package as a whole."""
    [found] = [i for i in host.plugins if i.name == name and not i.group]
    return found


# Broken metadata


@pytest.mark.parametrize("metadata", [None, b"", b"Name: \xff\xfe\n", b"\n\nName: other\n"])
async def test_a_package_without_its_name_is_called_after_its_folder(
    site: Site, metadata: bytes | None
) -> None:
    site.install("acme", "helper")
    site.install("zeta", "other")
    file = site.path / "acme-1.5.dist-info" / "METADATA"
    if metadata is None:
        file.unlink()
    else:
        file.write_bytes(metadata)
    async with Host(strict=True) as host:
        assert await marks(host) == ["acme:helper", "zeta:other"]
        assert (info(host, "helper").version, info(host, "helper").error) == ("1.5", None)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (b"\xff\xfe[x]", "it is no UTF-8 text (byte 0xff)"),
        (GOOD.encode("utf-16"), "it is no UTF-8 text"),
        (b"[gofer.plugins]\nno equals sign\n", "the line 'no equals sign' in it is no entry point"),
        (b"[console_scripts]\nno equals sign\n", "the line 'no equals sign'"),
    ],
)
async def test_entry_points_that_cannot_be_read_are_recorded_and_the_others_go_on(
    site: Site, points: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.metadata("acme", points)
    site.install("zeta", "other")
    with caplog.at_level(logging.WARNING, "gofer"):
        async with Host() as host:
            assert await marks(host) == ["zeta:other"]
            found = package(host)
            assert (found.status, found.distribution, found.version) == ("failed", "acme", "1.5")
            assert str(found.error).startswith(f"its entry_points.txt cannot be read: {why}")
            assert "Reinstall or uninstall acme" in str(found.remedy)
            assert "GOFER_DISABLE=acme" in str(found.remedy)
            with pytest.raises(PluginNotSupportedError, match="acme cannot be read, see gofer pl"):
                await host.run(SubagentSpec(task="t", runner="far"))
    [record] = [r for r in caplog.records if r.name == "gofer"]
    assert str(found.error) in record.getMessage()
    with pytest.raises(PluginError, match="package 'acme': its entry_points"):
        async with Host(strict=True):
            pytest.fail("it must not open")
    for left_out in ({"disable": ["acme"]}, {"disable": ["Acme:acme"]}, {"allow": ["other"]}):
        async with Host(strict=True, config=left_out) as host:
            assert package(host).status == "disabled"
    with pytest.raises(PluginError, match="'acme'"):
        async with Host(strict=True, config={"allow": ["acme:helper"]}):
            pytest.fail("it must not open")


async def test_a_bad_line_does_not_hide_the_good_ones(site: Site) -> None:
    site.install("acme", "helper")
    site.metadata("acme", "[console_scripts]\nno equals sign\n")
    with pytest.raises((TypeError, ValueError)):
        entry_points()  # as everybody else reads them
    async with Host() as host:
        assert await marks(host) == ["acme:helper"]
        assert package(host).status == "failed"


async def test_a_folder_where_the_entry_points_should_be(site: Site) -> None:
    folder = site.install("acme", "helper")
    (folder / "entry_points.txt").unlink()
    (folder / "entry_points.txt").mkdir()
    async with Host() as host:
        assert "Is a directory" in str(package(host).error)


async def test_an_install_that_left_two_folders(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("acme", "helper", version="1.4")
    site.install("acme", "helper", version="1.5")
    site.metadata("acme", "[gofer.plugins]\nold = fake_acme_old:Plugin\n", version="1.4")
    async with Host() as host:
        assert await marks(host) == ["acme:helper"]
        found = package(host)
        assert "installed twice" in str(found.error)
        assert "acme-1.4.dist-info and acme-1.5.dist-info" in str(found.error)
        assert "Uninstall acme until nothing of it is left" in str(found.remedy)
        helpers = [i for i in host.plugins if i.name == "helper"]
        assert [(i.status, i.version) for i in helpers] == [("loaded", None)]
        assert info(host, "old").status == "failed"
    assert len(caplog.records) == 2


async def test_two_folders_that_disagree(site: Site) -> None:
    site.install("acme", "helper", version="1.4")
    site.metadata("acme", "[gofer.plugins]\nhelper = fake_acme_new:Plugin\n", version="1.5")
    async with Host() as host:
        assert await marks(host) == []
        found = [i for i in host.plugins if i.name == "helper"]
        assert {i.status for i in found} == {"set aside"}
        assert "twice, for fake_acme_helper:Plugin and fake_acme_new:Plugin" in str(found[0].error)


async def test_two_folders_of_a_package_that_is_not_for_gofer(site: Site) -> None:
    for version in ("1", "2"):
        site.metadata("acme", "[console_scripts]\nx = y:z\n", version=version)
    async with Host(strict=True) as host:
        assert [i for i in host.plugins if i.distribution == "acme"] == []


async def test_one_package_on_two_paths_counts_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme", "helper")
    copy = Site(tmp_path / "copy")
    copy.path.mkdir()
    copy.install("acme", "helper", version="1.4")
    monkeypatch.syspath_prepend(str(copy.path))
    async with Host(strict=True) as host:
        assert info(host, "helper").status == "loaded"
        assert info(host, "helper").version == "1.4"


async def test_a_folder_that_is_on_the_path_twice_counts_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme", "helper")
    monkeypatch.syspath_prepend(str(site.path))
    assert sys.path.count(str(site.path)) == 2
    async with Host(strict=True) as host:
        assert await marks(host) == ["acme:helper"]
        assert info(host, "helper").version == "1.5"


async def test_one_entry_point_written_twice_counts_once(site: Site) -> None:
    site.install("acme", "helper")
    site.install("acme", "helper")
    async with Host(strict=True) as host:
        assert await marks(host) == ["acme:helper"]


async def test_a_package_that_calls_itself_gofer_is_no_built_in(site: Site) -> None:
    folder = site.install("acme", "delegation")
    (folder / "METADATA").write_text("Name: gofer\nVersion: 0\n")
    async with Host() as host:
        assert {i.status for i in host.plugins if i.name == "delegation"} == {"loaded", "set aside"}
        assert await marks(host) == []


async def test_an_import_hook_that_raises_hides_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hook:
        def find_spec(self, *args: object) -> None:
            return None

        def find_distributions(self, *args: object) -> Any:
            raise RuntimeError("half an editable install")

    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    site.install("acme", "helper")
    async with Host(strict=True) as host:
        assert await marks(host) == ["acme:helper"]


# Other ways to be installed


async def test_a_package_in_a_zip_file(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme", "helper")
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in site.path.rglob("*"):
            if path.is_file():
                file.write(path, path.relative_to(site.path))
    shutil.rmtree(site.path)
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.syspath_prepend(str(archive))
    importlib.invalidate_caches()
    async with Host(strict=True) as host:
        assert await marks(host) == ["acme:helper"]
        assert info(host, "helper").version == "1.5"


async def test_a_source_folder_with_an_egg_info(site: Site) -> None:
    site.module("fake_acme_helper", PLUGIN.replace("{label}", "from source"))
    folder = site.path / "acme.egg-info"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.0.dev1\n")
    (folder / "entry_points.txt").write_text(GOOD)
    importlib.invalidate_caches()
    async with Host(strict=True) as host:
        assert await marks(host) == ["from source"]
        assert info(host, "helper").version == "2.0.dev1"


# The same as importlib.metadata, where that can read

WORDS = st.text(st.sampled_from("ab.:[]= #\n\t"), max_size=40)
SECTIONS = ["[gofer.plugins]", "[gofer.runners]", "[other]"]
LINES = st.lists(
    st.sampled_from([*SECTIONS, "a = b:c", "a=b : c [x]", "", "# c = d", " x =y ", "alone"]),
    max_size=12,
)


@given(st.one_of(WORDS, LINES.map("\n".join)))
def test_entry_points_are_read_as_everybody_reads_them(text: str) -> None:
    from importlib.metadata import EntryPoints

    entries, lost = _parse(text, {"gofer.plugins", "gofer.runners", "a"})
    try:
        theirs = EntryPoints._from_text(text)  # type: ignore[attr-defined]
        expected = {
            (point.group, point.name, point.value): None
            for point in theirs
            if point.group in ("gofer.plugins", "gofer.runners", "a")
        }
    except Exception:
        assert lost is not None
    else:
        assert lost is None
        assert entries == expected


@pytest.mark.parametrize("name", ["Acme_Tools", "acme-tools", "acme.tools", "ACME--tools"])
def test_names_are_compared_as_indexes_do(name: str) -> None:
    assert normal(name) == "acme-tools"


def test_what_is_installed_here_is_found_as_it_is_by_others() -> None:
    declared, _ = read(("gofer.runners", "pytest11"))
    for group in ("gofer.runners", "pytest11"):
        theirs = {(point.name, point.value) for point in entry_points(group=group)}
        assert {(one.name, one.value) for one in declared if one.group == group} == theirs


# A fresh interpreter: pydantic reads the same files when the first model is built


def fresh(site: Site, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": str(site.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


FIRST_USES = [
    "import gofer; gofer.SubagentSpec(task='x')",
    "import gofer; gofer.load_config()",
    "from gofer.testing import ScriptedRunner\nimport gofer\n"
    "result = gofer.run('x', plugins=[ScriptedRunner('done')], runner='scripted')\n"
    "assert result.summary == 'done', result",
]


@pytest.mark.parametrize("code", FIRST_USES)
@pytest.mark.parametrize("points", [b"\xff\xfe[x]", b"[a]\nno equals sign\n"])
def test_unreadable_entry_points_harm_no_model_of_gofers(
    site: Site, points: bytes, code: str
) -> None:
    site.metadata("acme", points)
    plain = fresh(site, "import pydantic\nclass Model(pydantic.BaseModel): pass")
    assert plain.returncode == 1  # what gofer has to survive
    done = fresh(site, code)
    assert done.returncode == 0, done.stderr
    assert "pydantic" not in done.stderr


def test_a_plugin_of_pydantics_that_raises_is_told_of_and_harms_no_model(site: Site) -> None:
    site.metadata("acme", "[pydantic]\nacme = fake_pydantic_plugin:Plugin\n")
    site.module("fake_pydantic_plugin", "raise RuntimeError('no licence')")
    done = fresh(site, FIRST_USES[0])
    assert done.returncode == 0, done.stderr
    assert "pydantic goes on without its own plugins" in done.stderr
    assert "no licence" in done.stderr


def test_the_list_names_a_package_that_cannot_be_read(site: Site) -> None:
    site.metadata("acme", b"\xff")
    code = "from gofer.cli import main; import sys; sys.argv = ['gofer', *{!r}]; main()"
    done = fresh(site, code.format(["plugins", "--no-load", "--json"]))
    [row] = [row for row in json.loads(done.stdout) if row["distribution"] == "acme"]
    assert (row["kind"], row["status"], done.stderr) == ("package", "failed", "")
    assert fresh(site, code.format(["plugins", "--no-load", "--strict"])).returncode == 1
