"""`delivered` means that the kernel accepted it: the client can read it, whichever side ends the connection."""

import asyncio
import socket

import pytest

from dovetail.model.hop import Stage
from pcp.pcp_frames import read_v1
from system.pcp_raw import Closed, RawClient
from system.pcp_site import MemoryJournal, Site, broker, until

pytestmark = pytest.mark.system

COUNT = 60
SIZE = 100_000


async def open_slow(port: int, context: object) -> RawClient:
    """A client that reads its association and then nothing."""
    client = await RawClient.associate(port, "pcp://slow/agent", context)
    client.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.writer.transport.pause_reading()
    return client


async def read_rest(client: RawClient) -> set[str]:
    """The ids of the messages that the kernel still has for it."""
    found = set()
    client.writer.transport.resume_reading()
    try:
        while True:
            opcode, payload = await asyncio.wait_for(client.receive_frame(), 10)
            if opcode == 2:
                found.add(read_v1(payload)[0]["id"])
    except Closed:
        return found


def delivered(journal: MemoryJournal, stages: tuple[Stage, ...]) -> list[str]:
    """The ids of the messages to the slow client with one of these outcomes."""
    ids = {
        seen.message: read_v1(seen.raw)[0]["id"]
        for seen in journal.observations
        if seen.stage is Stage.ACCEPTED and seen.raw and b"/ping" in seen.raw
    }
    return [ids[seen.message] for seen in journal.observations if seen.message in ids and seen.stage in stages]


@pytest.mark.parametrize("durability", ["relaxed", "full"])
@pytest.mark.parametrize("ending", ["stop", "abort"])
@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_journaled_as_delivered_was_taken_by_the_kernel(tmp_path, durability, ending, has_tls, at_once):
    async def scenario() -> None:
        journal = MemoryJournal()
        site = Site(tmp_path) if has_tls else None
        more = {"drain_timeout_ms": 200, "durability": durability, **(site.settings if site else {})}
        async with broker(journal, **more) as server:
            sender = await RawClient.associate(server.port, "pcp://a/agent", site.client("a") if site else None)
            slow = await open_slow(server.port, site.client("slow") if site else None)
            (link,) = [one for one in server._connections.values() if server.broker._sessions[one.id].uri == slow.uri]
            sent = []
            for _ in range(COUNT):
                sent.append(sender.send_v1("http://example.com/ping", [slow.uri], b"x" * SIZE))
                if not at_once:
                    await asyncio.sleep(0)
            await until(lambda: len(delivered(journal, (Stage.ACCEPTED,))) == COUNT)
            if ending == "stop":
                await server.stop()
            else:
                link.abort()
                await until(lambda: server.broker.connection_count == 1)
            handed = delivered(journal, (Stage.DELIVERED,))
            received = await read_rest(slow)
            assert len(handed) == len(set(handed)) < COUNT
            assert set(handed) <= received
            assert len(received) - len(handed) <= has_tls  # encrypted bytes are slightly more than those of the frames

    asyncio.run(scenario())


def test_what_the_kernel_did_not_take_is_redelivered():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal) as server:
            sender = await RawClient.associate(server.port, "pcp://a/agent")
            slow = await open_slow(server.port, None)
            sent = [sender.send_v1("http://example.com/ping", [slow.uri], b"x" * SIZE) for _ in range(COUNT)]
            await until(lambda: len(delivered(journal, (Stage.ACCEPTED,))) == COUNT)
            (link,) = [one for one in server._connections.values() if server.broker._sessions[one.id].uri == slow.uri]
            link.abort()
            first = await read_rest(slow)
            again = await RawClient.associate(server.port, "pcp://slow/agent")
            second = [(await again.receive_v1())[0]["id"] for _ in range(COUNT - len(first))]
            assert [*[one for one in sent if one in first], *second] == sent
            await until(lambda: len(delivered(journal, (Stage.DELIVERED, Stage.REDELIVERED))) == COUNT)
            assert delivered(journal, (Stage.REDELIVERED,)) == second

    asyncio.run(scenario())
