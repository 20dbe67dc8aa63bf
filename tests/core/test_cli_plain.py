"""A plain ``gofer run`` is read as the library reads it that reads every command line."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gofer import _cli_run
from gofer._cli_begin import Ended, begin
from gofer._cli_output import Format
from gofer._cli_plain import VALUES, read
from gofer.cli import app

DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(begin).parameters.items()
    if parameter.default is not parameter.empty
}


def understood(argv: list[str]) -> dict[str, Any] | None:
    """Return what the command gives to ``begin``, None where it refuses the command line."""
    given_: list[dict[str, Any]] = []

    def take(**asked: Any) -> Ended:
        given_.append(asked)
        return Ended(0, alone=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cli_run, "begin", take)
        CliRunner().invoke(app, argv)
    return given_[0] if given_ else None


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


options = st.sampled_from([option(name) for name in VALUES])
numbers = st.one_of(st.integers(0, 10**10).map(str), st.floats(0, 1e4).map(str))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
values = st.one_of(numbers, st.sampled_from(["json", "quiet", "text", "--json", "-"]), texts)
words = st.one_of(
    st.tuples(options, values),
    st.builds("{}={}".format, options, values).map(lambda word: (word,)),
    st.sampled_from([("--json",), ("--",), ("-h",), ("--help",), ("--no-json",), ("--agen", "x")]),
    texts.map(lambda word: (word,)),
)
plain_words = st.from_regex(r"[\w/.:@]([\w /.:@=-]*[\w/.])?", fullmatch=True)
plain_values = {
    float: st.integers(1, 10**6).map(str),
    Format: st.sampled_from([*Format]).map(str),
}
plain = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(option(name)), plain_values.get(VALUES[name], plain_words))
)
command_lines = st.lists(st.one_of(plain, plain, words), max_size=5).flatmap(
    lambda given_: st.permutations([*given_, ("do it",)])
)


@given(command_lines)
@example([("--agent", "a"), ("--tool=b",), ("--tool", "c"), ("fix\nthis",), ("--json",)])
@example([("--cwd", "./a/../b"), ("--timeout", "1.5"), ("go",)])
@example([("--agent=",), ("go",)])
@example([("--idle_timeout", "1"), ("go",)])
def test_what_is_read_is_what_the_library_reads(line: list[tuple[str, ...]]) -> None:
    argv = ["run", *(word for given_ in line for word in given_)]
    asked = read(argv, {})
    if asked is not None:
        assert {**DEFAULTS, **asked} == understood(argv)


@given(st.lists(plain, max_size=4, unique_by=lambda words: words[0]), plain_words)
def test_what_is_common_is_read(line: list[tuple[str, str]], task: str) -> None:
    argv = ["run", "--json", *(word for given_ in line for word in given_), task]
    asked = read(argv, {})
    assert asked is not None
    assert {"as_json", "task"} < asked.keys() if line else asked == {"as_json": True, "task": task}


def test_each_option_of_the_command_is_known() -> None:
    command = typer.main.get_command(app).get_command(None, "run")  # type: ignore[attr-defined]
    names = {name for param in command.params for name in param.opts if name.startswith("--")}
    assert names - {"--help"} == {"--json", *map(option, VALUES)}


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["run"],
        ["plugins"],
        ["-v", "run", "go"],
        ["run", "go", "on"],
        ["run", "-"],
        ["run", " "],
        ["run", "caf\udce9"],
        ["run", "go", "--agent"],
        ["run", "go", "--agent", "a", "--agent", "b"],
        ["run", "go", "--timeout", "soon"],
        ["run", "go", "--format", "JSON"],
        ["run", "go", "--help"],
    ],
)
def test_what_is_rare_doubtful_or_wrong_is_left(argv: list[str]) -> None:
    assert read(argv, {}) is None


def test_what_completes_a_command_line_runs_nothing() -> None:
    assert read(["run", "go"], {"_GOFER_COMPLETE": "complete_bash"}) is None
