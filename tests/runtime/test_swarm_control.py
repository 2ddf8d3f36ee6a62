"""The control socket against clients that send anything, send nothing, disconnect, or are many."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dovetail.api.swarm import SwarmPeer, _OwnPeer
from dovetail.model.address import address_of
from dovetail.model.errors import JournalFull, Missed, TimedOut
from dovetail.runtime import swarm_control, swarm_node
from dovetail.runtime.swarm_control import CONTROL_FILE, MAX_CLIENTS, MAX_REQUEST_BYTES, ControlServer
from dovetail.runtime.swarm_node import SwarmNode
from dovetail.swarm.content import Content
from dovetail.swarm.events import MessageAccepted
from dovetail.swarm.settings import SwarmSettings
from swarm.fuzz import damage

pytestmark = pytest.mark.system

REQUESTS = (
    b'{"verb":"status"}\n',
    b'{"verb":"publish","payload":"616263","ttl_epochs":3}\n',
    b'{"verb":"tail","since_ms":0}\n',
)


def controlled(directory: Path, act: Callable[[ControlServer, Path, SwarmNode], Awaitable[None]]) -> None:
    async def run() -> None:
        async with SwarmNode(SwarmSettings(name="control", work=1), directory, threads=1) as node:
            server = ControlServer(node, directory / CONTROL_FILE)
            await server.start()
            try:
                await act(server, directory / CONTROL_FILE, node)
            finally:
                await server.stop()

    asyncio.run(run())


async def ask(path: Path, data: bytes, *, ends: bool = False) -> list[bytes]:
    """Send bytes, and EOF if the server cannot tell the end from them; returns the lines of the answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(data)
        if ends:
            writer.write_eof()
        return (await asyncio.wait_for(reader.read(), 30)).splitlines()
    finally:
        writer.close()


async def until(is_true: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if is_true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


def test_mutated_requests_are_answered_or_refused_in_one_line(tmp_path):
    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        chance = random.Random(11)
        for _ in range(200):
            data = damage(chance.choice(REQUESTS), chance)
            for line in await ask(path, data, ends=b"tail" in data or b"\n" not in data):
                assert isinstance(json.loads(line), dict)
        assert server._clients == 0
        (status,) = await ask(path, REQUESTS[0])
        assert json.loads(status)["uri"] == node.peer.uri

    controlled(tmp_path, act)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"null\n",
        b"[" * 30_000 + b"\n",
        b'{"verb":"publish","payload":"zz"}\n',
        b'{"verb":"publish","payload":"' + b"00" * 11_300 + b'"}\n',
        b'{"verb":"publish","ttl_epochs":99999999999999}\n',
        b'{"verb":"tail","since_ms":' + b"9" * 5_000 + b"}\n",
        b"x" * (2 * MAX_REQUEST_BYTES),
    ],
    ids=["nothing", "a line", "null", "deep", "no hex", "too large", "ttl", "number", "too long"],
)
def test_requests_that_cannot_be_done_are_refused_in_one_line(tmp_path, data):
    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        (line,) = await ask(path, data, ends=not data)
        assert set(json.loads(line)) == {"error", "type"}
        assert node.status().messages == 0

    controlled(tmp_path, act)


def test_clients_over_the_bound_are_refused_and_served_when_others_have_gone(tmp_path):
    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        silent = [await asyncio.open_unix_connection(path) for _ in range(MAX_CLIENTS)]
        await until(lambda: server._clients == MAX_CLIENTS)
        (line,) = await ask(path, REQUESTS[0])
        assert json.loads(line)["error"] == f"{MAX_CLIENTS} other requests are being served"
        for _, writer in silent:
            writer.close()
        await until(lambda: server._clients == 0)
        (line,) = await ask(path, REQUESTS[0])
        assert "uri" in json.loads(line)

    controlled(tmp_path, act)


def test_a_client_that_sends_nothing_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(swarm_control, "REQUEST_TIMEOUT_S", 0.05)

    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()

    controlled(tmp_path, act)


def test_a_client_that_goes_in_the_middle_of_its_request_leaves_nothing_behind(tmp_path):
    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        for data in (*REQUESTS, REQUESTS[0][:5]):
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(data)
            await writer.drain()
            writer.transport.abort()
        await until(lambda: not server._clients and not node._subscriptions)

    controlled(tmp_path, act)


def hear(node: SwarmNode, *payloads: bytes) -> None:
    """Let a node hear these messages, all at once."""
    node._hear(
        [
            MessageAccepted(address_of(each), Content(timestamp_ms=1, ttl_epochs=1, payload=each), node.peer.uri, 1)
            for each in payloads
        ]
    )


def test_a_client_hears_from_the_moment_it_is_connected_within_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(swarm_node, "MAX_WAITING", 3)

    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        async with SwarmPeer(path) as peer:
            hear(node, b"0", b"1", b"2", b"3", b"4")
            with pytest.raises(Missed) as raised:
                await peer.receive(timeout=30)
            assert raised.value.count == 2
            assert [(await peer.receive(timeout=30)).data for _ in range(3)] == ["2", "3", "4"]
            with pytest.raises(TimedOut):
                await peer.receive(timeout=0.01)
            hear(node, b"5")
            assert (await peer.receive(timeout=30)).data == "5", "a call that ends in vain ends no subscription"

    controlled(tmp_path, act)


def test_two_readers_of_one_client_share_its_queue(tmp_path):
    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        async with SwarmPeer(path) as peer:
            readers = [asyncio.create_task(peer.receive(timeout=30)) for _ in range(2)]
            await asyncio.sleep(0)
            hear(node, b"0", b"1")
            assert {(await reader).data for reader in readers} == {"0", "1"}

    controlled(tmp_path, act)


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_publishing_on_a_full_disk_ends_in_time_and_is_done_when_there_is_room(tmp_path, place, monkeypatch):
    monkeypatch.setattr("dovetail.journal.journal._RETRY_S", 0.01)

    async def act(server: ControlServer, path: Path, node: SwarmNode) -> None:
        async with SwarmPeer(_OwnPeer(node) if place == "here" else path) as peer:
            limit_pages(node, 1)  # SQLite takes the present number instead
            large = "x" * 11_000  # needs more pages
            first = asyncio.create_task(node.publish(large.encode(), 60))
            await until(lambda: node.journal.stalled is not None)
            with pytest.raises(JournalFull, match="may still be journaled and sent when there is room") as raised:
                await asyncio.wait_for(peer.publish("late", timeout=0.01), 30)
            assert raised.value.retriable
            assert "no room left for" in str(raised.value)
            limit_pages(node, 100_000)
            assert [(await peer.receive(timeout=30)).data for _ in range(2)] == [large, "late"]
            await first

    controlled(tmp_path, act)


def limit_pages(node: SwarmNode, count: int) -> None:
    """Let the node's journal have no more pages than this, as on a full disk."""
    node.journal.call(lambda writer: writer._connection.execute(f"PRAGMA max_page_count = {count}").fetchone())
