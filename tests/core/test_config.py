"""Settings: what may be said, where, and who wins."""

from __future__ import annotations

import itertools
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from gofer import ConfigError, _trust
from gofer._config_sources import VARIABLES, project_file, read_project, user_file
from gofer._masked import MASK, masked
from gofer.config import AgentConfig, Config, load_config


def toml(value: Any) -> str:
    """Write a value as TOML; tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {toml(item)}' for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def write(path: Path, data: dict[str, Any], table: str = "") -> Path:
    """Write settings to a file, under a table's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"[{table}]"] if table else []
    lines += [f"{key} = {toml(value)}" for key, value in data.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def trust(path: Path) -> None:
    _trust.grant(path, path.read_bytes())


def load(cwd: Path, overrides: Any = None, **variables: str) -> Config:
    return load_config(cwd, overrides, {f"GOFER_{key}": text for key, text in variables.items()})


def refused(cwd: Path, overrides: Any = None, **variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(cwd, overrides, **variables)
    return str(caught.value)


# What there is by default


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.model_dump() == {
        "default_runner": "internal",
        "max_depth": 1,
        "max_pending": 1024,
        "max_concurrent": {"acp": 8, "*": 64},
        "timeout": None,
        "idle_timeout": None,
        "disable": [],
        "allow": None,
        "strict": False,
        "base_url": None,
        "model": None,
        "api_key": None,
        "runners": {},
        "plugins": {},
        "agents": {},
    }
    assert set(config.origins.values()) == {"default"}
    assert config.files == ()


def test_a_config_of_ones_own_needs_no_files() -> None:
    config = Config(model="m", agents={"mine": AgentConfig(runner="internal")})
    assert config.origins["model"] == "argument"
    assert config.origins["agents.mine.runner"] == "argument"
    assert config.origins["timeout"] == "default"
    with pytest.raises(ValidationError):
        Config(max_dept=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given_limit", "acp", "other"),
    [(3, 3, 3), ({"acp": 2}, 2, 64), ({"*": 5}, 5, 5), ({"other": 1}, 8, 1), ({}, 8, 64)],
)
def test_concurrency(tmp_path: Path, given_limit: Any, acp: int, other: int) -> None:
    config = load(tmp_path, {"max_concurrent": given_limit})
    assert (config.concurrency("acp"), config.concurrency("other")) == (acp, other)
    assert Config(max_concurrent=given_limit).concurrency("acp") == acp


def test_a_number_for_all_replaces_what_was_said_of_some(tmp_path: Path) -> None:
    write(tmp_path / "gofer.toml", {"max_concurrent": {"acp": 1, "other": 2}})
    config = load(tmp_path, MAX_CONCURRENT="5")
    assert config.max_concurrent == {"*": 5}
    assert config.origins["max_concurrent.*"] == "GOFER_MAX_CONCURRENT"
    narrower = load(tmp_path, {"max_concurrent": {"acp": 3}}, MAX_CONCURRENT="5")
    assert narrower.max_concurrent == {"*": 5, "acp": 3}


# Which file


def test_the_nearest_pyproject_that_has_the_table(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", {"model": "far"}, "tool.gofer")
    write(tmp_path / "a/pyproject.toml", {"model": "near"}, "tool.gofer")
    write(tmp_path / "a/b/pyproject.toml", {"name": "gofer"}, "project")
    deep = tmp_path / "a/b/c"
    deep.mkdir()
    config = load(deep)
    assert config.model == "near"
    assert config.origins["model"] == f"{tmp_path}/a/pyproject.toml:tool.gofer.model"
    assert config.files == (tmp_path / "a/pyproject.toml",)


def test_an_empty_table_ends_the_search(tmp_path: Path) -> None:
    write(tmp_path / "gofer.toml", {"model": "far"})
    write(tmp_path / "a/pyproject.toml", {}, "tool.gofer")
    assert load(tmp_path / "a").model is None


def test_gofer_toml_wins_in_one_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "pyproject.toml", {"model": "table"}, "tool.gofer")
    write(tmp_path / "gofer.toml", {"model": "file"})
    config = load(tmp_path)
    assert config.model == "file"
    assert config.origins["model"] == f"{tmp_path}/gofer.toml:model"
    assert "pyproject.toml is not" in caplog.text


def test_the_users_own_file_is_no_projects() -> None:
    write(user_file(), {"base_url": "http://mine.test/v1"})
    config = load(user_file().parent)
    assert config.base_url == "http://mine.test/v1"
    assert project_file(user_file().parent) is None


def test_somebody_elses_broken_pyproject_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("{{ template }}")
    assert load(tmp_path).files == ()


def test_a_table_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\ngofer = 3\n")
    assert refused(tmp_path) == (
        f"{tmp_path}/pyproject.toml:tool.gofer: should be a table, [tool.gofer]"
    )


# Files that cannot be read


@pytest.mark.parametrize("name", ["gofer.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    ("content", "line"),
    [(b"[tool.gofer]\n[a\n", 2), (b"[tool.gofer]\nx = 1\nx = 2", 3), (b'[tool.gofer]\n\na = "', 3)],
)
def test_broken_toml_names_file_and_line(
    tmp_path: Path, name: str, content: bytes, line: int
) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{tmp_path / name}: line {line}: not valid TOML: " in refused(tmp_path)


def test_text_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "gofer.toml").write_bytes('strict = true\nmodel = "é"\n'.encode("latin-1"))
    assert refused(tmp_path) == (
        f"{tmp_path}/gofer.toml: line 2: not UTF-8 text; save the file as UTF-8"
    )
    (tmp_path / "gofer.toml").write_bytes("strict = true".encode("utf-16"))
    assert "not UTF-8" in refused(tmp_path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "gofer.toml").write_bytes('model = "m"\r\n'.encode("utf-8-sig"))
    assert load(tmp_path).model == "m"


@pytest.mark.parametrize("name", ["gofer.toml", "pyproject.toml"])
def test_no_ordinary_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert f"{tmp_path / name}: should be a file" in refused(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_keep_us_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gofer.toml")
    assert "should be a file" in refused(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "gofer.toml", {"model": "m"})

    def deny(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", deny)
    assert refused(tmp_path) == f"{path}: cannot be read: Permission denied"


def test_deep_nesting(tmp_path: Path) -> None:
    (tmp_path / "gofer.toml").write_text("a = " + "[" * 100_000)
    assert refused(tmp_path) == f"{tmp_path}/gofer.toml: nested too deeply"


def test_the_current_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(environ={})


# Wrong keys and values


def test_a_wrong_key_names_file_key_and_what_is_allowed(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", {"max_dept": 2}, "tool.gofer")
    message = refused(tmp_path)
    assert message.startswith(f"{tmp_path}/pyproject.toml:tool.gofer.max_dept: there is no such")
    assert "did you mean max_depth?" in message
    for key in Config.model_fields:
        assert key in message


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("strict", "yes", "should be true or false, not 'yes'"),
        ("max_depth", True, "not True (allowed: a whole number, at least 0)"),
        ("max_depth", -1, "greater than or equal to 0, not -1"),
        ("max_pending", 0, "at least 1"),
        ("timeout", 0, 'seconds, more than 0, or "none"'),
        ("timeout", "10", "should be a number, not '10'"),
        ("timeout", True, "should be a number, not True"),
        ("base_url", "localhost:8080", "an http or https URL, not 'localhost:8080'"),
        ("base_url", "http://host:port", "an http or https URL"),
        ("disable", "delegation", "list of names"),
        ("model", "", "the name of a model"),
        ("runners", 3, "table"),
        ("runners", {"acp": 3}, "table, not 3"),
        ("agents", {"mine": {"runner": 3}}, "string, not 3"),
        ("max_concurrent", {"acp": 0}, "at least 1"),
        ("max_concurrent", "many", "at least 1"),
    ],
)
def test_a_wrong_value_names_file_key_and_what_is_allowed(
    tmp_path: Path, key: str, value: Any, told: str
) -> None:
    path = write(tmp_path / "gofer.toml", {key: value})
    message = refused(tmp_path)
    assert message.startswith(f"{path}:{key}")
    assert told in message
    assert "\n" not in message
    assert refused(tmp_path.parent, {key: value}).startswith(f"argument {key}")


@pytest.mark.parametrize("value", ["nan", "inf", "2020-01-01"])
def test_values_that_only_toml_has(tmp_path: Path, value: str) -> None:
    (tmp_path / "gofer.toml").write_text(f"timeout = {value}")
    assert f"{tmp_path}/gofer.toml:timeout: " in refused(tmp_path)
    (tmp_path / "gofer.toml").write_text("runners.x.since = 2020-01-01")
    assert "runners.x.since: should be a value that JSON can hold" in refused(tmp_path)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    write(tmp_path / "gofer.toml", {"strickt": True, "max_depth": "x"})
    assert len(refused(tmp_path).splitlines()) == 2


def test_a_table_in_a_file_that_is_one(tmp_path: Path) -> None:
    (tmp_path / "gofer.toml").write_text("[tool.gofer]\nmodel = 'm'\n")
    assert "tool: there is no such key; in gofer.toml they stand at the top" in refused(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("base_url", "https://me:hunter2@host/v1", f"https://{MASK}@host/v1"),
        ("base_url", "https://host/v1?api-key=hunter2&x=y", f"https://host/v1?{MASK}"),
        ("base_url", "https://host/v1?hunter2#part", f"https://host/v1?{MASK}#part"),
        ("base_url", "https://host/v1", "https://host/v1"),
        ("accessToken", "hunter2", MASK),
        ("OPENAI_API_KEY", "hunter2", MASK),
        ("max_tokens", 3, 3),
        ("monkey", "business", "business"),
        (
            "args",
            ["--token=hunter2", "--token", "hunter2", "x"],
            [f"--token={MASK}", "--token", MASK, "x"],
        ),
        ("args", ["--api-key", "--verbose", "x"], ["--api-key", "--verbose", "x"]),
        ("env", {"HOME": "hunter2"}, {"HOME": MASK}),
        (
            "agents",
            {"a": {"env": {"inherit": ["PATH"], "unset": ["A"], "set": {"A": "hunter2"}}}},
            {"a": {"env": {"inherit": ["PATH"], "unset": ["A"], "set": {"A": MASK}}}},
        ),
        (
            "agents",
            {"a": {"env": {"inherit": "hunter2", "unset": {"A": "hunter2"}, "x": ["hunter2"]}}},
            {"a": {"env": {"inherit": MASK, "unset": {"A": MASK}, "x": [MASK]}}},
        ),
        (
            "agents",
            {"auth": {"command": ["a"], "token": "hunter2"}, "key": "hunter2"},
            {"auth": {"command": ["a"], "token": MASK}, "key": MASK},
        ),
        (
            "runners",
            {"internal": {"mcp_servers": {"auth": {"url": "u", "env": {"A": "hunter2"}}}}},
            {"internal": {"mcp_servers": {"auth": {"url": "u", "env": {"A": MASK}}}}},
        ),
        (
            "plugins",
            {"p": {"runners": {"env": {"A": "hunter2"}}, "agents": {"key": {"x": "hunter2"}}}},
            {"p": {"runners": {"env": {"A": MASK}}, "agents": {"key": {"x": MASK}}}},
        ),
        (
            "mcp_servers",
            {"s": {"env": {"inherit": ["hunter2"]}}},
            {"s": {"env": {"inherit": [MASK]}}},
        ),
        ("headers", {"inherit": ["hunter2"]}, {"inherit": [MASK]}),
    ],
)
def test_what_is_shown_of_a_value(key: str, value: Any, shown: Any) -> None:
    assert masked((key,), value) == shown


def test_no_message_tells_a_secret(tmp_path: Path) -> None:
    write(tmp_path / "gofer.toml", {"base_url": "ftp://me:hunter2@host"})
    assert "hunter2" not in refused(tmp_path)
    assert "hunter2" not in refused(tmp_path.parent, {"api_key": ["hunter2"]})
    assert "hunter2" not in refused(tmp_path.parent, {"runners": {"api_key": "hunter2"}})
    assert "hunter2" not in repr(load(tmp_path.parent, API_KEY="hunter2"))


# Variables


def test_every_plain_setting_has_its_variable(tmp_path: Path) -> None:
    assert set(VARIABLES.values()) == set(Config.model_fields) - {"runners", "plugins", "agents"}
    config = load(
        tmp_path,
        ALLOW="a, b",
        API_KEY=" key\n",
        BASE_URL="https://host.test/v1",
        DEFAULT_RUNNER="internal",
        DISABLE="dist:x,,y ",
        IDLE_TIMEOUT="1.5",
        MAX_CONCURRENT="2",
        MAX_DEPTH="3",
        MAX_PENDING="4",
        MODEL="m",
        STRICT="1",
        TIMEOUT="none",
    )
    assert config.allow == ["a", "b"]
    assert config.api_key is not None
    assert config.api_key.get_secret_value() == "key"
    assert config.base_url == "https://host.test/v1"
    assert config.default_runner == "internal"
    assert config.disable == ["dist:x", "y"]
    assert config.idle_timeout == 1.5
    assert config.concurrency("acp") == 2
    assert (config.max_depth, config.max_pending) == (3, 4)
    assert config.model == "m"
    assert config.strict is True
    assert config.timeout is None
    assert config.origins["timeout"] == "GOFER_TIMEOUT"
    assert config.origins["disable"] == "GOFER_DISABLE"


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("MAX_DEPTH", "deep", "GOFER_MAX_DEPTH: should be a valid integer, not 'deep'"),
        ("STRICT", "maybe", "GOFER_STRICT: should be true or false, not 'maybe'"),
        ("TIMEOUT", "nan", "GOFER_TIMEOUT: should be a finite number"),
        ("BASE_URL", "host", "GOFER_BASE_URL: should be an http or https URL, not 'host'"),
        ("MAX_CONCURRENT", "0", "GOFER_MAX_CONCURRENT: should be greater"),
        ("MAX_DEPTH", "1_0", "GOFER_MAX_DEPTH: should be a valid integer"),
        ("MAX_PENDING", "\u0661", "GOFER_MAX_PENDING: should be a valid integer"),
        ("TIMEOUT", "1_0.5", "GOFER_TIMEOUT: should be a number, not '1_0.5'"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, variable: str, text: str, told: str) -> None:
    assert told in refused(tmp_path, **{variable: text})


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    assert load(tmp_path, MODEL="", MAX_DEPTH=" ").origins["model"] == "default"


def test_an_unknown_variable_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, TIMOUT="3")
    assert "GOFER_TIMOUT is no variable that gofer knows; did you mean GOFER_TIMEOUT?" in (
        caplog.text
    )


def test_variables_for_other_uses_are_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gofer")
    load(tmp_path, DEPTH="1", DEPTH_LIMIT="1", MODEL_FILE="x.gguf")
    assert caplog.text == ""


# Later wins

KEYS = st.sampled_from(["a", "b", "c.d"])
LEAVES = st.one_of(st.integers(0, 9), st.booleans(), st.lists(st.integers(0, 9), max_size=2))
TABLES = st.dictionaries(KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner)))
SOURCES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m1", "m2", "m3"]),
        "timeout": st.integers(1, 9),
        "strict": st.booleans(),
        "max_depth": st.integers(0, 1),
        "disable": st.lists(st.sampled_from(["x", "y"]), max_size=2),
        "max_concurrent": st.dictionaries(st.sampled_from(["acp", "other"]), st.integers(1, 8)),
        "runners": st.dictionaries(KEYS, TABLES, max_size=2),
    },
)
PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "MODEL": st.sampled_from(["m1", "m2", "m3"]),
        "TIMEOUT": st.integers(1, 9),
        "STRICT": st.booleans(),
        "MAX_DEPTH": st.integers(0, 1),
    },
)


