"""A peer on its sockets when the journal waits or fails, and datagrams that are too old to be sent."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dovetail.model.errors import JournalError
from dovetail.model.wire import Datagrams
from dovetail.runtime.clock import now_us
from dovetail.runtime.swarm_node import SwarmNode
from dovetail.runtime.swarm_udp import MAX_HELD_US, SwarmUdp, format_endpoint
from dovetail.swarm.settings import SwarmSettings
from swarm.peers import Bench
from system.pcp_site import until


def test_datagrams_that_were_held_too_long_are_dropped():
    async def run() -> None:
        udp = SwarmUdp(Bench(now=now_us()).peer, None)
        await udp.start(["127.0.0.1:0"])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as neighbour:
            neighbour.bind(("127.0.0.1", 0))
            endpoint = format_endpoint(neighbour.getsockname())
            udp.send([Datagrams(endpoint, [b"old", b"older"])], now_us() - MAX_HELD_US - 1_000_000)
            assert udp.dropped == 2
            udp.send([Datagrams(endpoint, [b"young"])], now_us())
            neighbour.settimeout(5)
            assert neighbour.recv(100) == b"young"
        await udp.stop()
        await udp.stop()

    asyncio.run(run())


# -- the node around it

SETTINGS = SwarmSettings(name="gate", work=1)


def test_a_node_whose_journal_fails_ends_its_block_with_the_error(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            assert node.health == "ok"
            node._udp.driver.fail(JournalError("gone"))
            assert node.health == "failed"
            await asyncio.Event().wait()

    with pytest.raises(JournalError, match="gone"):
        asyncio.run(run())


def test_a_block_that_ends_by_itself_at_that_moment_raises_the_error_too(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node._udp.driver.fail(JournalError("gone"))

    with pytest.raises(JournalError, match="gone"):
        asyncio.run(run())


def test_an_error_of_the_block_and_a_cancellation_from_outside_are_not_hidden(tmp_path):
    async def fail() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node._udp.driver.fail(JournalError("gone"))
            raise KeyError("the block's own")

    async def cancelled() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            asyncio.current_task().cancel()
            node._udp.driver.fail(JournalError("gone"))
            await asyncio.Event().wait()

    with pytest.raises(KeyError):
        asyncio.run(fail())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_publisher_that_waits_for_a_journal_that_fails_is_told(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA query_only = ON"))
            try:
                await node.publish(b"never", 5)
            except asyncio.CancelledError:
                asyncio.current_task().uncancel()
                assert node.failure is not None
            with pytest.raises(JournalError):
                await node.publish(b"never either", 5)

    with pytest.raises(JournalError, match="readonly"):
        asyncio.run(run())


def test_a_node_waits_while_there_is_no_room_and_publishes_when_there_is(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA max_page_count = 1").fetchone())
            publishing = asyncio.ensure_future(node.publish(bytes(10_000), 5))
            await until(lambda: node.health != "ok", 20)  # its work is to be found first
            assert node.health == "waiting for the disk"
            assert not publishing.done()
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA max_page_count = 100000").fetchone())
            address = await asyncio.wait_for(publishing, 5)
            assert node.journal.raw(address) is not None
            assert node.health == "ok"

    asyncio.run(run())
