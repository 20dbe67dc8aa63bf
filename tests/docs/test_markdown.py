"""The documentation: links lead somewhere, and code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# ```python, up to the closing fence; a comment right above may say why a block cannot be run.
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?^```python\n(?P<code>.*?)^```$", re.M | re.S
)
FENCE = re.compile(r"^(```|~~~).*?^\1$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *#*$", re.M)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        while anchor in found:
            anchor += "-1"
        found.add(anchor)
    return found


def broken_links(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for groups in LINK.findall(FENCE.sub("", text)):
        link = groups[0] or groups[1]
        parts = urlsplit(link)
        if parts.scheme:
            if parts.scheme not in ("https", "mailto", "http"):
                yield link
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if (
            not target.exists()
            or not target.is_relative_to(ROOT)
            or (
                parts.fragment
                and target.suffix == ".md"
                and parts.fragment not in anchors(target.read_text(encoding="utf-8"))
            )
        ):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=[name(page) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A `title`, with more\n[a](#a-title-with-more) [b](page.md#nowhere) [c](gone.md)\n"
        "![d](gone.png) [e](https://host.test/x) [f](ftp://host.test) [g](../out.md)\n"
        "```\n[h](gone.md)\n# no heading\n```\n[i](#no-heading)\n"
    )
    assert list(broken_links(page)) == [
        "page.md#nowhere", "gone.md", "gone.png", "ftp://host.test", "../out.md", "#no-heading",
    ]  # fmt: skip


def blocks() -> Iterator[object]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("code")) + 1
            yield pytest.param(block["code"], block["why"], id=f"{name(page)}:{line}")


def run_code(args: list[str], cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", *args],
        cwd=cwd,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")


@pytest.mark.parametrize(("code", "why"), list(blocks()))
def test_code_of_the_documentation_runs(code: str, why: str | None, tmp_path: Path) -> None:
    compile(code, "<block>", "exec", flags=0x2000)  # await at the top level is allowed
    if why is not None:
        return
    path = tmp_path / "block.py"
    path.write_text(code, encoding="utf-8")
    run_code([str(path)], tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=[name(path) for path in EXAMPLES])
def test_examples_run(example: Path, tmp_path: Path) -> None:
    run_code([str(example)], tmp_path)
