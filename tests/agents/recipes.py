"""The agents as data: where each comes from, how it is started, what sends it to our model.

In every text ``{bin}`` stands for the folder of the agent's programs, ``{home}`` for the scratch
folder that it takes for its user's home, and ``{url}`` for the model server. All keys are dummies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import platformdirs

__all__ = ["FOLDER", "IN_CI", "RECIPES", "WANTED", "Ready", "Recipe", "chosen"]

KEY = "dummy-key"
MODEL = "stub-model"

# All are read now, since the tests hide our variables from themselves.
# Where the agents are installed.
FOLDER = Path(
    os.environ.get("GOFER_AGENTS_DIR") or platformdirs.user_cache_path("gofer") / "agents"
).absolute()
IN_CI = os.environ.get("CI") == "true"
# The names of those to install and to test, or "all".
WANTED = tuple(os.environ.get("GOFER_AGENTS", "").replace(",", " ").split())

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One agent.

    :param npm: its packages in the npm registry, pinned.
    :param pypi: its packages on PyPI, pinned; they get an environment of their own.
    :param python: the oldest Python that they run on.
    :param files: what to write into the home, by path; what is no text becomes JSON.
    :param before: commands that set the home up once, where a file cannot.
    :param in_ci: it is small and quick enough to be tried with every change.
    :param asks: before which of these it asks, as it is set up here: shell, write.
    :param refused: what it does when it may not: tells the model, or ends the turn there.
    :param failing: what becomes of a turn whose model answers HTTP 500: an error, a text that
        tells of it, nothing at all, or silence, because it tries again for long.
    :param resumes: whether another process can go on with a session; None: now and then.
    :param tail: it tells of a tool call before the last words that come before it.
    """

    name: str
    command: Sequence[str]
    npm: Sequence[str] = ()
    pypi: Sequence[str] = ()
    python: str = "3.11"
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | Json] = field(default_factory=dict)
    before: Sequence[Sequence[str]] = ()
    auth_method: str | None = None
    mode: str | None = None
    in_ci: bool = False
    asks: frozenset[str] = frozenset({"shell", "write"})
    refused: Literal["goes on", "ends"] = "goes on"
    failing: Literal["error", "text", "nothing", "silence"] = "silence"
    resumes: bool | None = True
    tail: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """Everything to install."""
        return (*self.npm, *self.pypi)

    @property
    def version(self) -> str:
        """The version of the first package, the one that speaks the protocol."""
        return self.packages[0].replace("==", "@").rpartition("@")[2]

    @property
    def folder(self) -> Path:
        """Where it is installed, or would be."""
        return FOLDER / self.name

    @property
    def bin(self) -> Path:
        """The folder of its programs."""
        return self.folder / ("node_modules/.bin" if self.npm else "bin")

    @property
    def installed(self) -> bool:
        """Whether just these versions are there."""
        try:
            record = json.loads((self.folder / "installed.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        return bool(record["packages"] == list(self.packages))

    def ready(self, home: Path, url: str) -> Ready:
        """Write its files into *home*, and return how to start it there."""

        def filled(text: str) -> str:
            for name, value in (("bin", self.bin), ("home", home), ("url", url)):
                text = text.replace("{" + name + "}", str(value))
            return text

        for name, content in self.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content, indent=2)
            path.write_text(filled(text), encoding="utf-8")
        (home / "tmp").mkdir(exist_ok=True)
        env = {"HOME": "{home}", "TMPDIR": "{home}/tmp", "PATH": "{bin}:" + _path()}
        env |= QUIET | dict(self.env)
        return Ready(
            command=[filled(part) for part in self.command],
            before=[[filled(part) for part in command] for command in self.before],
            env={name: filled(value) for name, value in env.items()},
        )


@dataclass(frozen=True)
class Ready:
    """How to start an agent in a home that is set up: commands, and the whole environment."""

    command: list[str]
    before: list[list[str]]
    env: dict[str, str]


def _path() -> str:
    """Return the search path without the folders of this Python's environment."""
    own = Path(shutil.which("python") or "python").parent
    return os.pathsep.join(
        part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(part) != own
    )


QUIET = {
    "DO_NOT_TRACK": "1",
    "DISABLE_TELEMETRY": "1",
    "NO_UPDATE_NOTIFIER": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "LANG": "C.UTF-8",
}

OPENCODE = Recipe(
    name="opencode",
    npm=["opencode-ai@1.18.33"],
    command=["{bin}/opencode", "acp"],
    env={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    },
    files={
        ".config/opencode/opencode.json": {
            "provider": {
                "stub": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "Stub",
                    "options": {"baseURL": "{url}/v1", "apiKey": KEY},
                    "models": {
                        MODEL: {
                            "name": "Stub",
                            "tool_call": True,
                            "limit": {"context": 200_000, "output": 32_000},
                        }
                    },
                }
            },
            "enabled_providers": ["stub"],
            "model": f"stub/{MODEL}",
            "small_model": f"stub/{MODEL}",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"bash": "ask", "edit": "ask"},
        }
    },
    in_ci=True,
    refused="ends",
)

