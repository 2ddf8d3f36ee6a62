"""Access control for all requests: who may ask, by which method, and what a browser may do with the answer.

The Host header must be one of ours, so that a page elsewhere cannot reach a dashboard on loopback through a name it
controls. With a token, everything but the login and the state of health is closed. Comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.keys.files import read_bounded
from dovetail.model.errors import ConfigError

COOKIE = "dovetail_dashboard"
COOKIE_AGE_S = 12 * 3600
MIN_TOKEN_CHARS = 16
MAX_TOKEN_BYTES = 4_096
OPEN_PATHS = ("/login", "/static/", "/healthz")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """True if only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Read the token from a file; raises ConfigError if it is unsuitable."""
    token = read_bounded(path, MAX_TOKEN_BYTES, ConfigError).decode("ascii", errors="replace").strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{path}: a token is one line of printable ASCII without spaces")
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(f"{path}: a token of {len(token)} characters, expected at least {MIN_TOKEN_CHARS}")
    return token


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask: the names this server answers to, and the token if one is needed."""

    host: str
    names: frozenset[str] = frozenset()
    token: str | None = None

    @classmethod
    def build(cls, host: str, names: Iterable[str] = (), token: str | None = None) -> Access:
        """Derive the names from the listen address."""
        known = {host.lower(), *(name.lower() for name in names)}
        if is_loopback(host):
            known |= {"localhost", "127.0.0.1", "::1"}
        else:
            known |= {socket.gethostname().lower()}
        return cls(host, frozenset(known), token)

    def admits_host(self, header: str) -> bool:
        """True if a Host header names us. Off loopback any plain IP address does: only names can be rebound."""
        name = _host_name(header)
        if name in self.names:
            return True
        return not is_loopback(self.host) and _is_address(name)

    def admits(self, headers: Headers) -> bool:
        """True if a request has the token, or none is needed."""
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and _is_same(given.strip(), self.token)
        return is_bearer or _is_same(_cookie_in(headers), self.cookie())

    def cookie(self) -> str:
        """The value of the cookie: proof of the token, not the token."""
        return hmac.new((self.token or "").encode(), b"dovetail dashboard", hashlib.sha256).hexdigest()


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._choose(scope)(scope, receive, send_guarded)

    def _choose(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        path: str = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this server only answers GET\n", 405, {"Allow": "GET, HEAD"})
        if not self._access.admits_host(headers.get("host", "")):
            return PlainTextResponse("this name is not one of this server's; start it with --allow-host NAME\n", 421)
        if path.startswith(OPEN_PATHS) or self._access.admits(headers):
            return self._app
        if path.startswith("/api/") or "text/html" not in headers.get("accept", ""):
            return PlainTextResponse("a token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
        return RedirectResponse("/login", 303)


def _host_name(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie_in(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
