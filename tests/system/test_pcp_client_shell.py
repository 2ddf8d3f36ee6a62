"""The client library against a real broker: requests, reports, inventory, and reconnecting."""

import asyncio

import pytest

from dovetail.model.errors import NotAllowed, UsageError
from dovetail.pcp.client import ClientOptions
from dovetail.pcp.client_events import FailureKind
from dovetail.pcp.settings import ALLOW_ALL, Rule
from dovetail.runtime.pcp_client import PcpClient, PcpRequestError
from system.pcp_raw import RawClient, RawServer
from system.pcp_site import Site, broker, until

pytestmark = pytest.mark.system
QUICK = ClientOptions(backoff_ms=20, max_backoff_ms=50)
AGENT, BOSS = "pcp://agent1/agent", "pcp://boss/controller"


def connect(port: int, uri: str, **more: object) -> PcpClient:
    return PcpClient(f"ws://127.0.0.1:{port}/pcp", uri, options=QUICK, **more)


async def echo(client: PcpClient) -> None:
    async for message in client.messages():
        await client.reply(message, "http://example.com/pong", {"got": message.json()})


def test_request_and_reply_destination_report_and_inventory():
    async def scenario() -> None:
        async with broker() as server, connect(server.port, AGENT) as agent, connect(server.port, BOSS) as boss:
            serving = asyncio.create_task(echo(agent))
            await agent.wait_associated(5)
            reply = await boss.request("http://example.com/ping", AGENT, {"n": 1})
            assert (reply.sender, reply.json()) == (AGENT, {"got": {"n": 1}})
            async with boss.posting("http://example.com/ping", "pcp://*/agent", 1, wants_report=True) as posted:
                assert await posted.report == (AGENT,)
            assert await boss.inventory("pcp://*/*") == [AGENT, BOSS]
            serving.cancel()

    asyncio.run(scenario())


def test_whoever_is_cancelled_while_sending_ends():
    async def send_on(client: PcpClient) -> None:
        while True:
            await client.send("http://example.com/news", AGENT, 1)
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with broker() as server, connect(server.port, BOSS) as boss:
            await boss.wait_associated(5)
            for turns in range(30):
                sending = asyncio.create_task(send_on(boss))
                for _ in range(turns):
                    await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait([sending], timeout=1)
                assert sending.cancelled(), f"it went on after {turns} turns"

    asyncio.run(scenario())


def test_failures_are_raised_with_their_kind():
    async def scenario() -> None:
        rules = (Rule(allow=False, message_type="http://secret/*"), *ALLOW_ALL)
        async with broker(rules=rules) as server, connect(server.port, BOSS) as boss:
            with pytest.raises(PcpRequestError) as denied:
                await boss.request("http://secret/x", AGENT, 1)
            assert denied.value.kind is FailureKind.UNAUTHORIZED
            with pytest.raises(PcpRequestError) as silent:
                await boss.request("http://example.com/ping", AGENT, 1, ttl_ms=100)
            assert silent.value.kind is FailureKind.TIMED_OUT
            with pytest.raises(PcpRequestError) as refused:
                await boss.request("http://example.com/task", "pcp:///server", 1)
            assert refused.value.kind is FailureKind.REFUSED

    asyncio.run(scenario())


def test_comes_back_after_the_broker_was_gone_and_subscriptions_go_on():
    async def scenario() -> None:
        async with broker(inventory_batch_ms=20) as first:
            port = first.port
            boss = await connect(port, BOSS).__aenter__()
            seen: list[tuple[str, int]] = []

            async def watch() -> None:
                async for uri, change in boss.subscribe("pcp://*/agent"):
                    seen.append((uri, change))

            watching = asyncio.create_task(watch())
            raw = await RawClient.associate(port, AGENT)
            await until(lambda: seen == [(AGENT, 1)])
            await raw.close()
            await until(lambda: seen[-1] == (AGENT, -1))
            again = await RawClient.associate(port, AGENT)
            await until(lambda: seen[-1] == (AGENT, 1))
            assert again.uri == AGENT
        await until(lambda: not boss.is_associated)
        async with broker(port=port, inventory_batch_ms=20) as second:
            await boss.wait_associated(5)
            await until(lambda: seen[-1] == (AGENT, -1))  # it disconnected while we were away
            assert BOSS in second.broker.registry.by_uri
            watching.cancel()
            await boss.__aexit__(None, None, None)

    asyncio.run(scenario())


