"""Links that violate the WebSocket protocol, at a real node: closed, and others continue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.reader import JournalReader
from dovetail.model.hop import Reason, Stage
from dovetail.runtime.limited_log import MAX_LINES_PER_S
from dovetail.runtime.won_server import NodeOptions, NodeServer
from dovetail.won import compose as c
from dovetail.won import vocabulary as v
from dovetail.won.settings import WonSettings
from dovetail.won.trig import encode_bundle
from system.pcp_raw import RawClient, Refused
from system.pcp_site import until
from won.won_samples import ALICE, KEYS, build

pytestmark = pytest.mark.system
PATH = "/won/resource/link/owner"
ATOM = "http://node/won/resource/atom/deaf"


@contextlib.asynccontextmanager
async def node(tmp_path, **limits) -> AsyncIterator[NodeServer]:
    """A node without TLS."""
    options = NodeOptions(
        uri="http://node/won/resource",
        host="127.0.0.1",
        port=0,
        journal=tmp_path / "journal.db",
        settings=WonSettings(**limits),
    )
    server = NodeServer(options, Ed25519PrivateKey.generate())
    try:
        await server.start()
        yield server
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
        async with node(tmp_path) as server:
            port = server._acceptor.port
            good, bad = await RawClient.open(port, PATH), await RawClient.open(port, PATH)
            misbehave(bad)
            assert await bad.closed_with() == code
            good.send_frame(9, b"still there")
            assert await good.receive_frame() == (10, b"still there")

    asyncio.run(scenario())


def test_links_that_break_the_rules_are_logged_with_their_address_and_not_all_of_them(tmp_path, caplog):
    async def scenario() -> None:
        async with node(tmp_path) as server:
            bad = await RawClient.open(server._acceptor.port, PATH)
            BAD["a reserved bit"][1](bad)
            assert await bad.closed_with() == 1002
            for number in range(100):
                server._links.refused(b"", f"in {number + 2}", Reason.MALFORMED, 1)

    asyncio.run(scenario())
    lines = [record.message for record in caplog.records if "is closed" in record.message]
    assert lines[0].startswith("link in 1 is closed peer=127.0.0.1:")
    assert len(lines) <= 1 + MAX_LINES_PER_S


def test_links_of_one_address_are_limited(tmp_path):
    async def scenario() -> None:
        async with node(tmp_path, max_links_per_address=2) as server:
            port = server._acceptor.port
            first = await RawClient.open(port, PATH)
            await RawClient.open(port, PATH)
            with pytest.raises(Refused) as refused:
                await RawClient.open(port, PATH)
            assert refused.value.status == 503
            first.writer.close()
            await until(lambda: server._links.count == 1)
            await RawClient.open(port, PATH)

    asyncio.run(scenario())


def test_keys_are_fetched_in_turns_of_the_addresses_whose_messages_need_them(tmp_path):
    asked = []

    async def fetch(uri: str, source: str | None) -> None:
        asked.append((uri, source))

    async def scenario() -> None:
        async with node(tmp_path) as server:
            server._links.fetches.fetch = fetch
            peer = await RawClient.open(server._acceptor.port, PATH.replace("owner", "node"))
            peer.send_frame(1, encode_bundle((build(),)))
            await until(lambda: asked)
            await until(lambda: not server._links.count)
        assert asked == [(ALICE, "127.0.0.1")]

    asyncio.run(scenario())


def test_a_node_that_stops_reads_no_more_and_closes_whoever_sends_on_and_does_not_read(tmp_path):
    async def scenario() -> None:
        received = 0
        async with node(tmp_path) as server:
            handle = server._links.frame

            def count(data, link, is_text):
                nonlocal received
                received += 1
                handle(data, link, is_text)

            server._links.frame = count
            links = [await RawClient.open(server._acceptor.port, PATH) for _ in range(50)]
            description = [(f"<{ATOM}>", v.P_TEXT, c.literal("x" * 200_000), "")]
            message = build(
                v.MessageType.CREATE,
                signer=ATOM,
                envelope=[(v.P_ATOM, f"<{ATOM}>")],
                content=c.atom_content(ATOM, [f"{ATOM}#chat"], KEYS[ALICE].public, description),
            )
            data = encode_bundle((message,))

            async def send_on(peer: RawClient) -> None:
                while True:
                    peer.send_frame(1, data)
                    await peer.writer.drain()

            for each in links:
                each.writer.transport.pause_reading()
            sending = [asyncio.ensure_future(send_on(each)) for each in links]
            await until(lambda: server._links.unsent.used_bytes, timeout_s=60)
            before = received
            await server.stop()
            assert received == before
            await until(lambda: not server._links.count)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        with JournalReader.open(tmp_path / "journal.db") as reader:
            stages = [hop.stage for hop in reader.hops()]
        assert [stages.count(stage) for stage in (Stage.ACCEPTED, Stage.CREATED)] == [1, 1]

    asyncio.run(scenario())


def test_messages_of_all_links_that_are_not_whole_share_the_budget(tmp_path):
    async def scenario() -> None:
        async with node(tmp_path, memory_bytes=8 << 20) as server:
            port = server._acceptor.port
            good = await RawClient.open(port, PATH)
            bad = [await RawClient.open(port, PATH) for _ in range(3)]
            for peer in bad:
                peer.send_frame(2, b"x" * 900_000, length=9_000_000)
            closing = [asyncio.create_task(peer.closed_with()) for peer in bad]
            done, still_open = await asyncio.wait(closing, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() in (1011, 1006) for task in done] == [True]
            assert len(still_open) == 2
            good.send_frame(9, b"still there")
            assert await good.receive_frame() == (10, b"still there")

    asyncio.run(scenario())
