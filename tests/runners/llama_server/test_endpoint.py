"""Addresses as people write them."""

from __future__ import annotations

import pytest

from gofer import ConfigError
from gofer_runners.llama_server._endpoint import Endpoint


@pytest.mark.parametrize(
    ("base_url", "chat"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        (" http://h:1/v1/ ", "http://h:1/v1/chat/completions"),
        ("h:1", "http://h:1/v1/chat/completions"),
        ("http://[::1]:1", "http://[::1]:1/v1/chat/completions"),
        ("https://h/llama", "https://h/llama/v1/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4/chat/completions"),
        ("https://h/x/chat/completions", "https://h/x/chat/completions"),
        ("https://h/x?version=2#part", "https://h/x/v1/chat/completions?version=2"),
    ],
)
def test_chat_address(base_url: str, chat: str) -> None:
    endpoint = Endpoint.parse(base_url)
    assert endpoint.chat == chat
    assert endpoint.models == chat.replace("/chat/completions", "/models")
    assert endpoint.secure == chat.startswith("https")


def test_what_may_be_secret_is_not_shown() -> None:
    endpoint = Endpoint.parse("https://user:secret@h:1/x?key=secret")
    assert endpoint.shown == "https://h:1/x/v1"
    assert "user:secret@" in endpoint.chat
    assert "key=secret" in endpoint.chat


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h:port", "http://[::1", "://h"])
def test_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="write it like http"):
        Endpoint.parse(url)


def test_a_wrong_address_is_quoted_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint.parse("ftp://user:secret@h/?key=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("a.localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("0.0.0.0", True),
        ("[::1]", True),
        ("192.168.0.1", False),
        ("localhost.example", False),
        ("example.org", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert Endpoint.parse(f"http://{host}:8080").loopback == loopback
