"""Any set of packages, against a small model of what should become of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gofer import (
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

from .sites import BROKEN, PLUGIN, REASONS, RUNNER, Site, marks

PLUGINS, RUNNERS = "gofer.plugins", "gofer.runners"
BUILT_IN = {(PLUGINS, "delegation"), (RUNNERS, "acp")}

RUNNER_FAULTS = {
    "another name": RUNNER.replace('"{name}"', '"elsewhere"'),
    "no runner": PLUGIN + "\n",  # as it stands
    "abstract": "from gofer import Runner\nclass Plugin(Runner):\n    name = '{name}'",
    "import": "raise ImportError('no libbar')",
    "exits": "raise SystemExit(3)",
}
RUNNER_REASONS = {
    "another name": "its class says name = 'elsewhere'",
    "no runner": "is no gofer.Runner",
    "abstract": "setting it up raised TypeError",
    "import": "raised ImportError: no libbar",
    "exits": "raised SystemExit: 3",
}
IN_BOTH = RUNNER.replace("name =", "\n        name =")

KEYS = {"acme": "acme", "beta.b": "beta-b", "Zeta_Tools": "zeta-tools"}
DISTRIBUTIONS = st.sampled_from(sorted(KEYS))
ENTRIES = st.one_of(
    st.tuples(
        st.just(PLUGINS),
        st.sampled_from(["one", "two", "three", "four", "delegation"]),
        st.sampled_from(["good", "good", "good", *sorted(BROKEN)]),
    ),
    st.tuples(
        st.just(RUNNERS),
        st.sampled_from(["one", "far", "near", "acp"]),
        st.sampled_from(["good", "good", *sorted(RUNNER_FAULTS)]),
    ),
    st.tuples(st.just("both"), st.sampled_from(["one", "both"]), st.just("both")),
)
# How the metadata of a whole package is.
METADATA = st.sampled_from(["good"] * 6 + ["no METADATA", "not UTF-8", "bad line", "twice"])
CHOICES = st.sets(
    st.sampled_from(
        [
            "one", "two", "far", "delegation", "acp", "acme:one", "ACME:far", "beta_b:two",
            "Beta-B:one", "zeta.tools:far", "zeta-tools:delegation", "gofer:delegation",
            "gofer:acp", "acme", "beta-b:beta.b",
        ]
    ),
    max_size=3,
)  # fmt: skip


@dataclass
class World:
    """What is installed, and what is set."""

    packages: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    disable: set[str] = field(default_factory=set)
    allow: set[str] | None = None
    own: list[tuple[str, str]] = field(default_factory=list)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    if draw(st.booleans()):
        world.disable = draw(CHOICES)
        world.allow = draw(st.one_of(st.none(), CHOICES))
    calm = draw(st.booleans())  # else there are few worlds in which much works
    for distribution in draw(st.sets(DISTRIBUTIONS, min_size=1)):
        entries = world.packages[distribution] = {}
        for group, name, behaviour in draw(st.lists(ENTRIES, min_size=1, max_size=4)):
            for one in (PLUGINS, RUNNERS) if group == "both" else (group,):
                entries[one, name] = "good" if calm and group != "both" else behaviour
        world.metadata[distribution] = "good" if calm else draw(METADATA)
    own = st.sampled_from([(PLUGINS, "one"), (PLUGINS, "two"), (RUNNERS, "far"), (RUNNERS, "one")])
    world.own = draw(st.lists(own, unique=True, max_size=2))
    return world


# The model


class Model:
    """What should become of a world, said in the plainest way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries = {
            (distribution, *key): behaviour
            for distribution, entries in world.packages.items()
            if world.metadata[distribution] != "not UTF-8"
            for key, behaviour in entries.items()
        }

    def listed(self, choices: set[str], distribution: str, name: str) -> bool:
        return any(
            choice == name or (":" in choice and self.key(choice) == (KEYS[distribution], name))
            for choice in choices
        )

    def key(self, choice: str) -> tuple[str, str]:
        distribution, _, name = choice.rpartition(":")
        return re.sub("[-_.]+", "-", distribution).lower(), name

    def wanted(self, distribution: str, name: str) -> bool:
        allow = self.world.allow
        return not self.listed(self.world.disable, distribution, name) and (
            allow is None or self.listed(allow, distribution, name)
        )

    def status(self, distribution: str, group: str, name: str) -> str:
        """Return what an entry is once the Host is open."""
        if (group, name) in self.world.own:
            return "replaced"
        if not self.wanted(distribution, name):
            return "disabled"
        rivals = [
            entry
            for entry in self.entries
            if entry[1:] == (group, name) and self.wanted(entry[0], name)
        ]
        if self.is_ours(group, name) or len(rivals) > 1:
            return "set aside"
        if group == RUNNERS:
            return "available"
        return "loaded" if self.entries[distribution, group, name] == "good" else "failed"

    def faults(self) -> dict[str, str]:
        """Return the packages that are broken as a whole."""
        broken: dict[str, str] = {}
        for distribution, how in self.world.metadata.items():
            ours = any(key[0] == distribution for key in self.entries)
            if how in ("not UTF-8", "bad line") or (how == "twice" and ours):
                broken[distribution] = how
        return broken

    def fault_status(self, distribution: str) -> str:
        key, allow = KEYS[distribution], self.world.allow
        names = {distribution, key}
        off = any(
            choice in names or (":" in choice and self.key(choice) == (key, distribution))
            for choice in self.world.disable
        )
        wanted = allow is None or any(
            choice in names or self.key(choice)[0] == key for choice in allow
        )
        return "failed" if wanted and not off else "disabled"

    def is_wrong(self) -> bool:
        """Say whether strict mode refuses to open."""
        return any(self.fault_status(one) == "failed" for one in self.faults()) or any(
            self.status(*entry) in ("failed", "set aside") for entry in self.entries
        )

    def error(self, distribution: str, group: str, name: str) -> str | None:
        """Return words that the error of an entry must have."""
        status = self.status(distribution, group, name)
        behaviour = self.entries[distribution, group, name]
        if status == "set aside":
            return "is gofer's own" if self.is_ours(group, name) else "is claimed by"
        if status == "failed":
            return "belongs into the group" if behaviour == "both" else REASONS[behaviour]
        if status == "disabled" and not self.listed(self.world.disable, distribution, name):
            return "not in the allow-list"
        return None

    def is_ours(self, group: str, name: str) -> bool:
        return (group, name) in BUILT_IN and not {name, f"gofer:{name}"} & self.world.disable

    def ours(self, group: str, name: str) -> str:
        """Return what one of gofer's own is."""
        if not self.is_ours(group, name):
            return "disabled"
        return "loaded" if group == PLUGINS else "available"

    def seen(self) -> list[str]:
        """Return who sees a request, in order."""
        loaded = sorted(
            (distribution, name)
            for distribution, group, name in self.entries
            if self.status(distribution, group, name) == "loaded"
        )
        return [
            *(":".join(one) for one in loaded),
            *(f"own {name}" for group, name in self.world.own if group == PLUGINS),
        ]

    def runners(self) -> dict[str, str]:
        """Return what each name of a third party's runner gives: who answers, or why none does."""
        answers: dict[str, str] = {}
        for distribution, group, name in sorted(self.entries):
            if group != RUNNERS or self.is_ours(group, name):
                continue
            status = self.status(distribution, group, name)
            behaviour = self.entries[distribution, group, name]
            if status == "replaced":
                answers[name] = f"own {name}"
            elif status == "available":
                good = behaviour in ("good", "both")
                answers[name] = f"by {distribution}:{name}" if good else RUNNER_REASONS[behaviour]
            elif status == "set aside":
                answers[name] = "is claimed by"
            elif name not in answers:
                answers[name] = "cannot be used"
        return answers


