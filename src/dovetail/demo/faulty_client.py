"""A client of the broker that does what no honest client does: any bytes, any id, and no reading."""

from __future__ import annotations

import asyncio
import socket
import uuid

import picows
from msgspec import UNSET, UnsetType

from dovetail.demo.site import Site
from dovetail.model.address import address_of
from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.pcp.uri import BROKER_URI
from dovetail.pcp.vocabulary import ASSOCIATE_REQUEST

_ANSWER_S = 15.0
_RECEIVE_BYTES = 4_096


class Rogue(picows.WSListener):
    """One connection. `associate` in version 1; in version 2 the broker knows it at once."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._transport: picows.WSTransport | None = None
        self._heard = asyncio.Event()

    @classmethod
    async def connect(cls, site: Site, uri: str, *, version: int = 1) -> Rogue:
        """Open a connection with a certificate of its own."""
        name, kind = uri.removeprefix("pcp://").split("/")
        url = site.broker_url if version == 1 else f"{site.broker_url_v2}/{kind}"
        _, rogue = await picows.ws_connect(lambda: cls(uri), url, ssl_context=site.client_context(name))
        assert isinstance(rogue, cls)
        return rogue

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        """picows: the handshake is done."""
        self._transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:  # noqa: ARG002
        """picows: a frame came; what it says does not matter."""
        self._heard.set()

    async def associate(self, now: int) -> None:
        """Make the broker know us."""
        self.send(self.frame(ASSOCIATE_REQUEST, BROKER_URI, now + 60_000_000))
        await self.wait_answer()

    def frame(
        self,
        kind: str,
        target: str,
        expires_us: int,
        data: bytes | None = None,
        message_id: str = "",
        answers: str | UnsetType = UNSET,
    ) -> bytes:
        """A message of ours, as bytes."""
        number, expires = message_id or str(uuid.uuid4()), time_text(expires_us)
        return encode_frame(Envelope(number, kind, expires, [target], self.uri, in_reply_to=answers), data)

    def send(self, data: bytes) -> str:
        """Send bytes, whatever they are; their address."""
        assert self._transport is not None
        self._heard.clear()
        self._transport.send(picows.WSMsgType.BINARY, data)
        return address_of(data).hex()

    async def wait_answer(self) -> None:
        """Wait for anything from the broker since the last `send`."""
        async with asyncio.timeout(_ANSWER_S):
            await self._heard.wait()

    def stop_reading(self) -> None:
        """Be slow: leave everything that comes in the kernel's buffers, and have small ones."""
        assert self._transport is not None
        underlying = self._transport.underlying_transport
        underlying.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        underlying.pause_reading()

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)
