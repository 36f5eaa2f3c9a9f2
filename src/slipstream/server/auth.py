"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from slipstream.errors import AuthenticationError

EXEMPT_PATHS = frozenset({"/health", "/ready"})
"""Probes carry no keys. `/metrics` does need one: behind a proxy every peer looks local, so the
peer's address proves nothing, and Prometheus can send an authorization header."""


class Authentication:
    """Asks for `Authorization: Bearer KEY` if there are keys; else lets everybody in."""

    def __init__(self, app: ASGIApp, api_keys: Iterable[str]) -> None:
        self._app = app
        keys = (key.encode("utf-8", "surrogateescape") for key in api_keys)
        self._digests = tuple(hashlib.sha256(key).digest() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._digests and scope["path"] not in EXEMPT_PATHS:
            self._check(Headers(scope=scope).get("authorization", ""))
        await self._app(scope, receive, send)

    def _check(self, header: str) -> None:
        scheme, _, key = header.partition(" ")
        key = key.strip(" \t")  # and no more: the last byte of a letter may be a Latin-1 space
        if scheme.lower() != "bearer" or not key:
            raise AuthenticationError(
                "an API key is needed; send it in the header Authorization: Bearer KEY"
            )
        # Headers are bytes, which Starlette reads as Latin-1.
        given = hashlib.sha256(key.encode("latin-1")).digest()
        # All keys are compared, each in constant time, so that timing tells nothing about them.
        if sum(hmac.compare_digest(given, digest) for digest in self._digests) == 0:
            raise AuthenticationError("the API key is not one of this server's")
