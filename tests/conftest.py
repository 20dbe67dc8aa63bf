"""What all tests share."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import anyio
import hypothesis
import pytest

from gofer import ModelError
from gofer._config_sources import OTHER_VARIABLES, PREFIX
from gofer_runners.llama_server import _weights

# How long an example takes says more about the machine than about the code.
# On CI the examples are the same each time: a failure there is one that the change brought.
hypothesis.settings.register_profile(
    "gofer", deadline=None, derandomize=os.environ.get("CI") == "true"
)
hypothesis.settings.load_profile("gofer")

# Whoever starts the tests in the background may ignore these, and every process that a test
# starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _name in ("SIGHUP", "SIGTERM"):
    if hasattr(signal, _name):
        signal.signal(getattr(signal, _name), signal.SIG_DFL)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each async test on both event loops."""
    return str(request.param)


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep a user's own settings, trust and variables out of the tests, and theirs out of it."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    return home


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """Return the default model's file; without it or xllamacpp skip, but fail under CI."""
    lacking = None
    if importlib.util.find_spec("xllamacpp") is None:
        lacking = "xllamacpp is not installed: pip install 'gofer[local]'"
    else:
        try:
            return anyio.run(_weights.default_file)
        except ModelError as error:
            lacking = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(lacking)
    pytest.skip(lacking)