def test_refused_association_is_raised():
    async def scenario() -> None:
        async with broker(rules=()) as server, connect(server.port, BOSS) as boss:
            with pytest.raises(NotAllowed, match="not authorised"):
                await boss.wait_associated(5)

    asyncio.run(scenario())


def test_nobody_there_times_out():
    async def scenario() -> None:
        async with connect(1, BOSS) as boss:
            with pytest.raises(TimeoutError):
                await boss.wait_associated(0.1)

    asyncio.run(scenario())


def test_v2_over_tls(tmp_path):
    async def scenario() -> None:
        site = Site(tmp_path)
        async with broker(**site.settings) as server:
            url = f"wss://localhost:{server.port}/pcp2/controller"
            agent_url = f"wss://localhost:{server.port}/pcp"
            async with (
                PcpClient(url, BOSS, version=2, context=site.client("boss"), options=QUICK) as boss,
                PcpClient(agent_url, AGENT, context=site.client("agent1"), options=QUICK) as agent,
            ):
                serving = asyncio.create_task(echo(agent))
                await agent.wait_associated(5)
                reply = await boss.request("http://example.com/ping", AGENT, [1, 2])
                assert reply.json() == {"got": [1, 2]}
                assert await boss.inventory("pcp://*/agent") == [AGENT]
                serving.cancel()

    asyncio.run(scenario())


def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(UsageError, match="expected ws://HOST:PORT/pcp"):
        PcpClient("nonsense", BOSS)


BAD_FROM_A_BROKER = {
    "a continuation of nothing": (1002, lambda peer: peer.send_frame(0, b"lone")),
    "a reserved bit": (1002, lambda peer: peer.send_frame(2, b"x", reserved=2)),
    "too many empty fragments": (
        1009,
        lambda peer: [peer.send_frame(0 if number else 2, is_final=False) for number in range(16_385)],
    ),
}


@pytest.mark.parametrize("name", BAD_FROM_A_BROKER)
def test_what_breaks_the_rules_of_websocket_ends_the_connection_and_the_client_comes_back(name):
    code, misbehave = BAD_FROM_A_BROKER[name]

    async def scenario() -> None:
        peers: asyncio.Queue[RawServer] = asyncio.Queue()

        async def upgrade(reader, writer) -> None:
            await peers.put(await RawServer.upgrade(reader, writer))

        server = await asyncio.start_server(upgrade, "127.0.0.1", 0)
        async with connect(server.sockets[0].getsockname()[1], AGENT):
            async with asyncio.timeout(60):
                first = await peers.get()
                misbehave(first)
                assert await first.closed_with() == code
                second = await peers.get()
        for peer in (first, second):
            await peer.close()
        server.close()

    asyncio.run(scenario())


def test_whoever_sends_faster_than_the_broker_reads_waits():
    async def scenario() -> None:
        async with broker() as server, connect(server.port, BOSS) as boss:
            await boss.wait_associated(5)
            (link,) = server._connections.values()
            link.set_reading(False)
            data = b"x" * 1_000_000

            async def send_on() -> None:
                while True:
                    await boss.send("http://example.com/big", "pcp://nobody/agent", data, ttl_ms=60_000)

            sending = asyncio.create_task(send_on())
            await until(lambda: boss._wire.link.unsent_bytes)
            for _ in range(20):
                await asyncio.sleep(0)
            assert boss._wire.link.unsent_bytes < 2_000_000
            sending.cancel()
            link.set_reading(True)
            await boss.flush()
            await boss.send("http://example.com/news", "pcp://nobody/agent", 1)

    asyncio.run(scenario())