def flat(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from flat(value, (*path, key))
        else:
            yield (*path, key), value


def model_of_precedence(found: list[dict[str, Any]]) -> dict[tuple[str, ...], tuple[int, Any]]:
    """Say for each leaf which source wins, in the plainest way: leaf by leaf, later over earlier.

    A leaf replaces a table at its place and the other way round; an empty table adds nothing to
    a table that is there.
    """
    model: dict[tuple[str, ...], tuple[int, Any]] = {}
    for number, data in enumerate(found):
        for path, value in flat(data):
            below = [old for old in model if old[: len(path)] == path and old != path]
            above = [old for old in model if path[: len(old)] == old and old != path]
            if value == {} and (below or model.get(path, (0, None))[1] == {}):
                if not below:
                    model[path] = number, {}
                continue
            for old in below + above:
                del model[old]
            model[path] = number, value
    return model


@contextmanager
def fresh_home() -> Iterator[Path]:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        home = Path(name).resolve()
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setenv("XDG_DATA_HOME", str(home / "data"))
        (home / "project").mkdir()
        yield home


def quoted(path: tuple[str, ...]) -> str:
    return ".".join(f'"{part}"' if "." in part else part for part in path)


@settings(max_examples=150)
@given(project=SOURCES, user=SOURCES, plain=PLAIN, arguments=SOURCES, as_config=st.booleans())
def test_precedence_and_origins(
    project: dict[str, Any],
    user: dict[str, Any],
    plain: dict[str, Any],
    arguments: dict[str, Any],
    as_config: bool,
) -> None:
    with fresh_home() as home:
        path = write(home / "project/gofer.toml", project)
        trust(path)
        write(user_file(), user)
        variables = {key: str(value) for key, value in plain.items()}
        given_last = Config(**arguments) if as_config else arguments
        config = load(home / "project", given_last, **variables)
        found = [project, user, {key.lower(): value for key, value in plain.items()}, arguments]
        expected = model_of_precedence(found)
        data = config.model_dump()
        origins = config.origins
        for leaf, (number, value) in expected.items():
            actual: Any = data
            for part in leaf:
                actual = actual[part]
            assert actual == value
            name = quoted(leaf)
            assert (
                origins[name]
                == [
                    f"{path}:{name}",
                    f"{user_file()}:{name}",
                    f"GOFER_{name.upper()}",
                    "argument",
                ][number]
            )
        unset = {key for key in Config.model_fields if key not in {leaf[0] for leaf in expected}}
        assert set(origins) == {quoted(leaf) for leaf in expected} | unset
        assert all(origins[key] == "default" for key in unset)


def test_none_as_an_argument_takes_a_limit_away(tmp_path: Path) -> None:
    write(tmp_path / "gofer.toml", {"timeout": 5})
    assert load(tmp_path).timeout == 5
    assert load(tmp_path, {"timeout": None}).timeout is None
    assert load(tmp_path, Config(timeout=None)).timeout is None
    assert load(tmp_path, Config()).timeout == 5


def test_a_loaded_config_is_taken_as_it_is(tmp_path: Path) -> None:
    config = load(tmp_path, MODEL="m")
    assert load(tmp_path, config, MODEL="other") is config


def test_what_was_given_is_not_changed(tmp_path: Path) -> None:
    arguments = {"max_concurrent": 3, "runners": {"a": {"b": [1]}}}
    config = load(tmp_path, arguments)
    config.runners["a"]["c"] = 1
    assert arguments == {"max_concurrent": 3, "runners": {"a": {"b": [1]}}}


# The settings of one runner or plugin


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    threads: int = 1
    hosts: dict[str, int] = {}


class Needy(BaseModel):
    command: str


def test_a_section_is_validated_by_its_own_model(tmp_path: Path) -> None:
    config = load(tmp_path, {"runners": {"mine": {"threads": 3}}})
    assert config.section("runners", "mine", Options) == Options(threads=3)
    assert config.section("plugins", "mine", Options) == Options()


def test_a_wrong_section_names_file_and_key() -> None:
    path = write(user_file(), {"runners": {"mine": {"thread": 3, "hosts": {"a": "x"}}}})
    config = load(path.parent, {"runners": {"mine": {"threads": "many"}}})
    with pytest.raises(ConfigError) as caught:
        config.section("runners", "mine", Options)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    told = "\n".join(sorted(lines))
    assert f"{path}:runners.mine.thread: there is no such key; did you mean threads?" in told
    assert f"{path}:runners.mine.hosts.a: should be a valid integer" in told
    assert "argument runners.mine.threads: should be a valid integer" in told


def test_a_section_that_lacks_something(tmp_path: Path) -> None:
    path = write(user_file(), {"plugins": {"mine": {"other": 1}}})
    with pytest.raises(ConfigError) as caught:
        load(tmp_path).section("plugins", "mine", Needy)
    assert str(caught.value) == f"{path}:plugins.mine: command is missing"
    with pytest.raises(ConfigError, match=r"^default: command is missing"):
        Config().section("plugins", "mine", Needy)


# Trust


def test_what_a_project_may_say_unasked(tmp_path: Path) -> None:
    harmless = {
        "model": "m",
        "strict": True,
        "timeout": 5,
        "idle_timeout": 5.5,
        "max_depth": 0,
        "max_pending": 1024,
        "max_concurrent": {"acp": 8, "*": 64, "other": 3},
    }
    write(tmp_path / "gofer.toml", harmless)
    assert load(tmp_path).model_dump(include=set(harmless)) == harmless


NEED_TRUST: dict[str, list[Any]] = {
    "agents": [{"mine": {"command": "rm"}}, {}],
    "allow": [["x"]],
    "api_key": ["key"],
    "base_url": ["http://elsewhere.test/v1"],
    "default_runner": ["acp"],
    "disable": [["guard"]],
    "max_concurrent": [9, {"acp": 9}, {"*": 9}, {"other": 65}, {"acp": 8, "*": 65}],
    "max_depth": [2],
    "max_pending": [1025],
    "plugins": [{"mine": {"a": 1}}],
    "runners": [{"mine": {"a": 1}}],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [pytest.param(key, value, id=key) for key, values in NEED_TRUST.items() for value in values],
)
def test_what_needs_trust(tmp_path: Path, key: str, value: Any) -> None:
    path = write(tmp_path / "pyproject.toml", {"model": "m", key: value}, "tool.gofer")
    message = refused(tmp_path)
    assert message.startswith(f"{path}: a project's file may set {key} only once you trust it")
    assert message.endswith(f"gofer config trust {path}")
    trust(path)
    assert load(tmp_path).origin(key).startswith(f"{path}:tool.gofer.{key}")
    path.write_text(path.read_text() + "# changed\n")
    assert refused(tmp_path) == message
    trust(path)
    assert load(tmp_path).model == "m"
    assert _trust.revoke(path) is True
    assert refused(tmp_path) == message
    assert _trust.revoke(path) is False


def test_every_setting_was_thought_of() -> None:
    # A new one needs trust until it is put into SAFE: this is the reminder to think of it.
    assert set(Config.model_fields) == set(NEED_TRUST) | {
        "idle_timeout",
        "model",
        "strict",
        "timeout",
    }
    assert _trust.needs_trust({"new": 1}) == ["new"]


def test_a_wrong_key_is_told_before_trust_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "gofer.toml", {"runer": {}})
    assert "did you mean runners?" in refused(tmp_path)


