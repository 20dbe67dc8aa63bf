"""What is configured of an agent: what its process finds, where it works, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer import ConfigError, GoferError, Host, SubagentSpec, _trust
from gofer.testing import fake_agent
from gofer_runners.acp import AcpAgent, AcpRunner, Environment

from .support import bench, say, sent, settings, turn

linux = pytest.mark.skipif(sys.platform != "linux", reason="agent processes are Linux's")

NAMES = [f"GOFER_TEST_{letter}" for letter in "ABC"]
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
changes = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | values), max_size=8)


@given(changes)
def test_it_is_gofers_own_as_it_is_now(made: list[tuple[str, str | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made:
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
            seen = Environment().variables()
            assert seen == dict(os.environ)
            seen["PATH"] = "somebody else's"  # it is a copy


def test_it_is_gofers_own_also_after_it_was_empty() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            patch.delenv(name)
        assert Environment().variables() == {}
    assert Environment().variables() == dict(os.environ)
    assert os.environ


@given(
    st.dictionaries(st.sampled_from(NAMES), values),
    st.booleans() | st.lists(st.sampled_from(NAMES)),
    st.dictionaries(st.sampled_from(NAMES), values),
    st.lists(st.sampled_from(NAMES)),
)
def test_it_is_inherited_unset_and_set_in_this_order(
    own: dict[str, str], inherit: bool | list[str], given_: dict[str, str], unset: list[str]
) -> None:
    names = NAMES if inherit is True else inherit or []
    expected = {n: own[n] for n in names if n in own and n not in unset}
    made = Environment(inherit=inherit, set=given_, unset=unset)
    assert made.variables(own) == {**expected, **given_}


# Where it works


@linux
@pytest.mark.anyio
@pytest.mark.parametrize("cwd", ["sub", "sub/../sub", "./sub/", "whole", "inner", ".", ""])
async def test_it_works_below_the_childs_directory(tmp_path: Path, cwd: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "inner").symlink_to("sub")
    place = str(tmp_path / "sub") if cwd == "whole" else cwd
    record = tmp_path / "record"
    script = turn(say("done"), options={"record": str(record)})
    async with bench(agents={"fake": settings(script, cwd=place)}, cwd=tmp_path) as b:
        assert (await b.run()).summary == "done"
    expected = tmp_path / "sub" if cwd not in (".", "") else tmp_path
    assert sent(record, "session/new")[0]["cwd"] == str(expected)


@linux
@pytest.mark.anyio
@pytest.mark.parametrize("cwd", ["/etc", "whole", "link", "link/x", "deep", "sub/up"])
async def test_it_never_works_outside_of_the_childs_directory(tmp_path: Path, cwd: str) -> None:
    own = tmp_path / "own"
    (own / "sub").mkdir(parents=True)
    (tmp_path / "owner").mkdir()
    (own / "link").symlink_to("/etc")
    (own / "deep").symlink_to("link")
    (own / "sub" / "up").symlink_to("../..")
    place = str(tmp_path / "owner") if cwd == "whole" else cwd
    async with bench(agents={"fake": settings(turn(say("x")), cwd=place)}, cwd=own) as b:
        result = await b.run()
        assert await b.pids() == set()
    assert not result.exit_ok
    said = f"argument agents.fake.cwd: leads out of the child's directory {str(own)!r}"
    assert str(result.error).startswith(said)


@linux
@pytest.mark.anyio
@pytest.mark.parametrize("cwd", ["..", "../../..", "sub/../..", "./../x"])
async def test_a_way_up_and_out_is_refused_before_the_child_starts(
    tmp_path: Path, cwd: str
) -> None:
    (tmp_path / "sub").mkdir()
    async with bench(agents={"fake": settings(turn(say("x")), cwd=cwd)}, cwd=tmp_path) as b:
        with pytest.raises(ConfigError) as caught:
            await b.run()
    assert str(caught.value) == (
        f"argument agents.fake.cwd: should be a directory below the child's own, not {cwd!r}"
    )


@linux
@pytest.mark.anyio
@pytest.mark.parametrize("cwd", ["gone", "sub/gone", "file", "file/x", "dangling"])
async def test_a_directory_that_is_none_is_told_with_its_path(tmp_path: Path, cwd: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("gone")
    async with bench(agents={"fake": settings(turn(say("x")), cwd=cwd)}, cwd=tmp_path) as b:
        error = str((await b.run()).error)
    assert error.startswith("argument agents.fake.cwd: ")
    if cwd.startswith("file"):
        assert f"{cwd!r} leads through something that is no directory" in error
    else:
        assert f"there is no directory {str(tmp_path / cwd)!r}" in error


@linux
@pytest.mark.anyio
async def test_a_relative_program_that_no_file_names_is_taken_from_the_hosts_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    program = own / "ag"
    words = fake_agent.command(turn(say("here")))
    program.write_text(f"#!{sys.executable}\nimport os\nos.execv({words[0]!r}, {words!r})\n")
    program.chmod(0o755)
    async with bench(agents={"fake": {"command": ["./ag"]}}, cwd=own) as b:
        for cwd in (None, "sub", "/"):
            assert (await b.run(cwd=cwd)).summary == "here"
        program.unlink()
    async with bench(agents={"fake": {"command": ["./ag"]}}, cwd=own) as b:
        error = str((await b.run()).error)
        assert f"No such file or directory ({str(program)!r})" in error


# What is refused

FILES = [("gofer.toml", "agents"), ("pyproject.toml", "tool.gofer.agents")]
TRUE = 'command = ["true"]\n'
CLOSEST = {
    "comand": "command",
    "arg": "args",
    "runer": "runner",
    "time_out": "timeout",
    "permission": "permissions",
}


async def refused(folder: Path, file: str, table: str, text: str) -> str:
    """Return why an agent with these settings cannot be used; all stand below *table*."""
    path = folder / file
    path.write_text(f"[{table}]\n{text}\n")
    _trust.grant(path, path.read_bytes())
    name = table.rpartition(".")[2]
    async with Host([AcpRunner()], discover=False, cwd=folder) as host:
        with pytest.raises(GoferError) as caught:
            await host.run(SubagentSpec(task="x", agent=name))
    return str(caught.value)


@pytest.mark.anyio
@pytest.mark.parametrize(("file", "table"), FILES)
@pytest.mark.parametrize("agent", ["mine", "opencode"])
@pytest.mark.parametrize("wrong", CLOSEST)
async def test_an_unknown_key_is_told_with_its_place_the_closest_and_all(
    tmp_path: Path, file: str, table: str, agent: str, wrong: str
) -> None:
    error = await refused(tmp_path, file, f"{table}.{agent}", f'{wrong} = ["x"]')
    where, _, allowed = error.partition("; allowed: ")
    assert where == (
        f"{tmp_path / file}:{table}.{agent}.{wrong}: there is no such key; "
        f"did you mean {CLOSEST[wrong]}?"
    )
    keys = {*AcpAgent.model_fields, "args", "runner", "timeout", "idle_timeout"}
    assert allowed == ", ".join(sorted(keys))


@pytest.mark.anyio
@pytest.mark.parametrize(("file", "table"), FILES)
@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("env = 3", "env: should be a table, not "),
        ("env.inherit = 'PATH'", "env.inherit: should be true, false or a list of names, not "),
        ("env.inherit = [1]", "env.inherit: should be true, false or a list of names, not "),
        ("env.set.A = 1", "env.set.A: should be a valid string, not"),
        ("config_options.a = 1.5", "config_options.a: should be a text, true or false, not 1.5"),
        ("start_timeout = 'x'", "start_timeout: should be a valid number, not 'x'"),
        ("start_timeout = 0", "start_timeout: should be greater than 0, not 0"),
        ("fs = 'maybe'", "fs: should be true or false, not 'maybe'"),
        ("permissions = 'no'", "permissions: should be 'approve', 'read-only', 'deny' or 'ask', "),
        ("roots = [1]", "roots.0: should be a valid string, not 1"),
        ("cwd = '..'", "cwd: should be a directory below the child's own, not '..'"),
    ],
)
async def test_a_wrong_value_is_told_with_its_place_and_not_with_all_keys(
    tmp_path: Path, file: str, table: str, entry: str, said: str
) -> None:
    error = await refused(tmp_path, file, f"{table}.mine", TRUE + entry)
    assert error.startswith(f"{tmp_path / file}:{table}.mine.{said}")
    assert "first_start_timeout" not in error
    assert "\n" not in error


@pytest.mark.anyio
@pytest.mark.parametrize(("file", "table"), FILES)
async def test_an_unknown_key_of_a_table_is_told_with_those_of_that_table(
    tmp_path: Path, file: str, table: str
) -> None:
    error = await refused(tmp_path, file, f"{table}.mine", TRUE + "env.inherits = true")
    assert error == (
        f"{tmp_path / file}:{table}.mine.env.inherits: there is no such key; "
        "did you mean inherit?; allowed: inherit, set, unset"
    )


@pytest.mark.anyio
@pytest.mark.parametrize(("file", "table"), FILES)
async def test_an_agent_without_a_command_is_told_with_its_place_and_its_likely_name(
    tmp_path: Path, file: str, table: str
) -> None:
    error = await refused(tmp_path, file, f"{table}.opncode", "permissions = 'deny'")
    assert error.startswith(f"{tmp_path / file}:{table}.opncode: command is missing, and ")
    assert "did you mean opencode?" in error
    assert "Add it" not in error


@pytest.mark.anyio
@pytest.mark.parametrize(("file", "table"), FILES)
async def test_a_program_that_is_missing_is_told_with_the_place_of_its_command(
    tmp_path: Path, file: str, table: str
) -> None:
    where = f"{tmp_path / file}:{table}.mine.command"
    error = await refused(tmp_path, file, f"{table}.mine", 'command = ["./ag"]')
    missing = f"{tmp_path / 'ag'} is no program that can be run"
    assert error == f"agent 'mine' is not installed: {missing}. To install it: check {where}"
    error = await refused(tmp_path, file, f"{table}.mine", 'command = [""]')
    assert error.startswith(f"{where}: its first word is empty")