GEMINI = Recipe(
    name="gemini",
    npm=["@google/gemini-cli@0.61.0"],
    command=["{bin}/gemini", "--acp"],
    env={
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": "{url}",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    },
    files={
        ".gemini/settings.json": {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
        }
    },
    auth_method="gemini-api-key",
    in_ci=True,
    # Most often it says that there were no sessions, and seldom it finds the one there was.
    resumes=None,
)

CODEX_CONFIG = f"""\
model = "gpt-5.5"
model_provider = "stub"
approval_policy = "untrusted"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.stub]
name = "stub"
base_url = "{{url}}/v1"
wire_api = "responses"
env_key = "STUB_KEY"
request_max_retries = 1
stream_max_retries = 1
stream_idle_timeout_ms = 60000

[model_providers.stub.http_headers]
x-key = "{KEY}"
"""

CODEX = Recipe(
    name="codex",
    npm=["@zed-industries/codex-acp@0.16.0"],
    command=["{bin}/codex-acp"],
    env={"STUB_KEY": KEY, "CODEX_HOME": "{home}/.codex"},
    files={".codex/config.toml": CODEX_CONFIG},
    in_ci=True,
    refused="ends",
    failing="error",
)

CODEX_NEW = replace(
    CODEX,
    name="codex-new",
    npm=["@agentclientprotocol/codex-acp@2.6.0", "@openai/codex@0.166.0"],
    files={".codex/config.toml": CODEX_CONFIG.replace('"untrusted"', '"on-request"')},
    mode="read-only",
    in_ci=False,
    asks=frozenset({"write"}),
    failing="text",
)

CLAUDE = Recipe(
    name="claude",
    npm=["@agentclientprotocol/claude-agent-acp@0.49.0"],
    command=["{bin}/claude-agent-acp"],
    env={
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": "claude-sonnet-4-5",
        "ANTHROPIC_SMALL_FAST_MODEL": "claude-haiku-4-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": "{home}/.claude",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
    },
    files={
        ".claude/settings.json": {},
        ".claude/.claude.json": {"hasCompletedOnboarding": True},
    },
    in_ci=True,
)

CLAUDE_ZED = replace(
    CLAUDE,
    name="claude-zed",
    npm=["@zed-industries/claude-agent-acp@0.23.1"],
)

COPILOT = Recipe(
    name="copilot",
    npm=["@github/copilot@1.0.102"],
    command=["{bin}/copilot", "--acp", "--no-auto-update"],
    env={
        "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_MODEL": MODEL,
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "200000",
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "32000",
    },
    in_ci=True,
    refused="ends",
    failing="text",
)

CLINE = Recipe(
    name="cline",
    npm=["cline@3.0.65"],
    command=["{bin}/cline", "--acp"],
    env={
        "CLINE_API_KEY": KEY,
        "CLINE_PROVIDER": "openai-compatible",
        "CLINE_MODEL": MODEL,
        "CLINE_NO_AUTO_UPDATE": "1",
        "CLINE_TELEMETRY_DISABLED": "1",
    },
    before=[
        [
            *("{bin}/cline", "auth", "-p", "openai-compatible"),
            *("-k", KEY, "-m", MODEL, "-b", "{url}/v1"),
        ]
    ],
)

PI = Recipe(
    name="pi",
    npm=["pi-acp@0.0.34", "@earendil-works/pi-coding-agent@1.6.0", "node@22.23.3"],
    command=["{bin}/node", "{bin}/pi-acp"],
    env={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
    files={
        ".pi/agent/models.json": {
            "providers": {
                "stub": {
                    "baseUrl": "{url}/v1",
                    "api": "openai-completions",
                    "apiKey": KEY,
                    "models": [
                        {
                            "id": MODEL,
                            "reasoning": False,
                            "contextWindow": 200_000,
                            "maxTokens": 32_000,
                        }
                    ],
                }
            }
        },
        ".pi/agent/settings.json": {
            "defaultProvider": "stub",
            "defaultModel": MODEL,
            "quietStartup": True,
            "enableInstallTelemetry": False,
            "retry": {"enabled": False},
        },
    },
    asks=frozenset(),
    failing="nothing",
)

FAST_AGENT = Recipe(
    name="fast-agent",
    pypi=["fast-agent-mcp==0.10.48"],
    python="3.12",
    command=[
        *("{bin}/fast-agent-acp", "-x", "--config-path", "{home}/fastagent.config.yaml"),
        *("--model", f"generic.{MODEL}", "--home", "{home}/.fast-agent"),
    ],
    env={"GENERIC_API_KEY": KEY, "GENERIC_BASE_URL": "{url}/v1"},
    files={
        # JSON is YAML.
        "fastagent.config.yaml": {
            "default_model": f"generic.{MODEL}",
            "generic": {"api_key": KEY, "base_url": "{url}/v1"},
            "logger": {"type": "none", "progress_display": False},
        }
    },
    asks=frozenset(),
    tail=True,
)

VIBE = Recipe(
    name="vibe",
    pypi=["mistral-vibe==3.0.2"],
    python="3.12",
    command=["{bin}/vibe-acp"],
    env={"STUB_KEY": KEY, "VIBE_HOME": "{home}/.vibe"},
    files={
        ".vibe/config.toml": f"""\
active_model = "stub"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false

[[providers]]
name = "stub"
api_base = "{{url}}/v1"
api_key_env_var = "STUB_KEY"
api_style = "openai"
backend = "generic"

[[models]]
name = "{MODEL}"
provider = "stub"
alias = "stub"
"""
    },
    asks=frozenset({"shell"}),
)

DEEPAGENTS = Recipe(
    name="deepagents",
    pypi=["deepagents-acp==0.0.13", "deepagents==0.7.32", "langchain-anthropic==1.7.10"],
    command=["{bin}/python", "{home}/agent.py"],
    files={
        "agent.py": f"""\
import asyncio
import os

from acp import run_agent
from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from deepagents_acp.server import AgentServerACP
from langchain_anthropic import ChatAnthropic
from langgraph.checkpoint.memory import MemorySaver

agent = create_deep_agent(
    model=ChatAnthropic(
        model="claude-sonnet-4-5", base_url="{{url}}", api_key="{KEY}", max_retries=1
    ),
    checkpointer=MemorySaver(),
    backend=LocalShellBackend(root_dir=os.getcwd(), virtual_mode=False),
    interrupt_on={{"execute": True, "write_file": True}},
)
asyncio.run(run_agent(AgentServerACP(agent)))
"""
    },
    in_ci=True,
    failing="error",
    resumes=False,
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        OPENCODE,
        GEMINI,
        CODEX,
        CODEX_NEW,
        CLAUDE,
        CLAUDE_ZED,
        COPILOT,
        CLINE,
        PI,
        FAST_AGENT,
        VIBE,
        DEEPAGENTS,
    )
}


def chosen(names: Sequence[str] = WANTED) -> list[Recipe]:
    """Return the recipes of these names; without any, those for CI there, and all elsewhere.

    :raises ValueError: there is no recipe of a name.
    """
    unknown = [name for name in names if name not in (*RECIPES, "all")]
    if unknown:
        raise ValueError(f"no recipe for {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    if not names and IN_CI:
        return [recipe for recipe in RECIPES.values() if recipe.in_ci]
    if not names or "all" in names:
        return list(RECIPES.values())
    return [RECIPES[name] for name in dict.fromkeys(names)]