# The world, made real


def given_plugin(group: str, called: str) -> object:
    if group == RUNNERS:

        class OwnRunner(Runner):
            name = called

            async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
                return run.result(f"own {called}")

        return OwnRunner

    class Own:
        name = called

        @hookimpl
        def on_request(self, request: Request) -> None:
            request.messages.append(Message("system", f"own {called}"))

    return Own


@contextmanager
def installed(world: World) -> Iterator[Path]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        site = Site(Path(folder))
        for distribution, entries in world.packages.items():
            for (group, name), behaviour in entries.items():
                source = {
                    "good": PLUGIN,  # which is a runner where one is due
                    "both": IN_BOTH,
                    **(BROKEN if group == PLUGINS else RUNNER_FAULTS),
                }[behaviour]
                made = f"{distribution}_{group[6:]}" if behaviour != "both" else distribution
                module = f"fake_{made}_{name}".replace(".", "_")
                site.install(
                    distribution, name, source, group=group, module=module,
                )  # fmt: skip
            spoil(site, distribution, world.metadata[distribution])
        patch.syspath_prepend(folder)
        try:
            yield site.path
        finally:
            site.clear()


def spoil(site: Site, distribution: str, how: str) -> None:
    folder = next(site.path.glob(f"{distribution.replace('-', '_')}-*.dist-info"))
    points = folder / "entry_points.txt"
    if how == "no METADATA":
        (folder / "METADATA").unlink()
    elif how == "not UTF-8":
        points.write_bytes(points.read_bytes() + b"# caf\xe9\n")
    elif how == "bad line":
        points.write_bytes(points.read_bytes() + b"[other]\nalone\n")
    elif how == "twice":
        site.metadata(distribution, points.read_bytes(), version="1.4")


