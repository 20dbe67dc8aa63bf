"""Folders of installed packages, made the way an installer leaves them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from gofer import Finish, Host, PluginInfo, Request

__all__ = ["BROKEN", "PLUGIN", "REASONS", "RUNNER", "Site", "info", "marks"]

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
    "an exception of its own": "class Mine(BaseException): pass\nraise Mine('stop')",
    "recursion": "def again(): again()\nagain()",
    "no words": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute('x' * 9)"
    ),
    "many words": "raise ValueError('word ' * 100_000)",
    "needs another": "import no_such_module_of_ours.part",
    "syntax": "def broken(:",
    "constructor": "class Plugin:\n    def __init__(self): raise KeyError('HOME')",
    "needs arguments": "class Plugin:\n    def __init__(self, required): pass",
    "needs settings": (
        "from pydantic import BaseModel\n"
        "class Plugin:\n"
        "    class Config(BaseModel):\n"
        "        url: str\n"
        "    def __init__(self, url): pass"
    ),
    "no attribute": "class Other: pass",
    "none": "Plugin = None",
    "no hook": "class Plugin: pass",
    "no hook at all": "Plugin = 7",
    "unmarked": "class Plugin:\n    def on_request(self, request): pass",
    "signature": (
        "from gofer import hookimpl\n"
        "class Plugin:\n"
        "    @hookimpl\n"
        "    def on_request(self, req): pass"
    ),
    "no such hook": (
        "from gofer import hookimpl\n"
        "class Plugin:\n"
        "    @hookimpl\n"
        "    def on_requests(self, request): pass"
    ),
    "bind": (
        "from gofer import Message, hookimpl\n"
        "class Plugin:\n"
        "    @hookimpl\n"
        "    def on_request(self, request): request.messages.append(Message('system', 'ghost'))\n"
        "    def bind(self, host): raise OSError('no socket')"
    ),
    "a runner": (
        "from gofer import Runner\n"
        "class Plugin(Runner):\n"
        "    name = 'broken'\n"
        "    async def run(self, spec, run): pass"
    ),
}
"""Modules whose ``Plugin`` is none, by what is wrong with them."""

REASONS = {
    "import raises": "raised ImportError: no libfoo",
    "exits": "raised SystemExit: not licensed",
    "an exception of its own": "raised Mine: stop",
    "recursion": "raised RecursionError: maximum recursion depth exceeded",
    "no words": "raised Mute",
    "many words": "raised ValueError: word word",
    "needs another": "raised ModuleNotFoundError: No module named 'no_such_module_of_ours'",
    "syntax": "raised SyntaxError",
    "constructor": "setting it up raised KeyError: 'HOME'",
    "needs arguments": "setting it up raised TypeError",
    "needs settings": "it needs settings: url is missing",
    "no attribute": "raised AttributeError",
    "none": "Plugin is None",
    "no hook": "implements no hook",
    "no hook at all": "implements no hook",
    "unmarked": "has a hook's name but no mark",
    "signature": "parameter 'req' is unknown",
    "no such hook": "'on_requests' is no hook of gofer",
    "bind": "setting it up raised OSError: no socket",
    "a runner": "is a gofer.Runner: its entry point belongs into the group gofer.runners",
}


class Site:
    """A folder of installed packages, each with its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def module(self, name: str, source: str) -> None:
        """Write a module; a dotted name is one of a namespace package."""
        path = self.path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        self.modules += [name, name.partition(".")[0]]

    def metadata(self, distribution: str, points: str | bytes, *, version: str = "1.5") -> Path:
        """Write a package's metadata, and return its folder."""
        folder = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nName: readme\n"
        )
        with (folder / "entry_points.txt").open("ab") as file:
            file.write(points.encode() if isinstance(points, str) else points)
        importlib.invalidate_caches()
        return folder

    def install(
        self,
        distribution: str,
        name: str,
        source: str = PLUGIN,
        *,
        group: str = "gofer.plugins",
        target: str | None = None,
        version: str = "1.5",
        module: str | None = None,
    ) -> Path:
        """Install a package with one entry point; a second call adds another."""
        if module is None:
            module = f"fake_{distribution}_{name}".replace("-", "_").replace(".", "_")
        if group == "gofer.runners" and source is PLUGIN:
            source = RUNNER
        code = dedent(source)
        for key, value in {"label": f"{distribution}:{name}", "name": name}.items():
            code = code.replace("{" + key + "}", value)
        self.module(module, code)
        points = f"[{group}]\n{name} = {target or f'{module}:Plugin'}\n"
        return self.metadata(distribution, points, version=version)

    def clear(self) -> None:
        """Forget what was imported."""
        for module in self.modules:
            sys.modules.pop(module, None)
        importlib.invalidate_caches()


def info(host: Host, name: str, distribution: str = "acme") -> PluginInfo:
    """Return what the Host knows of one."""
    [found] = [i for i in host.plugins if i.name == name and i.distribution == distribution]
    return found


async def marks(host: Host) -> list[str]:
    """Return who was there to see a request, in order."""

    class Silent:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def stream(self, request: Request) -> Any:
            self.seen = request.messages
            yield Finish()

    model = Silent()
    async with host.stream(Request(), model) as stream:
        async for _ in stream:
            pass
    return [message.text for message in model.seen]
