"""Runs the web application on a socket, until it is told to stop."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable

import uvicorn

from dovetail.dashboard.app import build_app
from dovetail.dashboard.guard import Access
from dovetail.dashboard.hub import Hub, Sources
from dovetail.model.errors import ConfigError

MAX_CONNECTIONS = 128
_STOP_SECONDS = 3


def serve(sources: Sources, access: Access, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until a signal comes; `tell` is given the address of the page."""
    with listen(host, port) as listener:
        hub = Hub(sources)
        config = uvicorn.Config(
            build_app(sources, access, hub),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        server = uvicorn.Server(config)
        hub.is_stopping = lambda: server.should_exit
        bound = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        tell(f"dashboard on http://{shown}:{bound}/ (Ctrl-C ends it)")
        # uvicorn raises the signal again once it has stopped; being told to stop is no failure
        signal.signal(signal.SIGTERM, _ignore)
        server.run(sockets=[listener])


def _ignore(number: int, frame: object) -> None:
    """Does nothing."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError says what is in the way and what to do."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except socket.gaierror:
        raise ConfigError(f"--host {host!r} is not an address of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use: stop what uses it, or choose another one with --port"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"--host {host} is not an address of this machine") from None
        if error.errno == errno.EACCES:
            raise ConfigError(f"port {port} needs privileges: choose one above 1023 with --port") from None
        raise
