"""``gofer config``: the settings in force, and the trust in a project's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _trust
from ._cli_output import write
from ._config_sources import Source, dotted, project_file, read_file, user_file
from .errors import ConfigError

if TYPE_CHECKING:
    from .config import Config

__all__ = ["app"]

app = typer.Typer(invoke_without_command=True, add_completion=False)

PathArgument = Annotated[
    Path | None,
    typer.Argument(help="The file, or a directory of the project; by default the one here."),
]


@app.callback()
def config(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the settings in force, and where each comes from.

    A project's file is gofer.toml, or pyproject.toml with a table tool.gofer. Your own settings
    go before it, GOFER_* variables before those.
    """
    if context.invoked_subcommand is not None:
        return
    from ._masked import masked
    from .config import load_config

    loaded = load_config()
    values = masked((), loaded)
    if as_json:
        files = [str(path) for path in loaded.files]
        write(json.dumps({"files": files, "values": values, "origins": loaded.origins}, indent=2))
        return
    for path in loaded.files:
        write(f"# read: {path}")
    if user_file() not in loaded.files:
        write(f"# your own settings would be in: {user_file()}")
    for key, value, origin in _settings(loaded, values):
        write(f"{key} = {value}  # {origin}")


@app.command()
def trust(path: PathArgument = None) -> None:
    """Let a project's file set what runs commands, names servers or widens limits.

    Read it first. A change to the file ends the trust.
    """
    from ._masked import masked
    from .config import check_values

    source = _source(path)
    check_values(source)
    keys = _trust.needs_trust(source.data)
    assert source.path is not None
    if not keys:
        write(f"{source.path} sets nothing that needs trust")
        return
    _trust.grant(source.path, source.content)
    write(f"trusted as it is now: {source.path}")
    for key in keys:
        write(f"  {key} = {_shown(masked((key,), source.data[key]))}")


@app.command()
def untrust(path: PathArgument = None) -> None:
    """Take the trust in a project's file back."""
    # The file may be gone: the trust in it can go all the same.
    file = path if path is not None and not path.is_dir() else _project(path)
    known = _trust.revoke(file)
    write(f"{'no longer trusted' if known else 'was not trusted'}: {file}")


def _source(path: Path | None) -> Source:
    return read_file(_project(path) if path is None or path.is_dir() else path)


def _project(directory: Path | None) -> Path:
    directory = (directory or Path.cwd()).resolve()
    found = project_file(directory)
    if found is None:
        raise ConfigError(
            f"{directory} is in no project with settings: there is no gofer.toml, and no "
            "pyproject.toml with a table [tool.gofer]"
        )
    return found


def _settings(loaded: Config, values: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (dotted(key), _shown(_at(values, key)), loaded.origin(*key)) for key in loaded.leaf_keys()
    ]


def _at(values: Any, key: tuple[str | int, ...]) -> Any:
    for part in key:
        values = values[part]
    return values


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
