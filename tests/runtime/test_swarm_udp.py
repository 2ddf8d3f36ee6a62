"""A peer on its sockets when the journal waits or fails, and datagrams too old to send."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket

import pytest

from dovetail.journal.journal import JournalOptions
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import JournalError
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.times import time_text
from dovetail.model.wire import Datagrams
from dovetail.runtime.clock import now_us
from dovetail.runtime.swarm_node import JOURNAL_FILE, LIFE_SIGN_FILE, SwarmNode
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


def test_a_node_whose_journal_fails_says_so_like_every_server(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            assert node.health == "ok"
            node._udp.driver.fail(JournalError("gone"))
            assert node.health == "failed"
            await node.failed

    with pytest.raises(JournalError, match="gone"):
        asyncio.run(run())


@pytest.mark.parametrize("wait", ["subscribe", "linked"])
def test_an_application_that_waits_is_told_why_the_node_failed(tmp_path, wait):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            waiting = asyncio.ensure_future(anext(node.subscribe()) if wait == "subscribe" else node.linked())
            await asyncio.sleep(0)
            node._udp.driver.fail(JournalError("gone"))
            with pytest.raises(JournalError, match="gone"):
                await asyncio.wait_for(waiting, 60)
            raise KeyError("the block's own")

    with pytest.raises(KeyError):  # an error in the block is not hidden
        asyncio.run(run())


def test_a_peer_records_when_it_was_stopped_and_since_when(tmp_path):
    """An audit excuses it for what expired meanwhile. A new journal has nothing to say about that."""

    async def run() -> list[Hop]:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            await node.publish(b"x", ttl_epochs=1)
            return list(node.journal.hops())

    assert {hop.stage for hop in asyncio.run(run())} == {Stage.CREATED}
    created, stopped, restarted, *_ = asyncio.run(run())
    assert (created.stage, stopped.stage, restarted.stage) == (Stage.CREATED, Stage.NOTED, Stage.NOTED)
    assert (stopped.reason, stopped.counterpart) == (Reason.STOPPED, None)
    assert (restarted.reason, restarted.counterpart) == (Reason.RESTARTED, time_text(stopped.at_us))


@pytest.mark.parametrize("alive_s", [-60, 60])
def test_a_peer_that_was_killed_was_running_until_its_last_sign_of_life(tmp_path, alive_s):
    """Its last hop or, later than that, the file that it touches; so it owes what expired between them."""
    killed = tmp_path / "killed"

    async def run() -> int:
        options = JournalOptions(checkpoint_interval_s=3_600)  # nothing is written while the files are copied
        async with SwarmNode(SETTINGS, tmp_path / "running", threads=1, journal_options=options) as node:
            await node.publish(b"x", ttl_epochs=1)
            await until((node.directory / LIFE_SIGN_FILE).exists)
            shutil.copytree(node.directory, killed)  # what a kill leaves
            (last,) = node.journal.hops()
            return last.at_us

    last_us = asyncio.run(run())
    alive_us = last_us + alive_s * 1_000_000
    os.utime(killed / LIFE_SIGN_FILE, ns=(alive_us * 1_000,) * 2)
    SwarmNode(SETTINGS, killed, threads=1).journal.close()
    with JournalReader.open(killed / JOURNAL_FILE) as reader:
        _, restarted = reader.hops()
    assert (restarted.reason, restarted.counterpart) == (Reason.RESTARTED, time_text(max(last_us, alive_us)))


def test_a_block_that_ends_after_the_failure_raises_it(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node._udp.driver.fail(JournalError("gone"))

    with pytest.raises(JournalError, match="gone"):
        asyncio.run(run())


def test_a_publisher_that_waits_for_a_journal_that_fails_is_told(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA query_only = ON"))
            for payload in (b"never", b"never either"):
                with pytest.raises(JournalError, match="readonly"):
                    await node.publish(payload, 5)

    with pytest.raises(JournalError, match="readonly"):
        asyncio.run(run())


def test_a_node_waits_while_there_is_no_room_and_publishes_when_there_is(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA max_page_count = 1").fetchone())
            publishing = asyncio.ensure_future(node.publish(bytes(10_000), 5))
            await until(lambda: node.health != "ok", 60)  # its proof of work must be found first
            assert node.health == "waiting for the disk"
            assert not publishing.done()
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA max_page_count = 100000").fetchone())
            address = await asyncio.wait_for(publishing, 60)
            assert node.journal.raw(address) is not None
            assert node.health == "ok"

    asyncio.run(run())