def options(world: World) -> dict[str, Any]:
    config: dict[str, Any] = {"disable": sorted(world.disable)}
    if world.allow is not None:
        config["allow"] = sorted(world.allow)
    return config


def of_third_parties(host: Host) -> dict[tuple[str, str, str], PluginInfo]:
    return {
        (str(info.distribution), info.group, info.name): info
        for info in host.plugins
        if info.distribution in KEYS
    }


async def opened(world: World, path: Path) -> None:
    model = Model(world)
    own = [given_plugin(*one) for one in world.own]
    async with Host(own, options(world), cwd=path) as host:
        found = of_third_parties(host)
        expected = {entry: model.status(*entry) for entry in model.entries} | {
            (distribution, "", distribution): model.fault_status(distribution)
            for distribution in model.faults()
        }
        assert {key: info.status for key, info in found.items()} == expected
        for entry in model.entries:
            info, words = found[entry], model.error(*entry)
            assert (info.error or "") == "" if words is None else words in str(info.error)
            assert (info.remedy is None) == (info.error is None)
            assert info.hooks == (("on_request",) if info.status == "loaded" else ())
            event(f"{info.group} {info.status}")
        ours = {(i.group, i.name): i.status for i in host.plugins if i.distribution == "gofer"}
        assert {key: ours[key] for key in BUILT_IN} == {key: model.ours(*key) for key in BUILT_IN}
        assert await marks(host) == model.seen()
        with pytest.raises(PluginNotSupportedError) as caught:
            host.runner("nobody")
        listed = str(caught.value).partition("installed: ")[2].partition(";")[0].split(", ")
        usable = {n for d, g, n in model.entries if model.status(d, g, n) == "available"}
        usable |= {name for group, name in world.own if group == RUNNERS}
        for name in ("one", "far"):
            assert (name in listed) == (name in usable)
        for name, answer in model.runners().items():
            for _ in range(2):
                if answer.startswith(("by ", "own ")):
                    result = await host.run(SubagentSpec(task="t", runner=name))
                    assert (result.summary, result.error) == (answer, None)
                else:
                    with pytest.raises(
                        PluginNotSupportedError, match=f"{name!r} cannot be used"
                    ) as it:
                        await host.run(SubagentSpec(task="t", runner=name))
                    assert answer in str(it.value)
        for (_, group, _), info in of_third_parties(host).items():
            assert (info.status in ("failed", "set aside")) <= bool(info.error and info.remedy)
            if group == RUNNERS and info.status == "loaded":
                assert info.hooks == ("run_subagent",)


async def opened_strictly(world: World, path: Path) -> None:
    model = Model(world)
    own = [given_plugin(*one) for one in world.own]
    if model.is_wrong():
        with pytest.raises(PluginError, match="strict mode"):
            async with Host(own, options(world), cwd=path, strict=True):
                pytest.fail("it must not open")
        return
    async with Host(own, options(world), cwd=path, strict=True) as host:
        assert await marks(host) == model.seen()
        for name, answer in model.runners().items():
            if answer.startswith(("by ", "own ")):
                result = await host.run(SubagentSpec(task="t", runner=name))
                assert result.summary == answer
            else:
                with pytest.raises(PluginError, match=re.escape(answer)):
                    await host.run(SubagentSpec(task="t", runner=name))


@settings(max_examples=150, deadline=None)
@given(world=worlds())
def test_any_set_of_packages(world: World) -> None:
    with installed(world) as path:
        anyio.run(opened, world, path)


@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_any_set_of_packages_in_strict_mode(world: World) -> None:
    with installed(world) as path:
        anyio.run(opened_strictly, world, path)
