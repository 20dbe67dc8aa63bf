"""Finding what is installed: each alone, so that a broken package harms no other."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer import (
    ConfigError,
    Finish,
    Host,
    Message,
    PluginError,
    PluginInfo,
    PluginNotSupportedError,
    Request,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
    hookimpl,
)

pytestmark = pytest.mark.anyio

PLUGIN = """
    from gofer import Message, hookimpl

    class Plugin:
        @hookimpl
        def on_request(self, request):
            request.messages.append(Message("system", "{label}"))
"""

RUNNER = """
    from gofer import Runner

    class Plugin(Runner):
        name = "{name}"

        async def run(self, spec, run):
            return run.result("by {label}")
"""

BROKEN = {
    "import raises": "raise ImportError('no libfoo')",
    "exits": "raise SystemExit('not licensed')",
    "syntax": "def broken(:",
    "constructor": "class Plugin:\n    def __init__(self): raise KeyError('HOME')",
    "needs arguments": "class Plugin:\n    def __init__(self, required): pass",
    "no attribute": "class Other: pass",
    "no hook": "class Plugin: pass",
    "no hook at all": "Plugin = 7",
    "unmarked": "class Plugin:\n    def on_request(self, request): pass",
    "signature": (
        "from gofer import hookimpl\n"
        "class Plugin:\n"
        "    @hookimpl\n"
        "    def on_request(self, req): pass"
    ),
    "bind": (
        "from gofer import Message, hookimpl\n"
        "class Plugin:\n"
        "    @hookimpl\n"
        "    def on_request(self, request): request.messages.append(Message('system', 'ghost'))\n"
        "    def bind(self, host): raise OSError('no socket')"
    ),
}

REASONS = {
    "import raises": "raised ImportError: no libfoo",
    "exits": "raised SystemExit: not licensed",
    "syntax": "raised SyntaxError",
    "constructor": "setting it up raised KeyError: 'HOME'",
    "needs arguments": "setting it up raised TypeError",
    "no attribute": "raised AttributeError",
    "no hook": "implements no hook",
    "no hook at all": "implements no hook",
    "unmarked": "has a hook's name but no mark",
    "signature": "parameter 'req' is unknown",
    "bind": "setting it up raised OSError: no socket",
}


class Site:
    """A folder of installed packages, each with its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def install(
        self,
        distribution: str,
        name: str,
        source: str = PLUGIN,
        *,
        group: str = "gofer.plugins",
        target: str | None = None,
        version: str = "1.5",
    ) -> None:
        """Install a package with one entry point; a second call adds another."""
        module = f"fake_{distribution}_{name}".replace("-", "_").replace(".", "_")
        if group == "gofer.runners" and source is PLUGIN:
            source = RUNNER
        code = dedent(source)
        for key, value in {"label": f"{distribution}:{name}", "name": name}.items():
            code = code.replace("{" + key + "}", value)
        (self.path / f"{module}.py").write_text(code)
        self.modules.append(module)
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[{group}]\n{name} = {target or f'{module}:Plugin'}\n")
        importlib.invalidate_caches()

    def clear(self) -> None:
        for module in self.modules:
            sys.modules.pop(module, None)
        importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path / "site")
    made.path.mkdir()
    monkeypatch.syspath_prepend(str(made.path))
    yield made
    made.clear()


def info(host: Host, name: str, distribution: str = "acme") -> PluginInfo:
    [found] = [i for i in host.plugins if i.name == name and i.distribution == distribution]
    return found


async def marks(host: Host) -> list[str]:
    """Return who was there to see a request, in order."""

    class Silent:
        def __init__(self) -> None:
            self.seen: list[Message] = []

        async def stream(self, request: Request) -> Any:
            self.seen = request.messages
            yield Finish()

    model = Silent()
    async with host.stream(Request(), model) as stream:
        async for _ in stream:
            pass
    return [message.text for message in model.seen]


