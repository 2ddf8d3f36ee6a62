"""A broker client that does what no honest client does: sends any bytes, any id, and does not read."""

from __future__ import annotations

import asyncio
import uuid

from msgspec import UNSET, UnsetType

from dovetail.demo.site import Site
from dovetail.model.address import address_of
from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.pcp.uri import BROKER_URI
from dovetail.pcp.vocabulary import ASSOCIATE_REQUEST
from dovetail.runtime.limits import Limits
from dovetail.runtime.websocket import Link, LinkHandler, dial

_ANSWER_S = 15.0
_LIMITS = Limits(max_message_bytes=1 << 20)


class FaultyClient(LinkHandler[str]):
    """One connection. `associate` in version 1; in version 2 the broker associates it immediately."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._link: Link
        self._heard = asyncio.Event()

    @classmethod
    async def connect(cls, site: Site, uri: str, *, version: int = 1) -> FaultyClient:
        """Open a connection with its own certificate."""
        name, kind = uri.removeprefix("pcp://").split("/")
        url = site.broker_url if version == 1 else f"{site.broker_url_v2}/{kind}"
        faulty = cls(uri)
        faulty._link = await dial(faulty, url, uri, tls=site.client_context(name), limits=_LIMITS)
        return faulty

    def frame(self, data: bytes, link: str, is_text: bool) -> None:  # noqa: ARG002
        """A message arrived; its content does not matter."""
        self._heard.set()

    async def associate(self, now: int) -> None:
        """Associate with the broker."""
        self.send(self.encode(ASSOCIATE_REQUEST, BROKER_URI, now + 60_000_000))
        await self.wait_answer()

    def encode(
        self,
        kind: str,
        target: str,
        expires_us: int,
        data: bytes | None = None,
        message_id: str = "",
        answers: str | UnsetType = UNSET,
    ) -> bytes:
        """Encode a message of ours."""
        number, expires = message_id or str(uuid.uuid4()), time_text(expires_us)
        return encode_frame(Envelope(number, kind, expires, [target], self.uri, in_reply_to=answers), data)

    def send(self, data: bytes) -> str:
        """Send bytes, whatever they are; returns their address."""
        self._heard.clear()
        self._link.send(data, is_text=False)
        return address_of(data).hex()

    async def wait_answer(self) -> None:
        """Wait for anything from the broker since the last `send`."""
        async with asyncio.timeout(_ANSWER_S):
            await self._heard.wait()

    def stop_reading(self) -> None:
        """Be slow: leave everything received in the kernel's buffers."""
        self._link.set_reading(False)

    def close(self) -> None:
        """Abort the connection."""
        self._link.abort()
