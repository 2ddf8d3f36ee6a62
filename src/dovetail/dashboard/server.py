"""Runs the web application on a socket until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn

from dovetail.dashboard.app import build_app
from dovetail.dashboard.guard import Access
from dovetail.dashboard.hub import Hub, Sources
from dovetail.runtime.listening import listening

MAX_CONNECTIONS = 128
_STOP_SECONDS = 3


def serve(sources: Sources, access: Access, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives; `on_ready` gets the URL of the page."""
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

        def stop(number: int, frame: object) -> None:  # noqa: ARG001
            server.should_exit = True

        # for signals before uvicorn has installed its handlers, and when it raises the signal again after stopping
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            on_ready(f"dashboard on http://{shown}:{bound}/ (Ctrl-C ends it)")
            runner.run(server.serve(sockets=[listener]))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ResourceBusy says what prevents it and what to do."""
    with listening("tcp", host, port):
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