def test_users_variables_and_arguments_need_no_trust(tmp_path: Path) -> None:
    write(user_file(), {"base_url": "http://mine.test", "max_depth": 5})
    config = load(tmp_path, {"runners": {"a": {"b": 1}}}, MAX_PENDING="5000")
    assert (config.max_depth, config.max_pending) == (5, 5000)


def test_trust_is_of_the_place_and_not_of_what_a_link_leads_to(tmp_path: Path) -> None:
    real = write(tmp_path / "real/gofer.toml", {"disable": ["x"]})
    (tmp_path / "project").mkdir()
    link = tmp_path / "project/gofer.toml"
    link.symlink_to(real)
    trust(real)
    # Its settings would hold in another directory, where other commands and files are.
    refused(link.parent)
    trust(link)
    assert load(link.parent).disable == ["x"]
    write(real, {"disable": ["y"]})
    refused(link.parent)
    refused(real.parent)


def test_a_directory_is_the_same_by_all_its_names(tmp_path: Path) -> None:
    path = write(tmp_path / "real/gofer.toml", {"disable": ["x"]})
    (tmp_path / "link").symlink_to(path.parent, target_is_directory=True)
    trust(tmp_path / "link/gofer.toml")
    assert load(path.parent).disable == load(tmp_path / "link").disable == ["x"]


