"""Links that break the rules of WebSocket, at a real node: closed, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.runtime.won_server import NodeOptions, NodeServer
from system.pcp_raw import RawClient

pytestmark = pytest.mark.system
PATH = "/won/resource/link/owner"


@contextlib.asynccontextmanager
async def node(tmp_path) -> AsyncIterator[int]:
    """A node without TLS; its port."""
    options = NodeOptions(uri="http://node/won/resource", host="127.0.0.1", port=0, journal=tmp_path / "journal.db")
    server = NodeServer(options, Ed25519PrivateKey.generate())
    try:
        yield await server.start()
    finally:
        await RawClient.close_all()
        await server.stop()


BAD = {
    "a continuation of nothing": (1002, lambda peer: peer.send_frame(0, b"lone")),
    "a reserved bit": (1002, lambda peer: peer.send_frame(1, b"x", reserved=2)),
    "a message inside another": (1002, lambda peer: [peer.send_frame(1, b"x", is_final=False) for _ in range(2)]),
    "too many empty fragments": (
        1009,
        lambda peer: [peer.send_frame(0 if number else 1, is_final=False) for number in range(16_385)],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_link_that_breaks_the_rules_is_closed(tmp_path, name):
    code, misbehave = BAD[name]

    async def scenario() -> None:
        async with node(tmp_path) as port:
            good, bad = await RawClient.open(port, PATH), await RawClient.open(port, PATH)
            misbehave(bad)
            assert await bad.closed_with() == code
            good.send_frame(9, b"still there")
            assert await good.receive_frame() == (10, b"still there")

    asyncio.run(scenario())
