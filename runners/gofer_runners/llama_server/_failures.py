"""What went wrong with a request, said so that one knows what to do."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any

from gofer import ContextOverflowError, ModelError

from ._endpoint import Endpoint

__all__ = ["answered", "excerpt", "is_loading", "message_of", "not_reached"]

_SHOWN = 2000
_OVERFLOW_TYPES = ("exceed_context_size_error", "context_length_exceeded")
_OVERFLOW_WORDS = re.compile(r"context (length|size|window)|maximum context|too many tokens", re.I)


def excerpt(body: bytes | str, secret: str | None = None) -> str:
    """Return *body* as readable text of bounded length, without the key."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    if secret:
        text = text.replace(secret, "***")
    text = text.strip()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def message_of(said: Any) -> str:
    """Return the sentence in an error object, in any of the forms that servers use."""
    if isinstance(said, dict):
        for key in ("error", "message", "detail", "error_description", "type", "code"):
            if said.get(key):
                return message_of(said[key])
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)


def answered(
    endpoint: Endpoint,
    url: str,
    status: int | None,
    body: bytes | Any,
    *,
    key: str | None = None,
    named: bool = True,
) -> ModelError:
    """Return the error for what a server answered instead of a completion.

    *body* is that of the answer, or the error object that a stream held; *key* the one that was
    sent; *named*: the request named a model.
    """
    said: Any = body
    if isinstance(body, bytes):
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            said = None
    shown_body = excerpt(body if isinstance(body, bytes) else _dump(said), key)
    message = excerpt(message_of(said), key) if said else _plain(shown_body)
    details = said.get("error", said) if isinstance(said, dict) else None
    details = details if isinstance(details, dict) else {}
    if status is None and details.get("code") in range(400, 600):
        status = details["code"]
    if _is_overflow(details, message, status):
        numbers = ""
        if isinstance(details.get("n_prompt_tokens"), int):
            numbers = f" ({details['n_prompt_tokens']} tokens"
            numbers += f" into {details['n_ctx']})" if details.get("n_ctx") else ")"
        return ContextOverflowError(
            f"context overflow: the request does not fit the model's context{numbers}: {message}. "
            f"Send less, or give the server at {endpoint.shown} a larger context",
            status,
            shown_body,
        )
    return ModelError(_sentence(endpoint, url, status, message, key, named), status, shown_body)


def _sentence(
    endpoint: Endpoint, url: str, status: int | None, message: str, key: str | None, named: bool
) -> str:
    where = endpoint.shown
    if status is None:
        return f"{where} reported an error: {message}"
    if status in (401, 403):
        advice = "the key in GOFER_API_KEY (or api_key) is not accepted there"
        if key is None:
            advice = "set GOFER_API_KEY (or api_key) to a key for it"
        return f"{where} refused the request ({status}: {message}): {advice}"
    if 300 <= status < 400:
        return f"{where} redirects ({status}): set base_url (GOFER_BASE_URL) to the final address"
    if status == 404:
        path = url.partition("?")[0].removeprefix(endpoint.shown)
        return (
            f"{where}{path} was not found ({message}): base_url (GOFER_BASE_URL) may lack its path "
            "or have /v1 twice, or the model may have another name there"
        )
    unnamed = "" if named else "; no model was named: set GOFER_MODEL (or model)"
    return f"{where} answered {status}: {message}{unnamed}"


def _is_overflow(details: dict[str, Any], message: str, status: int | None) -> bool:
    if details.get("type") in _OVERFLOW_TYPES or details.get("code") in _OVERFLOW_TYPES:
        return True
    return status in (400, 413, 422) and _OVERFLOW_WORDS.search(message) is not None


def _dump(said: Any) -> str:
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)


def _plain(body: str) -> str:
    if not body:
        return "an empty body"
    if body.startswith("<"):
        title = re.search(r"<title[^>]*>(.*?)</title", body, re.I | re.S)
        return f"an HTML page{': ' + ' '.join(title[1].split()) if title else ''}, not the API"
    return body


def is_loading(body: bytes) -> bool:
    """Whether a 503 says that the model is being loaded."""
    return b"loading" in body.lower()


def not_reached(
    error: Exception, endpoint: Endpoint, *, seconds: float | None, begun: bool
) -> ModelError:
    """Return the error for a failure of the connection; *begun*: part of the answer had come.

    *seconds* is the limit on silence, for the case that it was met.
    """
    import httpx

    where = endpoint.shown
    if isinstance(error, httpx.ConnectTimeout):
        said = f"no connection to {where} came about in time: is the address right?"
    elif isinstance(error, httpx.TimeoutException):
        said = f"{where} sent nothing for {seconds:g} s" if seconds else f"{where} timed out"
        said += ": it stalled" if begun else ": it is too busy, or hangs"
        said += "; read_timeout sets how long to wait"
    elif begun:
        said = f"the answer of {where} broke off: {_named(error)}"
    elif isinstance(error, httpx.ConnectError):
        causes = list(_causes(error))
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            said = (
                f"nothing listens at {where}: start the server, or set base_url "
                "(GOFER_BASE_URL) to where one is, or unset it"
            )
        elif any(isinstance(cause, socket.gaierror) for cause in causes):
            said = f"the host name in {where} is not known: check base_url (GOFER_BASE_URL)"
        elif any(isinstance(cause, ssl.SSLError) for cause in causes):
            said = f"no TLS connection to {where}: {_named(error)}"
        else:
            said = f"no connection to {where}: {_named(error)}"
    elif isinstance(error, httpx.RemoteProtocolError):
        said = f"{where} closed the connection, or does not speak HTTP: {_named(error)}"
    else:
        said = f"the request to {where} failed: {_named(error)}"
    return ModelError(said)


def _named(error: Exception) -> str:
    return f"{error}" if str(error) else type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                yield from _causes(inner)
        error = error.__cause__ or error.__context__
