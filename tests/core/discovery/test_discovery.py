"""Finding what is installed: each alone, so that a broken package harms no other."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gofer import (
    ConfigError,
    Host,
    Message,
    PluginError,
    PluginNotSupportedError,
    PluginValidationError,
    Request,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
    hookimpl,
)

from .sites import BROKEN, PLUGIN, REASONS, RUNNER, Site, info, marks

pytestmark = pytest.mark.anyio


async def test_what_is_installed_is_found_and_works(site: Site) -> None:
    site.install("acme", "helper")
    async with Host() as host:
        found = info(host, "helper")
        assert (found.group, found.version, found.status) == ("gofer.plugins", "1.5", "loaded")
        assert (found.error, found.remedy, found.hooks) == (None, None, ("on_request",))
        assert "acme:helper" in await marks(host)
        assert type(host.plugin("helper")).__module__ == "fake_acme_helper"


async def test_the_order_is_by_distribution_and_name(site: Site) -> None:
    for distribution, name in [("zeta", "alpha"), ("acme", "two"), ("acme", "one"), ("mid", "x")]:
        site.install(distribution, name)
    async with Host() as host:
        assert await marks(host) == ["acme:one", "acme:two", "mid:x", "zeta:alpha"]


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
        with pytest.raises(
            PluginNotSupportedError, match=r"disabled \(GOFER_DISABLE\): take it out"
        ):
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
    "yields": (
        RUNNER.replace("return run.result", "yield run.result"),
        "its run yields, and should return: await run.emit(block)",
    ),
    "takes no run": (
        RUNNER.replace("self, spec, run", "self, spec"),
        "its run cannot be called with a spec and a run (too many positional arguments)",
    ),
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


async def test_a_given_runner_that_yields_is_refused_when_the_host_opens() -> None:
    class Yields(Runner):
        name = "yields"

        async def run(self, spec: SubagentSpec, run: Run) -> AsyncIterator[str]:  # type: ignore[override]
            yield "said"

    with pytest.raises(PluginValidationError, match="the runner 'yields': its run yields"):
        async with Host([Yields], discover=False):
            pass


async def test_a_runner_with_a_hook_of_its_own_may_have_any_run() -> None:
    class Own(Runner):
        name = "own"

        async def run(self, spec: SubagentSpec) -> SubagentResult:  # type: ignore[override]
            raise NotImplementedError

        @hookimpl
        def run_subagent(self, spec: SubagentSpec, run: Run) -> Awaitable[SubagentResult] | None:
            return self._answer(run) if spec.runner == self.name else None

        async def _answer(self, run: Run) -> SubagentResult:
            return run.result("said")

    async with Host([Own], discover=False) as host:
        assert (await host.run(SubagentSpec(task="t", runner="own"))).summary == "said"


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


# Parts of other sorts


async def test_an_error_of_any_length_is_told_in_bounded_words(site: Site) -> None:
    site.install("acme", "broken", BROKEN["many words"])
    async with Host() as host:
        assert len(str(info(host, "broken").error)) < 1200


async def test_what_a_package_needs_or_lost_is_in_the_remedy(site: Site) -> None:
    site.install("acme", "needs", "import no_such_module_of_ours.part")
    site.install("acme", "stale", target="no_such_module_of_ours.part:Plugin")
    site.install("acme", "words", target="not a reference")
    async with Host() as host:
        assert "It needs 'no_such_module_of_ours'" in str(info(host, "needs").remedy)
        assert "Its module is gone" in str(info(host, "stale").remedy)
        assert "'not a reference', which is no module:attribute" in str(info(host, "words").error)


async def test_a_namespace_package_of_two_distributions(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Site(tmp_path / "other")
    monkeypatch.syspath_prepend(str(other.path))
    for made, name in ((site, "one"), (other, "two")):
        made.module(f"fake_space.{name}", PLUGIN.replace("{label}", name))
        made.metadata(f"space-{name}", f"[gofer.plugins]\n{name} = fake_space.{name}:Plugin\n")
    async with Host() as host:
        assert info(host, "one", "space-one").status == "loaded"
        assert await marks(host) == ["one", "two"]
    other.clear()


IN_BOTH = """
    from gofer import Message, Runner, hookimpl

    class Plugin(Runner):
        name = "both"

        async def run(self, spec, run):
            return run.result("done")

        @hookimpl
        def on_request(self, request):
            request.messages.append(Message("system", "seen"))

    plugin = Plugin()
