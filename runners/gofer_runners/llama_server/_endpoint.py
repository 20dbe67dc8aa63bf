"""Where a server is: the addresses of its API, and how to speak of it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from gofer import ConfigError

__all__ = ["Endpoint"]

_VERSION = re.compile(r"/v\d+[a-z0-9]*(/|$)")
_CHAT = "/chat/completions"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server: ``chat`` and ``models`` are the addresses to ask.

    ``shown`` is the base address without what may be secret in it. ``secure``: over TLS.
    ``loopback``: it is on this machine, so no proxy stands between.
    """

    chat: str
    models: str
    shown: str
    secure: bool
    loopback: bool

    @classmethod
    def parse(cls, base_url: str) -> Endpoint:
        """Return the endpoint of *base_url*: with or without ``/v1``, or all of the chat address.

        :raises ConfigError: it is no http or https address.
        """
        text = base_url.strip()
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, _ = parts.hostname, parts.port
        except ValueError:
            parts, host = SplitResult("", "", "", "", ""), None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(
                f"base_url {_hidden(text)!r} is no http or https address: "
                "write it like http://127.0.0.1:8080/v1"
            )
        path = parts.path.rstrip("/").removesuffix(_CHAT)
        if path == parts.path.rstrip("/") and not _VERSION.search(path):
            path += "/v1"
        netloc = parts.netloc.rpartition("@")[2]
        return cls(
            chat=parts._replace(path=path + _CHAT, fragment="").geturl(),
            models=parts._replace(path=path + "/models", fragment="").geturl(),
            shown=f"{parts.scheme}://{netloc}{path}",
            secure=parts.scheme == "https",
            loopback=_is_loopback(host),
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _hidden(url: str) -> str:
    return re.sub(r"[^/]*@", "***@", url.partition("?")[0])
