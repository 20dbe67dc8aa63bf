"""The tables of settings: every key stands there, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gofer import AgentConfig, agents
from gofer_runners.acp import AcpAgent

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| .+ \|$", re.M)
FIELDS = {**AgentConfig.model_fields, **AcpAgent.model_fields}


def rows() -> dict[str, str]:
    """Return the default of each key of an agent's, as the page has it."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| key | default |") :].partition("\n\n")[0]
    return dict(ROW.findall(table))


def test_every_key_of_an_agents_settings_is_there_and_no_other() -> None:
    assert set(rows()) == {*FIELDS, "args"}


@pytest.mark.parametrize("key", FIELDS)
def test_its_default_is_the_one_that_holds(key: str) -> None:
    default = FIELDS[key].default
    told = rows()[key]
    if isinstance(default, bool):
        assert told == str(default).lower()
    elif isinstance(default, float):
        assert told == f"{default:g}"
    elif isinstance(default, str):
        assert told == f"`{default}`"
    else:
        assert told in ("none", "the agent's", "the child's own", "all of gofer's own") or (
            key == "command"
        )


def test_what_gofer_knows_better_of_an_agent_is_told_too() -> None:
    text = PAGE.read_text(encoding="utf-8")
    paragraph = text[text.index("For a few agents gofer knows better") :].partition("\n\n")[0]
    for agent in agents.AGENTS.values():
        assert (agent.name in paragraph) == bool(agent.settings)
        for key, value in agent.settings.items():
            assert f"`{key}`" in paragraph
            assert isinstance(value, str) or re.search(rf"\b{value:g}\b", paragraph)
