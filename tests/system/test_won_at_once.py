"""One message at a time per connection over real sockets: three clients send at once on one connection."""

from __future__ import annotations

import asyncio
import socket

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.reader import JournalReader
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome
from dovetail.runtime.won_server import NodeOptions, NodeServer
from dovetail.won.chain import ChainState
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import MessageType
from won.won_order import assert_one_at_a_time

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
QUICK = WonSettings(retry_ms=50, max_retry_ms=500)
EACH = 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def join(home, *, is_created):
    client = OwnerClient(home, is_created=is_created, settings=QUICK)
    await client.__aenter__()
    if is_created:
        assert await client.wait_registered(20)
    else:
        created = await client.say(lambda owner, now: owner.create(home.file.sockets, now))
        assert await client.wait_settled(created.uri, 20) is ChainState.ATOM
    return client


async def speak_at_once(directory):
    ports = [free_port(), free_port()]
    nodes = [f"http://127.0.0.1:{port}/won/resource" for port in ports]
    servers = [
        NodeServer(
            NodeOptions(uri=uri, host="127.0.0.1", port=port, journal=directory / f"{port}.db", settings=QUICK),
            Ed25519PrivateKey.generate(),
        )
        for uri, port in zip(nodes, ports, strict=True)
    ]
    for server in servers:
        await server.start()
    files = [AtomFile(f"{uri}/atom/x", (f"{uri}/atom/x#chat",)) for uri in nodes]
    homes = [OwnerHome.create(directory / f"owner{number}", file) for number, file in enumerate(files)]
    alice, bob = [await join(home, is_created=False) for home in homes]
    further = OwnerHome.create(directory / "further", homes[0].file, homes[0].private_key)
    second = await join(further, is_created=True)
    sockets = [home.file.sockets[0] for home in homes]

    async def say(client, kind, text=None):
        own, target = sockets if client is not bob else sockets[::-1]
        return client, await client.say(lambda owner, now: owner.send_message(kind, own, target, now, text))

    for client in (alice, bob):
        assert await client.wait_settled((await say(client, MessageType.CONNECT))[1].uri, 20) is ChainState.COMPLETE
    said = await asyncio.gather(
        *(
            say(client, MessageType.CONNECTION, f"{name} {number}")
            for number in range(EACH)
            for client, name in ((alice, "first"), (second, "second"), (bob, "bob"))
        )
    )
    states = [await client.wait_settled(message.uri, 60) for client, message in said]
    for client in (alice, second, bob):
        await client.__aexit__()
    for server in servers:
        await server.stop()
    return list(zip(nodes, [directory / f"{port}.db" for port in ports], strict=True)), states


def test_clients_that_speak_at_once_on_one_connection_are_heard_one_after_the_other(tmp_path):
    journals, states = asyncio.run(speak_at_once(tmp_path))
    assert set(states) == {ChainState.COMPLETE}
    for node, path in journals:
        with JournalReader.open(path) as reader:
            (stored,) = assert_one_at_a_time(reader.hops(), node).values()
        assert len(stored) == 2 + 3 * EACH
