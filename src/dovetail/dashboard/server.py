"""Runs the web application on a socket until it is stopped."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from dovetail.dashboard.app import build_app
from dovetail.dashboard.guard import Access
from dovetail.dashboard.hub import Hub, Sources
from dovetail.runtime.listening import listening

MAX_CONNECTIONS = 128
REQUEST_TIMEOUT_S = 10.0
_STOP_SECONDS = 3


class TimedProtocol(H11Protocol):
    """Ends connections on which no request arrives; by itself uvicorn does that only after a response.

    At the limit a new connection takes the place of one that waits for nothing.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        if len(self.connections) >= MAX_CONNECTIONS - 1:  # with as many as that, uvicorn refuses requests
            waiting = (each for each in self.connections if isinstance(each, TimedProtocol) and each.is_idle)
            for silent in itertools.islice(waiting, 1):
                silent.transport.abort()
        super().connection_made(transport)
        self.loop.call_later(REQUEST_TIMEOUT_S, self._look, None)

    @property
    def is_idle(self) -> bool:
        """True if it is open and no request is being answered."""
        return not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete)

    def _look(self, last: RequestResponseCycle | None) -> None:
        """End the connection if the last request is still `last`, and that was answered."""
        if self.transport.is_closing():
            return
        if self.is_idle and self.cycle is last:
            self.transport.abort()
        else:
            self.loop.call_later(REQUEST_TIMEOUT_S, self._look, self.cycle)


def configure(app: ASGIApp) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )


def serve(sources: Sources, access: Access, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives; `on_ready` gets the URL of the page."""
    with listen(host, port) as listener:
        hub = Hub(sources)
        config = configure(build_app(sources, access, hub))
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