async def test_what_is_installed_is_found_and_works(site: Site) -> None:
    site.install("acme", "helper")
    async with Host() as host:
        found = info(host, "helper")
        assert (found.group, found.version, found.status) == ("gofer.plugins", "1.5", "loaded")
        assert (found.error, found.remedy, found.hooks) == (None, None, ("on_request",))
        assert "acme:helper" in await marks(host)
        assert type(host.plugin("helper")).__module__ == "fake_acme_helper"


async def test_nothing_is_looked_for_where_the_host_is_told_so(site: Site) -> None:
    site.install("acme", "helper")
    async with Host(discover=False) as host:
        assert host.plugins == []
    assert "fake_acme_helper" not in sys.modules


async def test_a_module_may_be_a_plugin(site: Site) -> None:
    source = """
        from gofer import Message, hookimpl

        @hookimpl
        def on_request(request):
            request.messages.append(Message("system", "a module"))
    """
    site.install("acme", "helper", source, target="fake_acme_helper")
    async with Host() as host:
        assert await marks(host) == ["a module"]


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_plugin_is_recorded_and_the_others_go_on(
    site: Site, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("acme", "broken", BROKEN[fault])
    site.install("acme-good", "fine")
    with caplog.at_level(logging.WARNING, "gofer"):
        async with Host() as host:
            found = info(host, "broken")
            assert found.status == "failed"
            assert REASONS[fault] in str(found.error)
            assert "acme" in str(found.remedy)
            assert "disable" in str(found.remedy)
            assert await marks(host) == ["acme-good:fine"]
            with pytest.raises(PluginNotSupportedError, match="plugin 'broken' cannot be used"):
                host.plugin("broken")
    records = [record for record in caplog.records if record.name == "gofer"]
    assert len(records) == 1
    assert "'broken'" in records[0].getMessage()
    assert str(found.error) in records[0].getMessage()


async def test_an_entry_point_without_its_module_is_stale(site: Site) -> None:
    site.install("acme", "stale", target="no_such_module_of_ours:Plugin")
    async with Host() as host:
        found = info(host, "stale")
        assert found.status == "failed"
        assert "no_such_module_of_ours" in str(found.error)
        assert "Reinstall or uninstall acme" in str(found.remedy)


async def test_the_user_may_still_interrupt(site: Site) -> None:
    site.install("acme", "slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        async with Host():
            pytest.fail("it must not open")


@pytest.mark.parametrize("how", ["argument", "variable", "config"])
async def test_in_strict_mode_a_broken_plugin_is_an_error(
    site: Site, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme", "broken", BROKEN["import raises"])
    options: dict[str, Any] = {}
    if how == "argument":
        options = {"strict": True}
    elif how == "variable":
        monkeypatch.setenv("GOFER_STRICT", "1")
    else:
        options = {"config": {"strict": True}}
    with pytest.raises(PluginError, match=r"'broken'.*no libfoo.*disable.*strict") as caught:
        async with Host(**options):
            pytest.fail("it must not open")
    assert not isinstance(caught.value, ExceptionGroup)
    async with Host(strict=False) as host:
        assert info(host, "broken").status == "failed"


async def test_in_strict_mode_what_is_disabled_is_no_error(site: Site) -> None:
    site.install("acme", "broken", BROKEN["import raises"])
    async with Host(strict=True, config={"disable": ["broken"]}) as host:
        assert info(host, "broken").status == "disabled"


@pytest.mark.parametrize("entry", ["helper", "acme-tools:helper", "Acme_Tools:helper"])
async def test_disabled_names_are_not_loaded(
    site: Site, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme-tools", "helper", "raise AssertionError('loaded')")
    site.install("acme-tools", "other")
    monkeypatch.setenv("GOFER_DISABLE", entry)
    async with Host() as host:
        assert info(host, "helper", "acme-tools").status == "disabled"
        assert await marks(host) == ["acme-tools:other"]
        with pytest.raises(PluginNotSupportedError, match="disabled in the configuration"):
            host.plugin("helper")


async def test_an_allow_list_lets_only_those_in_and_the_built_ins(site: Site) -> None:
    site.install("acme", "one")
    site.install("acme", "two")
    site.install("zeta", "three")
    async with Host(config={"allow": ["one", "zeta:three"]}) as host:
        assert await marks(host) == ["acme:one", "zeta:three"]
        found = info(host, "two")
        assert (found.status, found.error) == ("disabled", "it is not in the allow-list")
        assert "'two'" in str(found.remedy)
        built_in = [i for i in host.plugins if i.distribution == "gofer"]
        assert built_in
        assert {i.status for i in built_in} <= {"loaded", "available"}


async def test_two_that_claim_one_name_are_both_set_aside_until_one_is_disabled(
    site: Site,
) -> None:
    site.install("acme", "shared")
    site.install("zeta", "shared")
    async with Host() as host:
        for distribution, other in (("acme", "zeta"), ("zeta", "acme")):
            found = info(host, "shared", distribution)
            assert found.status == "set aside"
            assert found.error == f"the name 'shared' is claimed by {other} too"
            assert f"disable = ['{distribution}:shared']" in str(found.remedy)
        assert await marks(host) == []
        with pytest.raises(PluginNotSupportedError, match="claimed by"):
            host.plugin("shared")
    assert "fake_acme_shared" not in sys.modules
    async with Host(config={"disable": ["zeta:shared"]}) as host:
        assert await marks(host) == ["acme:shared"]
        assert info(host, "shared", "zeta").status == "disabled"
    with pytest.raises(PluginError, match="claimed by"):
        async with Host(strict=True):
            pytest.fail("it must not open")


async def test_the_same_name_in_another_group_is_no_clash(site: Site) -> None:
    site.install("acme", "shared")
    site.install("zeta", "shared", group="gofer.runners")
    async with Host() as host:
        assert info(host, "shared").status == "loaded"
        assert host.runner("shared").name == "shared"


async def test_a_built_in_keeps_its_name(site: Site) -> None:
    site.install("acme", "delegation")
    async with Host() as host:
        assert info(host, "delegation", "gofer").status == "loaded"
        found = info(host, "delegation")
        assert found.status == "set aside"
        assert "gofer's own" in str(found.error)
        assert "rename" in str(found.remedy)
        assert await marks(host) == []


async def test_an_object_given_replaces_the_one_found(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    class Mine:
        name = "helper"

        @hookimpl
        def on_request(self, request: Request) -> None:
            request.messages.append(Message("system", "mine"))

    site.install("acme", "helper", "raise AssertionError('loaded')")
    site.install("zeta", "helper")
    plugin = Mine()
    async with Host([plugin], strict=True) as host:
        assert info(host, "helper").status == "replaced"
        assert info(host, "helper", "zeta").status == "replaced"
        assert host.plugin("helper") is plugin
        assert await marks(host) == ["mine"]


async def test_a_built_in_can_be_replaced_by_ones_own_too() -> None:
    class Mine:
        name = "delegation"

        @hookimpl
        def on_request(self, request: Request) -> None: ...

    async with Host([Mine]) as host:
        assert info(host, "delegation", "gofer").status == "replaced"
        assert type(host.plugin("delegation")) is Mine


# Runners


async def test_a_runner_is_loaded_at_its_first_use(site: Site) -> None:
    site.install("acme", "far", group="gofer.runners")
    async with Host() as host:
        found = info(host, "far")
        assert found.status == "available"
        assert "fake_acme_far" not in sys.modules
        result = await host.run(SubagentSpec(task="t", runner="far"))
        assert (result.summary, result.exit_ok) == ("by acme:far", True)
        assert (found.status, found.hooks) == ("loaded", ("run_subagent",))
        assert host.runner("far") is host.runner("far")


RUNNER_FAULTS = {
    "another name": (
        RUNNER.replace('"{name}"', '"near"'),
        "its class says name = 'near': both names must be the same",
    ),
    "no name": (RUNNER.replace('name = "{name}"', "pass"), "AttributeError"),
    "no runner": (PLUGIN, "is no gofer.Runner: subclass it"),
    "abstract": ("from gofer import Runner\nclass Plugin(Runner):\n    name = 'far'", "TypeError"),
    "import": ("import no_such_module_of_ours", "no_such_module_of_ours"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
}


@pytest.mark.parametrize("fault", RUNNER_FAULTS)
async def test_a_broken_runner_is_told_of_at_its_first_use(
    site: Site, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, reason = RUNNER_FAULTS[fault]
    site.install("acme", "far", dedent(source), group="gofer.runners")
    with caplog.at_level(logging.WARNING, "gofer"):
        async with Host() as host:
            for _ in range(2):
                with pytest.raises(PluginNotSupportedError, match="runner 'far' cannot be") as it:
                    await host.run(SubagentSpec(task="t", runner="far"))
                assert reason in str(it.value)
                assert str(info(host, "far").remedy) in str(it.value)
            assert info(host, "far").status == "failed"
            assert host.children == []
    assert len([r for r in caplog.records if r.name == "gofer"]) == 1


async def test_in_strict_mode_a_runner_that_breaks_at_its_first_use_is_an_error(
    site: Site,
) -> None:
    site.install("acme", "far", "raise ImportError('no libfoo')", group="gofer.runners")
    async with Host(strict=True) as host:
        with pytest.raises(PluginError, match="no libfoo"):
            await host.run(SubagentSpec(task="t", runner="far"))


async def test_an_unknown_runner_is_refused_with_those_there_are(site: Site) -> None:
    site.install("acme", "far", group="gofer.runners")
    site.install("acme", "off", group="gofer.runners")

    class Own(Runner):
        name = "own"

        async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
            return run.result("own")

    async with Host([Own], config={"disable": ["off"]}) as host:
        with pytest.raises(PluginNotSupportedError, match="there is no runner 'nope'") as caught:
            await host.run(SubagentSpec(task="t", runner="nope"))
        listed = str(caught.value).partition("installed: ")[2].split(", ")
        assert {"far", "own", "llama-server"} <= set(listed)
        assert "off" not in listed
        with pytest.raises(PluginNotSupportedError, match="disabled"):
            await host.run(SubagentSpec(task="t", runner="off"))


async def test_a_given_runner_replaces_the_one_found(site: Site) -> None:
    class Far(Runner):
        name = "far"

        async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
            return run.result("mine")

    site.install("acme", "far", group="gofer.runners")
    async with Host([Far]) as host:
        assert (await host.run(SubagentSpec(task="t", runner="far"))).summary == "mine"
        assert info(host, "far").status == "replaced"


# Settings of a plugin

CONFIGURED = """
    from pydantic import BaseModel
    from gofer import Message, hookimpl

    class Plugin:
        class Config(BaseModel):
            level: int = 1

        def __init__(self, level):
            self.level = level

        @hookimpl
        def on_request(self, request):
            request.messages.append(Message("system", f"level {self.level}"))
"""


async def test_settings_reach_the_constructor(site: Site) -> None:
    site.install("acme", "helper", CONFIGURED)
    async with Host() as host:
        assert await marks(host) == ["level 1"]
    async with Host(config={"plugins": {"helper": {"level": 3}}}) as host:
        assert await marks(host) == ["level 3"]


@pytest.mark.parametrize(
    ("source", "settings_", "said"),
    [
        (
            CONFIGURED,
            {"level": "high"},
            r"argument plugins\.helper\.level: should be a valid integer",
        ),
        (
            CONFIGURED,
            {"levl": 3},
            r"argument plugins\.helper\.levl: there is no such key; allowed: level",
        ),
        (PLUGIN, {"level": 3}, r"plugins\.helper\.level: Plugin takes no settings"),
    ],
)
async def test_settings_that_do_not_fit_are_an_error_with_the_table_and_its_keys(
    site: Site, source: str, settings_: dict[str, Any], said: str
) -> None:
    site.install("acme", "helper", source)
    with pytest.raises(ConfigError, match=said):
        async with Host(config={"plugins": {"helper": settings_}}):
            pytest.fail("it must not open")


# Packages whose metadata is broken


async def test_a_package_without_its_metadata_harms_nobody(site: Site) -> None:
    site.install("acme", "helper")
    site.install("zeta", "other")
    (site.path / "acme-1.5.dist-info" / "METADATA").unlink()
    importlib.invalidate_caches()
    async with Host() as host:
        assert "zeta:other" in await marks(host)
        [found] = [i for i in host.plugins if i.name == "helper"]
        assert found.distribution == "acme"


@pytest.mark.parametrize("points", [b"[gofer.plugins]\nno equals sign\n", b"\xff\xfe[x]"])
async def test_a_package_with_broken_entry_points_harms_nobody(
    site: Site, points: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("acme", "helper")
    site.install("zeta", "other")
    (site.path / "acme-1.5.dist-info" / "entry_points.txt").write_bytes(points)
    importlib.invalidate_caches()
    with caplog.at_level(logging.WARNING, "gofer"):
        async with Host() as host:
            assert await marks(host) == ["zeta:other"]
    assert "acme" in caplog.text


async def test_one_package_on_two_paths_counts_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme", "helper")
    copy = Site(tmp_path / "copy")
    copy.path.mkdir()
    copy.install("acme", "helper", version="1.4")
    monkeypatch.syspath_prepend(str(copy.path))
    async with Host() as host:
        assert info(host, "helper").status == "loaded"
        assert info(host, "helper").version == "1.4"


async def test_one_entry_point_written_twice_counts_once(site: Site) -> None:
    site.install("acme", "helper")
    site.install("acme", "helper")
    async with Host() as host:
        assert info(host, "helper").status == "loaded"
        assert await marks(host) == ["acme:helper"]


# Any set of packages, against a model

NAMES = st.sampled_from(["one", "two", "delegation"])
PACKAGES = st.dictionaries(
    st.tuples(st.sampled_from(["acme", "beta", "zeta"]), NAMES),
    st.sampled_from(["good", "good", *BROKEN]),
    max_size=5,
)
ENTRIES = st.sets(st.sampled_from(["one", "two", "acme:one", "beta:two", "zeta:delegation"]))


@settings(max_examples=40, deadline=None)
@given(
    packages=PACKAGES,
    disable=ENTRIES,
    allow=st.one_of(st.none(), ENTRIES),
    own=st.sets(st.sampled_from(["one", "two"])),
)
def test_any_set_of_packages(
    packages: dict[tuple[str, str], str],
    disable: set[str],
    allow: set[str] | None,
    own: set[str],
) -> None:
    wanted = {
        key
        for key in packages
        if not {key[1], ":".join(key)} & disable
        and (allow is None or {key[1], ":".join(key)} & allow)
    }

    def expected(key: tuple[str, str]) -> str:
        if key[1] in own:
            return "replaced"
        if key not in wanted:
            return "disabled"
        rivals = [other for other in wanted if other[1] == key[1] and other != key]
        if rivals or key[1] == "delegation":
            return "set aside"
        return "loaded" if packages[key] == "good" else "failed"

    class Mine:
        def __init__(self, name: str) -> None:
            self.name = name

        @hookimpl
        def on_request(self, request: Request) -> None:
            request.messages.append(Message("system", f"own {self.name}"))

    async def main(path: Path) -> None:
        config = {"disable": sorted(disable), "allow": None if allow is None else sorted(allow)}
        if allow is None:
            del config["allow"]
        given_plugins = [Mine(name) for name in sorted(own, reverse=True)]
        async with Host(given_plugins, config, cwd=path) as host:
            found = {
                (str(i.distribution), i.name): i.status
                for i in host.plugins
                if i.distribution in ("acme", "beta", "zeta")
            }
            assert found == {key: expected(key) for key in packages}
            loaded = sorted(key for key in packages if expected(key) == "loaded")
            assert await marks(host) == [
                *(":".join(key) for key in loaded),
                *(f"own {name}" for name in sorted(own, reverse=True)),
            ]
            broken = [i for i in host.plugins if i.status in ("failed", "set aside")]
            assert all(i.error and i.remedy for i in broken)

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        site = Site(Path(folder))
        for (distribution, name), behaviour in packages.items():
            source = PLUGIN if behaviour == "good" else BROKEN[behaviour]
            site.install(distribution, name, source)
        monkeypatch.syspath_prepend(folder)
        try:
            anyio.run(main, Path(folder))
        finally:
            site.clear()