def test_the_same_content_elsewhere_is_not_trusted(tmp_path: Path) -> None:
    trust(write(tmp_path / "a/gofer.toml", {"disable": ["x"]}))
    write(tmp_path / "b/gofer.toml", {"disable": ["x"]})
    assert load(tmp_path / "a").disable == ["x"]
    refused(tmp_path / "b")


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["trust", "untrust", "write"]),
            st.integers(0, 1),
            st.integers(0, 2),
        ),
        max_size=12,
    )
)
def test_trust_holds_for_one_path_and_content(steps: list[tuple[str, int, int]]) -> None:
    with fresh_home() as home:
        content, trusted = [0, 0], [-1, -1]
        paths = [write(home / f"{n}/gofer.toml", {"disable": ["0"]}) for n in range(2)]
        for step, which, number in steps:
            if step == "trust":
                trust(paths[which])
                trusted[which] = content[which]
            elif step == "untrust":
                assert _trust.revoke(paths[which]) is (trusted[which] != -1)
                trusted[which] = -1
            else:
                write(paths[which], {"disable": [str(number)]})
                content[which] = number
            for path, holds, given_to in zip(paths, content, trusted, strict=True):
                source = read_project(path.parent)
                assert source is not None
                assert _trust.is_trusted(path, source.content) is (holds == given_to)


