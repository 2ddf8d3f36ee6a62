"""Runs the web application on a socket until it is stopped."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from dovetail.dashboard.app import build_app
from dovetail.dashboard.guard import Access
from dovetail.dashboard.hub import Hub, Sources
from dovetail.runtime.limited_log import LimitedLog
from dovetail.runtime.listening import listening

MAX_CONNECTIONS = 128
REQUEST_TIMEOUT_S = 10.0
_STOP_SECONDS = 3

log = logging.getLogger("dovetail.dashboard")


class _RequestLog(LimitedLog):
    """What uvicorn expects of the logger of a connection."""

    level = logging.WARNING

    def error(self, text: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        """An error of ours."""
        log.error(text.strip(), *arguments, exc_info=exc_info)


class TimedProtocol(H11Protocol):
    """Ends connections on which no request arrives, or whose response is not read.

    By itself uvicorn does the first only after a response, and the second never. At the limit a new connection takes
    the place of one that waits for nothing. What uvicorn logs goes where the rest of our log goes, at a limited rate.
    """

    def __init__(self, log: _RequestLog, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.logger = log  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        if len(self.connections) >= MAX_CONNECTIONS - 1:  # with as many as that, uvicorn refuses requests
            waiting = (each for each in self.connections if isinstance(each, TimedProtocol) and each.is_idle)
            for silent in itertools.islice(waiting, 1):
                silent.transport.abort()
        super().connection_made(transport)
        self.loop.call_later(REQUEST_TIMEOUT_S, self._look, None, 0)

    def send_400_response(self, msg: str) -> None:
        """Bytes arrived that are not HTTP, perhaps while a request is being answered: then that answer is not sent."""
        if self.is_idle:
            super().send_400_response(msg)
            return
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        if self.cycle.response_started:
            self.transport.abort()
        else:
            super().send_400_response(msg)

    @property
    def is_idle(self) -> bool:
        """True if it is open and no request is being answered."""
        return not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete)

    def _look(self, last: RequestResponseCycle | None, last_unread_bytes: int) -> None:
        """End the connection if the last request is still `last`, and was answered or its answer is not read."""
        if self.transport.is_closing():
            return
        unread_bytes = self.transport.get_write_buffer_size()
        if self.cycle is last and (self.is_idle or unread_bytes == last_unread_bytes > 0):
            self.transport.abort()
        else:
            self.loop.call_later(REQUEST_TIMEOUT_S, self._look, self.cycle, unread_bytes)


def configure(app: ASGIApp) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http=cast(Any, partial(TimedProtocol, _RequestLog(log, "requests are refused"))),
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
