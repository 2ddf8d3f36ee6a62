"""One client cannot starve the others: turns, rates, memory, addresses, and a bounded shutdown."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from dovetail.keys.authority import load_certificate
from dovetail.model.hop import Reason, Stage
from dovetail.pcp.session import Mount, Session
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings, Rule
from dovetail.pcp.vocabulary import INVENTORY_REQUEST
from dovetail.runtime import pcp_server
from dovetail.runtime.pcp_server import TURN_MESSAGES, PcpServer
from system.pcp_raw import Closed, RawClient, Refused
from system.pcp_site import MemoryJournal, Site, broker, until

pytestmark = pytest.mark.system
MORE = 40
"""What one read may bring past the end of a turn."""


def accepted(journal: MemoryJournal) -> list[str]:
    return [seen.counterparts[0] for seen in journal.observations if seen.stage is Stage.ACCEPTED]


@pytest.mark.parametrize("is_secure", [True, False], ids=["tls", "plain"])
def test_who_sends_much_takes_turns_with_the_others_and_loses_nothing(tmp_path, is_secure):
    site = Site(tmp_path)

    async def scenario() -> None:
        journal = MemoryJournal()
        settings = site.settings if is_secure else {}
        async with broker(journal, durability="full", **settings) as server:
            clients = [
                await RawClient.associate(server.port, f"pcp://{name}/agent", site.client(name) if is_secure else None)
                for name in ("busy", "honest")
            ]
            busy, honest = clients
            journal.hold()
            for _ in range(3_000):
                busy.send_v1("http://example.com/x", ["pcp://nobody/agent"], b'"' + b"x" * 200 + b'"')
            await until(lambda: len(server.driver._inbox) >= TURN_MESSAGES)
            honest.send_v1("http://example.com/x", ["pcp://nobody/agent"])
            await until(lambda: any(frame[1] == "2" for frame in server.driver._inbox))
            assert len(server.driver._inbox) < TURN_MESSAGES + MORE
            journal.release()
            await until(lambda: len(accepted(journal)) == 2 + 3_001)
            order = accepted(journal)
            assert order.index("pcp://honest/agent", 2) < 3 * (TURN_MESSAGES + MORE)

    asyncio.run(scenario())


def test_who_sends_faster_than_its_rate_is_read_more_slowly_and_named(tmp_path, caplog):
    site = Site(tmp_path)

    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, client_messages_per_s=100, **site.settings) as server:
            busy = await RawClient.associate(server.port, "pcp://busy/agent", site.client("busy"))
            for _ in range(300):
                busy.send_v1("http://example.com/x", ["pcp://nobody/agent"])
            await until(lambda: len(accepted(journal)) == 301)
            assert server.rates.slowed["busy"] > 0
            samples = [each for family in server.metrics.registry.collect() for each in family.samples]
            assert [(each.labels, each.value) for each in samples if each.name == "dovetail_pcp_slowed_total"] == [
                ({"client": "busy"}, server.rates.slowed["busy"])
            ]

    asyncio.run(scenario())
    assert sum("client slowed down certificate=busy peer=127.0.0.1:" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("is_asking", [True, False], ids=["inventory", "targets"])
def test_long_lists_count_as_many_messages(tmp_path, is_asking):
    site = Site(tmp_path)

    async def scenario() -> None:
        async with broker(client_messages_per_s=1_000, max_connections=500, **site.settings) as server:
            others = [Session(f"fake {number}", None, Mount(1, None), 0) for number in range(400)]
            for number, session in enumerate(others):
                server.broker.registry.add(f"pcp://other{number}/agent", session)
            busy = await RawClient.associate(server.port, "pcp://busy/agent", site.client("busy"))
            for _ in range(6 * TURN_MESSAGES):
                if is_asking:
                    busy.send_v1(INVENTORY_REQUEST, ["pcp:///server"], b'{"query":["pcp://other1/*","pcp://*/agent"]}')
                else:
                    busy.send_v1("http://example.com/x", [f"pcp://nobody{number}/agent" for number in range(401)])
            await until(lambda: server.rates.slowed["busy"] > 0)

    asyncio.run(scenario())


def test_connections_of_one_address_are_limited():
    async def scenario() -> None:
        async with broker(max_connections_per_address=2) as server:
            first = await RawClient.open(server.port)
            await RawClient.open(server.port)
            with pytest.raises(Refused) as refused:
                await RawClient.open(server.port)
            assert refused.value.status == 503
            first.writer.close()
            await until(lambda: len(server._connections) == 1)
            await RawClient.open(server.port)

    asyncio.run(scenario())


def test_what_clients_leave_unread_is_bounded_for_all_together(caplog):
    async def scenario() -> None:
        async with broker(memory_bytes=64 << 20, queue_bytes=64 << 20) as server:
            sender = await RawClient.associate(server.port, "pcp://sender/controller")
            deaf = [await RawClient.associate(server.port, f"pcp://deaf{number}/agent") for number in range(12)]
            for each in deaf:
                each.reader._transport.pause_reading()
            for _ in range(3):
                sender.send_v1("http://example.com/x", ["pcp://*/agent"], b'"' + b"x" * 7_000_000 + b'"')
            await until(lambda: any("bytes unread" in line for line in caplog.messages))
            assert server.unsent.used_bytes <= server.settings.unsent_share

    asyncio.run(scenario())


def test_while_the_disk_stands_still_memory_does_not_grow():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, durability="full", memory_bytes=8 << 20) as server:
            clients = [await RawClient.associate(server.port, f"pcp://c{number}/agent") for number in range(20)]
            journal.hold()
            for client in clients:
                for _ in range(200):
                    client.send_v1("http://example.com/x", ["pcp://nobody/agent"], b'"' + b"x" * 5_000 + b'"')
            await until(lambda: server.driver.is_crowded)
            await asyncio.sleep(0.2)
            assert server.driver._inbox_bytes < server.settings.inbox_share + len(clients) * 100_000
            journal.release()
            await until(lambda: len(accepted(journal)) == 20 * 201)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_disk_slow", [True, False])
def test_stopping_ends_whoever_sends_on_or_does_not_read(is_disk_slow):
    async def scenario() -> None:
        journal = MemoryJournal()
        server = PcpServer(
            PcpSettings(port=0, insecure_plain=True, rules=ALLOW_ALL, drain_timeout_ms=200, access_log=False), journal
        )
        await server.start()
        sender = await RawClient.associate(server.port, "pcp://sender/controller")
        deaf = [await RawClient.associate(server.port, f"pcp://deaf{number}/agent") for number in range(50)]
        for each in deaf:
            each.reader._transport.pause_reading()

        async def send_on() -> None:
            while True:
                sender.send_v1("http://example.com/x", ["pcp://*/agent"], b'"' + b"x" * 100_000 + b'"')
                await sender.writer.drain()

        sending = asyncio.ensure_future(send_on())
        await until(lambda: server.broker.backlogs())
        if is_disk_slow:
            journal.hold()
        await server.stop()
        assert not server._connections
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await RawClient.close_all()

    asyncio.run(scenario())


def test_a_revoked_certificate_sends_and_gets_nothing_from_the_moment_it_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(pcp_server, "REVOCATION_CHECK_S", 0.05)
    site = Site(tmp_path)

    async def scenario() -> None:
        journal = MemoryJournal()
        names = [f"traitor{number}" for number in range(4)]
        contexts = {name: site.client(name) for name in (*names, "friend")}
        revocations = site.authority.write_revocation_list()
        settings = {**site.settings, "revocations": str(revocations), "revocation_spread_ms": 3_600_000}
        async with broker(journal, **settings) as server:
            clients = {
                name: await RawClient.associate(server.port, f"pcp://{name}/agent", context)
                for name, context in contexts.items()
            }
            for name in names:
                site.authority.revoke(load_certificate(tmp_path / f"{name}.pem"))
            await until(lambda: len(server.broker.registry.by_uri) == 1)
            before = len(accepted(journal))
            assert len(server._connections) > 1, "they are closed one after the other"
            for name in names:
                clients[name].send_v1("http://example.com/x", ["pcp://friend/agent"])
            clients["friend"].send_v1("http://example.com/x", ["pcp://friend/agent"])
            await clients["friend"].receive_v1()
            await asyncio.sleep(0.1)
            assert accepted(journal)[before:] == ["pcp://friend/agent"]

    asyncio.run(scenario())


RULES = (Rule(allow=False, message_type="http://example.com/no"), *ALLOW_ALL)


def test_refusals_are_one_line_with_address_and_certificate_and_a_metric(tmp_path, caplog):
    site = Site(tmp_path)

    async def scenario() -> None:
        settings = {"rules": RULES, "types": {"agent": ("*",), "controller": ("boss",)}, **site.settings}
        async with broker(**settings) as server:
            with pytest.raises(Closed):
                await RawClient.associate(server.port, "pcp://mallory/controller", site.client("mallory"))
            modern = await RawClient.open(server.port, "/pcp2/controller", site.client("modern"))
            assert await modern.closed_with() == 4002
            agent = await RawClient.associate(server.port, "pcp://agent/agent", site.client("agent"))
            agent.send_v1("http://example.com/no", ["pcp://x/agent"])
            await agent.receive_v1()
            samples = [each for family in server.metrics.registry.collect() for each in family.samples]
            counted = [each for each in samples if each.name == "dovetail_pcp_refused_clients_total"]
            assert [(each.labels["reason"], each.value) for each in counted] == [(Reason.UNAUTHORIZED.value, 3)]

    asyncio.run(scenario())
    lines = [line for line in caplog.messages if line.startswith("client refused")]
    for line, name in itertools.zip_longest(lines, ("mallory", "modern", "agent")):
        assert line.startswith("client refused peer=127.0.0.1:")
        assert f"certificate={name} uri=pcp://{name}/" in line
        assert "reason=unauthorized: " in line