@pytest.mark.skipif(os.name == "nt", reason="POSIX file modes")
def test_the_note_of_it_is_private_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "gofer.toml", {"disable": ["x"]})
    trust(path)
    (note,) = _trust.store().iterdir()
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert stat.S_IMODE(note.parent.stat().st_mode) == 0o700
    before = note.read_bytes()

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path / "gofer.toml", {"disable": ["y"]})
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(ConfigError, match="No space left"):
                trust(path)
        assert [entry.read_bytes() for entry in _trust.store().iterdir()] == [before]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'"x"', b"{}"])
def test_a_damaged_note_trusts_nothing(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "gofer.toml", {"disable": ["x"]})
    trust(path)
    (note,) = _trust.store().iterdir()
    note.write_bytes(content)
    assert "gofer config trust" in refused(tmp_path)


def test_a_path_for_the_shell(tmp_path: Path) -> None:
    path = write(tmp_path / "it's here; rm/gofer.toml", {"disable": ["x"]})
    assert refused(path.parent).endswith(
        f"""gofer config trust '{tmp_path}/it'"'"'s here; rm/gofer.toml'"""
    )


def test_all_pairs_of_keys_are_named(tmp_path: Path) -> None:
    for one, other in itertools.combinations(sorted(NEED_TRUST), 2):
        write(tmp_path / "gofer.toml", {one: NEED_TRUST[one][0], other: NEED_TRUST[other][0]})
        assert f"may set {one}, {other} only once" in refused(tmp_path)
