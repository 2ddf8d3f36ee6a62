"""The connection of a PCP client: the transport of its driver."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence

from dovetail.model.errors import ConnectFailed
from dovetail.model.wire import CLOSE_ABNORMAL, CLOSE_NORMAL, CloseLink, LinkId, OpenLink, Outgoing, SendFrames
from dovetail.pcp.client import Client
from dovetail.pcp.client_events import ClientEvent
from dovetail.pcp.vocabulary import CLOSE_NO_CERTIFICATE, CLOSE_REVOKED, CLOSE_SUPERSEDED
from dovetail.runtime.driver import Driver
from dovetail.runtime.limits import Limits
from dovetail.runtime.loop import LoopClock
from dovetail.runtime.websocket import Link, LinkHandler, dial

_CLOSES = {
    CLOSE_NO_CERTIFICATE: "accepts only certificates with exactly one common name",
    CLOSE_REVOKED: "has closed the connection: the certificate is revoked",
    CLOSE_SUPERSEDED: "has closed the connection: another client associated with the same URI",
}
"""What a broker means by these close codes."""


class ClientWire(LinkHandler[LinkId]):
    """The client's links, of which only the latest counts: the transport of its driver."""

    def __init__(
        self,
        core: Client,
        url: str,
        limits: Limits,
        context: ssl.SSLContext | None,
        server_hostname: str | None,
    ) -> None:
        self._core = core
        self._url = url
        self._limits = limits
        self._context = context
        self._server_hostname = server_hostname
        self._is_text = core.version != 1
        self._connecting: asyncio.Task[None] | None = None
        self.link: Link | None = None
        self.is_gone = asyncio.Event()
        self.is_writable = asyncio.Event()
        self.is_writable.set()

    def drive(
        self, on_events: Callable[[list[ClientEvent]], None], on_failure: Callable[[Exception], None]
    ) -> Driver[ClientEvent]:
        """Start on the running event loop."""
        self._driver: Driver[ClientEvent] = Driver(
            self._core, None, self, LoopClock(), durability="relaxed", on_events=on_events, on_failure=on_failure
        )
        self.frame = self._driver.receive  # type: ignore[method-assign]
        return self._driver

    async def close(self) -> None:
        """Close the connection, and wait until the socket is closed."""
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        if self.link is not None:
            self.link.close(CLOSE_NORMAL)
            await self.is_gone.wait()

    def opened(self, link: Link, label: str) -> None:  # noqa: ARG002
        """The broker accepted the connection."""
        name: LinkId = link.id
        self.link = link
        self.is_gone.clear()
        self._driver.call(lambda now: self._core.receive_opened(name, now))

    def paused(self, link: LinkId) -> None:  # noqa: ARG002
        """The kernel takes no more: senders wait."""
        self.is_writable.clear()

    def resumed(self, link: LinkId) -> None:  # noqa: ARG002
        """The kernel has taken everything."""
        self.is_writable.set()

    def closed(self, link: LinkId, code: int) -> None:
        """The connection is closed."""
        if self.link is not None and self.link.id == link:
            self.link = None
            self.is_gone.set()
            self.is_writable.set()
        self._report_closed(link, code, _CLOSES.get(code, f"closed the connection with code {code}"))

    def _report_closed(self, link: LinkId, code: int, detail: str) -> None:
        self._driver.receive_closed(link, lambda now: self._core.receive_closed(link, now, code, detail))

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading."""
        if self.link is not None:
            self.link.set_reading(wanted)

    def send(self, outgoing: Sequence[Outgoing], made_at: int) -> None:  # noqa: ARG002
        """Open, write and close; frames for an earlier link are dropped."""
        for item in outgoing:
            match item:
                case SendFrames(links=(link,), frames=frames):
                    if self.link is not None and self.link.id == link:
                        for data in frames:
                            self.link.send(data, is_text=self._is_text)
                case OpenLink(link=link):
                    self._connecting = asyncio.get_running_loop().create_task(self._connect(link))
                case CloseLink(link=link):
                    if self.link is not None and self.link.id == link:
                        self.link.close(CLOSE_NORMAL)
                case _:
                    raise AssertionError(f"a pcp client sends no {type(item).__name__}")

    async def _connect(self, link: LinkId) -> None:
        if self.link is not None:
            await self.is_gone.wait()  # one connection at a time
        try:
            await dial(
                self, self._url, link, tls=self._context, limits=self._limits, server_hostname=self._server_hostname
            )
        except ConnectFailed as error:
            self._report_closed(link, CLOSE_ABNORMAL, error.reason)
