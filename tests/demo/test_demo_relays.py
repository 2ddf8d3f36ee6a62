"""The bad network on real sockets."""

import asyncio
import contextlib
import random
import socket

import pytest

from dovetail.demo.relays import Front, LossyRelay


def peer_socket():
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", 0))
    opened.settimeout(0)
    return opened


async def exchange(loss, count):
    relay = LossyRelay(loss, random.Random(1))
    doors = [relay.add_door(), relay.add_door()]
    with peer_socket() as one, peer_socket() as other:
        for door, peer in zip(doors, (one, other), strict=True):
            relay.place(door, f"127.0.0.1:{peer.getsockname()[1]}")
        for number in range(count):
            one.sendto(bytes([number]), ("127.0.0.1", int(relay.endpoint(1).split(":")[1])))
        while relay.passed + relay.dropped < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        received = []
        while len(received) < relay.passed:
            received.append(other.recvfrom(10))
    origin = relay.endpoint(0)
    relay.close()
    return relay, received, origin


def test_datagrams_come_out_of_the_senders_own_door():
    relay, received, origin = asyncio.run(exchange(0.0, 3))
    assert [data for data, _ in received] == [b"\0", b"\1", b"\2"]
    assert {f"{host}:{port}" for _, (host, port) in received} == {origin}
    assert relay.dropped == 0


def test_about_a_fifth_is_dropped():
    relay, received, _ = asyncio.run(exchange(0.2, 200))
    assert 20 <= relay.dropped <= 60
    assert len(received) == 200 - relay.dropped


async def hangs_up(reader):
    try:
        return await asyncio.wait_for(reader.read(100), 5) == b""
    except ConnectionError:
        return True


async def through_a_front(scenario):
    async def shout(reader, writer):
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while data := await reader.read(100):
                writer.write(data.upper())

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    front = Front()
    await front.start()
    front.target = server.sockets[0].getsockname()[1]
    try:
        await scenario(front)
    finally:
        await front.stop()
        server.close()
        await asyncio.sleep(0.05)


def test_a_front_passes_both_ways_until_it_is_cut():
    async def scenario(front):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.read(100), 5) == b"HELLO"
        front.cut()
        writer.write(b"still there?")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(100), 0.3)
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", front.port)
        assert await hangs_up(late_reader)
        for each in (writer, late_writer):
            each.transport.abort()

    asyncio.run(through_a_front(scenario))


def test_a_front_without_a_server_hangs_up():
    async def scenario(front):
        front.target = None
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        assert await hangs_up(reader)
        writer.transport.abort()

    asyncio.run(through_a_front(scenario))