"""


@pytest.mark.parametrize("attribute", ["Plugin", "plugin"])
async def test_one_runner_under_two_groups_is_a_runner_once(site: Site, attribute: str) -> None:
    target = f"fake_acme_both:{attribute}"
    for group in ("gofer.plugins", "gofer.runners"):
        site.install("acme", "both", IN_BOTH, group=group, target=target)
    async with Host() as host:
        plugin, runner = (i for i in host.plugins if i.distribution == "acme")
        assert (plugin.group, plugin.status) == ("gofer.plugins", "failed")
        assert "belongs into the group gofer.runners alone" in str(plugin.error)
        assert runner.status == "available"
        assert await marks(host) == []
        assert (await host.run(SubagentSpec(task="t", runner="both"))).summary == "done"
        assert runner.status == "loaded"
        assert await marks(host) == ["seen"]


async def test_one_plugin_under_two_groups_is_a_plugin_once(site: Site) -> None:
    for group in ("gofer.plugins", "gofer.runners"):
        site.install("acme", "both", group=group, target="fake_acme_both:Plugin")
    site.module("fake_acme_both", PLUGIN.replace("{label}", "plugin"))
    async with Host() as host:
        assert await marks(host) == ["plugin"]
        with pytest.raises(PluginNotSupportedError, match=r"no gofer\.Runner: subclass it"):
            host.runner("both")
        assert await marks(host) == ["plugin"]


async def test_one_object_under_two_names_is_a_plugin_once(site: Site) -> None:
    site.install("acme", "first", PLUGIN + "\n    plugin = Plugin()\n")
    for name in ("again", "third"):
        site.metadata("acme", f"[gofer.plugins]\n{name} = fake_acme_first:plugin\n")
    async with Host() as host:
        states = {i.name: i.status for i in host.plugins if i.distribution == "acme"}
        assert sorted(states.values()) == ["failed", "loaded", "loaded"]  # one is of the class
        assert await marks(host) == ["acme:first"] * 2


ODD = {
    "equal": "__eq__ = lambda self, other: True",
    "speechless": "__repr__ = lambda self: 1 / 0",
    "unhashable": "__hash__ = None",
}


@pytest.mark.parametrize("method", ODD.values(), ids=ODD)
async def test_what_a_plugin_says_of_itself_harms_no_other(site: Site, method: str) -> None:
    declines = f"""{PLUGIN.rstrip()}

        @hookimpl
        def run_subagent(self, spec, run):
            return None
    """
    site.install("acme", "one", declines)
    site.install("beta", "odd", f"{declines.rstrip()}\n\n        {method}\n")
    site.install("zeta", "two", declines)
    async with Host() as host:
        assert await marks(host) == ["acme:one", "beta:odd", "zeta:two"]


async def test_settings_that_are_there_and_wrong_are_the_users_error(site: Site) -> None:
    site.install("acme", "broken", BROKEN["needs settings"])
    with pytest.raises(ConfigError, match=r"argument plugins\.broken"):
        async with Host(config={"plugins": {"broken": {"uri": "x"}}}):
            pytest.fail("it must not open")
    async with Host() as host:
        found = info(host, "broken")
        assert found.status == "failed"
        assert "[tool.gofer.plugins.broken]" in str(found.remedy)


async def test_settings_for_nobody_are_told_of(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("acme", "helper", CONFIGURED)
    site.install("acme", "off", CONFIGURED)
    plugins = {"helper": {"level": 2}, "off": {"level": 2}, "helpr": {"level": 3}}
    config = {"plugins": plugins, "disable": ["off"], "runners": {"llama_server": {"x": 1}}}
    async with Host(config=config) as host:
        assert await marks(host) == ["level 2"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("argument runners.llama_server: there is no runner 'llama_server'")
    assert "did you mean llama-server?" in told[0]
    assert "plugins.helpr: there is no plugin 'helpr'; did you mean helper?" in told[1]
    caplog.clear()
    async with Host(config=config, discover=False):
        assert caplog.records == []


async def test_lists_that_name_nothing_are_told_of(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("acme", "helper", CONFIGURED)
    site.install("acme", "shout", group="gofer.commands")
    site.metadata("odd", b"[gofer.plugins]\n\xff")
    monkeypatch.setenv("GOFER_DISABLE", "acp,helpr,Acme:helper,acme:shout,odd:any,other:helper")
    monkeypatch.setenv("GOFER_ALLOW", "demo,nobody")
    async with Host():
        told = [record.getMessage() for record in caplog.records]
    assert told == [
        "GOFER_DISABLE: nothing that is installed is called 'helpr'; did you mean helper?",
        "GOFER_DISABLE: nothing that is installed is called 'other:helper'; did you mean helper?",
        "GOFER_ALLOW: nothing that is installed is called 'nobody'",
    ]


async def test_an_agent_of_the_settings_on_a_third_partys_runner(site: Site) -> None:
    site.install("acme", "far", group="gofer.runners")
    site.install("acme", "bad", "import no_such_module_of_ours", group="gofer.runners")
    agents = {"mine": {"runner": "far"}, "broken": {"runner": "bad"}, "lost": {"runner": "gone"}}
    async with Host(config={"agents": agents}) as host:
        result = await host.run(SubagentSpec(task="t", agent="mine"))
        assert (result.summary, result.exit_ok) == ("by acme:far", True)
        with pytest.raises(PluginNotSupportedError, match=r"'bad' cannot be used.*not installed"):
            await host.run(SubagentSpec(task="t", agent="broken"))
        with pytest.raises(PluginNotSupportedError, match=r"no runner 'gone'; installed: .*far"):
            await host.run(SubagentSpec(task="t", agent="lost"))


async def test_a_name_that_two_claim_and_one_given_takes_is_no_clash(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    class Mine:
        name = "helper"

        @hookimpl
        def on_request(self, request: Request) -> None: ...

    site.install("acme", "helper")
    site.install("zeta", "helper")
    async with Host([Mine]):
        assert caplog.records == []


async def test_a_disabled_built_in_leaves_its_name_to_others(site: Site) -> None:
    site.install("acme", "delegation")
    async with Host(config={"disable": ["gofer:delegation"]}) as host:
        assert info(host, "delegation").status == "loaded"
        assert info(host, "delegation", "gofer").status == "disabled"


# Packages that go while the host runs


async def test_a_runner_whose_package_is_removed_before_its_first_use(site: Site) -> None:
    folder = site.install("acme", "far", group="gofer.runners")
    async with Host() as host:
        shutil.rmtree(folder)
        (site.path / "fake_acme_far.py").unlink()
        for _ in range(2):
            with pytest.raises(PluginNotSupportedError, match="package was removed") as caught:
                await host.run(SubagentSpec(task="t", runner="far"))
        assert "Reinstall or uninstall acme" in str(caught.value)
        assert info(host, "far").status == "failed"
        assert host.children == []
    async with Host() as host:
        assert [i for i in host.plugins if i.distribution == "acme"] == []


async def test_a_runner_whose_later_imports_are_gone_fails_its_child_alone(site: Site) -> None:
    source = """
        from gofer import Runner, Text

        class Plugin(Runner):
            name = "far"

            async def run(self, spec, run):
                await run.emit(Text(text="so far"))
                if spec.task == "more":
                    import fake_acme_more
                return run.result()
    """
    folder = site.install("acme", "far", source, group="gofer.runners")
    site.module("fake_acme_more", "")
    async with Host() as host:
        assert (await host.run(SubagentSpec(task="t", runner="far"))).exit_ok
        shutil.rmtree(folder)
        for module in ("far", "more"):
            (site.path / f"fake_acme_{module}.py").unlink()
        result = await host.run(SubagentSpec(task="more", runner="far"))
        assert (result.stop_reason, result.exit_ok, result.summary) == ("error", False, "so far")
        assert "No module named 'fake_acme_more'" in str(result.error)
        assert (await host.run(SubagentSpec(task="t", runner="far"))).exit_ok
