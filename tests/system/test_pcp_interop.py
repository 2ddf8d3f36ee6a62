"""Existing clients, as a raw byte-level client that behaves like theirs, against the broker on real sockets."""

import asyncio
import json

import pytest

from dovetail.model.hop import Reason, Stage
from dovetail.runtime import pcp_server
from system.pcp_raw import RECONNECT_S, Closed, RawClient, Refused
from system.pcp_site import MemoryJournal, Site, broker, until

pytestmark = pytest.mark.system
INVENTORY = "http://puppetlabs.com/inventory_request"


def test_association_on_open_then_messages_both_ways():
    async def scenario() -> None:
        async with broker() as server:
            agent = await RawClient.associate(server.port, "pcp://agent1/agent")
            controller = await RawClient.associate(server.port, "pcp://boss/controller")
            request = controller.send_v1("http://puppetlabs.com/rpc_blocking_request", [agent.uri], b'{"x":1}')
            envelope, data, debug = await agent.receive_v1()
            assert (envelope["id"], data, debug) == (request, b'{"x":1}', [])
            agent.send_v1("http://puppetlabs.com/rpc_response", [envelope["sender"]], b"{}", in_reply_to=request)
            answer, _, _ = await controller.receive_v1()
            assert answer["in-reply-to"] == request
            await agent.close()
            await controller.close()

    asyncio.run(scenario())


def test_pings_with_an_empty_payload_are_answered():
    async def scenario() -> None:
        async with broker() as server:
            client = await RawClient.associate(server.port, "pcp://agent1/agent")
            client.send_frame(9)
            assert await client.receive_frame() == (10, b"")
            client.send_frame(9, b"payload")
            assert await client.receive_frame() == (10, b"payload")
            await client.close()

    asyncio.run(scenario())


def test_v2_by_path_without_association():
    async def scenario() -> None:
        site_v1 = "pcp://one/agent"
        async with broker() as server:
            one = await RawClient.associate(server.port, site_v1)
            two = await RawClient.open(server.port, "/pcp2/controller")
            assert await two.closed_with() == 4003  # without a certificate a v2 client has no name
            await one.close()

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("keys"))


def test_tls_identity_is_the_certificates_common_name(site):
    async def scenario() -> None:
        async with broker(**site.settings) as server:
            context = site.client("agent1")
            agent = await RawClient.associate(server.port, "pcp://agent1/agent", context)
            with pytest.raises(Closed) as closed:
                await RawClient.associate(server.port, "pcp://somebody-else/agent", context)
            assert closed.value.code == 4002
            controller = await RawClient.open(server.port, "/pcp2/controller", site.client("boss"))
            request = controller.send_v2("http://example.com/ping", agent.uri, data={"a": [1]})
            envelope, data, _ = await agent.receive_v1()
            assert (envelope["sender"], json.loads(data)) == ("pcp://boss/controller", {"a": [1]})
            agent.send_v1("http://example.com/pong", ["pcp://boss/controller"], b'"ok"', in_reply_to=request)
            answer = await controller.receive_v2()
            assert (answer["in_reply_to"], answer["data"], answer["sender"]) == (request, "ok", agent.uri)
            await agent.close()
            await controller.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_tls_1_2_and_1_3(site, version):
    import ssl

    async def scenario() -> None:
        async with broker(**site.settings) as server:
            context = site.client("agent1")
            context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, version)
            client = await RawClient.associate(server.port, "pcp://agent1/agent", context)
            assert client.writer.get_extra_info("ssl_object").version() == version.replace("_", ".")
            await client.close()

    asyncio.run(scenario())


def test_no_client_certificate_is_refused_by_tls(site):
    import ssl

    async def scenario() -> None:
        async with broker(**site.settings) as server:
            context = ssl.create_default_context(cafile=site.settings["authority"])
            with pytest.raises((ssl.SSLError, Closed, ConnectionError)):
                await (await RawClient.open(server.port, context=context)).receive_frame()

    asyncio.run(scenario())


def test_revoked_certificates_are_closed_1012_and_stay_out(site, tmp_path, monkeypatch):
    from dovetail.keys.authority import load_certificate

    monkeypatch.setattr(pcp_server, "REVOCATION_CHECK_S", 0.05)

    async def scenario() -> None:
        revocations = site.authority.write_revocation_list()
        async with broker(revocations=str(revocations), revocation_spread_ms=100, **site.settings) as server:
            context = site.client("traitor")
            traitor = await RawClient.associate(server.port, "pcp://traitor/agent", context)
            loyal = await RawClient.associate(server.port, "pcp://loyal/agent", site.client("loyal"))
            site.authority.revoke(load_certificate(site.directory / "traitor.pem"))
            assert await traitor.closed_with() == 1012
            await until(lambda: set(server.broker.registry.by_uri) == {"pcp://loyal/agent"})
            again = await RawClient.open(server.port, context=context)
            assert await again.closed_with() == 1012
            await loyal.close()

    asyncio.run(scenario())


def test_unknown_paths_and_full_brokers_are_refused_before_the_upgrade():
    async def scenario() -> None:
        async with broker(max_connections=1) as server:
            with pytest.raises(Refused) as refused:
                await RawClient.open(server.port, "/elsewhere")
            assert refused.value.status == 404
            client = await RawClient.associate(server.port, "pcp://one/agent")
            with pytest.raises(Refused) as refused:
                await RawClient.open(server.port)
            assert refused.value.status == 503
            await client.close()
            await until(lambda: server.broker.connection_count == 0)
            again = await RawClient.associate(server.port, "pcp://one/agent")
            await again.close()

    asyncio.run(scenario())


def test_two_processes_with_one_identity_evict_each_other_and_leak_nothing():
    async def scenario() -> None:
        async with broker() as server:
            evictions = 0

            async def twin() -> None:
                nonlocal evictions
                while True:
                    try:
                        client = await RawClient.associate(server.port, "pcp://twin/agent")
                        code = await client.closed_with()
                    except Closed as closed:  # evicted in the same turn in which it associated
                        code = closed.code
                    assert code == 4000
                    evictions += 1
                    await asyncio.sleep(RECONNECT_S / 20)

            twins = [asyncio.create_task(twin()) for _ in range(2)]
            await until(lambda: evictions >= 60, 60)
            for task in twins:
                task.cancel()
            await asyncio.gather(*twins, return_exceptions=True)
            assert server.broker.connection_count <= 2
            await until(lambda: len(server._connections) <= 2)
            assert set(server.broker.registry.by_uri) <= {"pcp://twin/agent"}

    asyncio.run(scenario())


def test_inventory_subscription_on_the_wire():
    async def scenario() -> None:
        async with broker(inventory_batch_ms=50) as server:
            watcher = await RawClient.associate(server.port, "pcp://watcher/controller")
            request = watcher.send_v1(INVENTORY, ["pcp:///server"], b'{"query":["pcp://*/agent"],"subscribe":true}')
            envelope, data, _ = await watcher.receive_v1()
            assert envelope["in-reply-to"] == request
            assert json.loads(data) == {"uris": []}
            agent = await RawClient.associate(server.port, "pcp://agent1/agent")
            _, data, _ = await watcher.receive_v1()
            assert json.loads(data) == {"changes": [{"client": "pcp://agent1/agent", "change": 1}]}
            await agent.close()
            _, data, _ = await watcher.receive_v1()
            assert json.loads(data) == {"changes": [{"client": "pcp://agent1/agent", "change": -1}]}
            await watcher.close()

    asyncio.run(scenario())


def test_full_durability_holds_report_and_delivery_until_the_disk_has_the_message():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, durability="full") as server:
            a = await RawClient.associate(server.port, "pcp://a/controller")
            b = await RawClient.associate(server.port, "pcp://b/agent")
            journal.hold()
            a.send_v1("http://example.com/ping", [b.uri], b"1", destination_report=True)
            await asyncio.sleep(0.1)
            with pytest.raises(TimeoutError):
                await b.receive_v1(0.1)
            before = len(journal.observations)
            journal.release()
            await b.receive_v1()
            assert (await a.receive_v1())[0]["message_type"] == "http://puppetlabs.com/destination_report"
            await until(lambda: journal.observations[-1].stage is Stage.DELIVERED)
            stages = [seen.stage for seen in journal.observations[before:]]
            assert stages == [Stage.ACCEPTED, Stage.CREATED, Stage.DELIVERED, Stage.DELIVERED]
            await a.close()
            await b.close()

    asyncio.run(scenario())


def test_full_durability_a_wire_that_breaks_during_the_commit_is_redelivered():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, durability="full") as server:
            a = await RawClient.associate(server.port, "pcp://a/controller")
            b = await RawClient.associate(server.port, "pcp://b/agent")
            journal.hold()
            message = a.send_v1("http://example.com/ping", [b.uri], b"1")
            await asyncio.sleep(0.1)
            b.writer.transport.abort()
            await until(lambda: len(server._connections) == 1)
            journal.release()
            again = await RawClient.associate(server.port, "pcp://b/agent")
            assert (await again.receive_v1())[0]["id"] == message
            await until(lambda: any(seen.stage is Stage.REDELIVERED for seen in journal.observations))
            delivered = [seen for seen in journal.observations if seen.stage is Stage.DELIVERED]
            redelivered = [seen for seen in journal.observations if seen.stage is Stage.REDELIVERED]
            assert redelivered[0].message not in {seen.message for seen in delivered}
            await a.close()
            await again.close()

    asyncio.run(scenario())


def test_full_durability_what_was_sent_before_a_close_counts():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, durability="full") as server:
            a = await RawClient.associate(server.port, "pcp://a/controller")
            journal.hold()
            for _ in range(3):
                a.send_v1("http://example.com/ping", ["pcp://ghost/agent"], b"1")
                await asyncio.sleep(0.02)
            await a.close()
            await asyncio.sleep(0.05)
            before = len(journal.observations)
            journal.release()
            await until(lambda: sum(seen.stage is Stage.UNDELIVERABLE for seen in journal.observations) == 3)
            await until(lambda: server.broker.connection_count == 0)
        sent = [seen.message for seen in journal.observations[before:] if seen.stage is Stage.ACCEPTED]
        lost = [seen for seen in journal.observations[before:] if seen.stage is Stage.UNDELIVERABLE]
        assert len(set(sent)) == len(sent) == 3
        assert [seen.message for seen in lost] == sent
        assert {seen.counterparts for seen in lost} == {("pcp://ghost/agent",)}

    asyncio.run(scenario())


def test_over_the_inbox_bound_nothing_is_read_the_loop_goes_on_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("the event loop was blocked"))

    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, durability="full", memory_bytes=400_000) as server:
            a = await RawClient.associate(server.port, "pcp://a/controller")
            b = await RawClient.associate(server.port, "pcp://b/agent")
            journal.hold()
            ids = [a.send_v1("http://example.com/ping", [b.uri])]
            await until(lambda: journal._waiting)
            ids += [a.send_v1("http://example.com/ping", [b.uri], bytes(1_000)) for _ in range(200)]
            await until(lambda: not server._is_reading)
            late = asyncio.ensure_future(RawClient.associate(server.port, "pcp://late/agent"))
            await until(lambda: len(server._connections) == 3)
            journal.release()
            assert [(await b.receive_v1())[0]["id"] for _ in ids] == ids
            await late
            await until(lambda: server._is_reading)

    asyncio.run(scenario())


def test_a_busy_journal_holds_traffic_and_loses_no_hop():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal) as server:
            a = await RawClient.associate(server.port, "pcp://a/controller")
            b = await RawClient.associate(server.port, "pcp://b/agent")
            journal.hold()
            first = a.send_v1("http://example.com/ping", [b.uri], b"1")
            assert (await b.receive_v1())[0]["id"] == first  # one turn is sent before it is written
            ids = [a.send_v1("http://example.com/ping", [b.uri], b"1") for _ in range(5)]
            with pytest.raises(TimeoutError):
                await b.receive_v1(0.2)
            journal.release()
            assert [(await b.receive_v1())[0]["id"] for _ in ids] == ids
            accepted = [seen for seen in journal.observations if seen.stage is Stage.ACCEPTED]
            assert len(accepted) == 2 + 6
            await a.close()
            await b.close()

    asyncio.run(scenario())


def test_graceful_stop_closes_clients_1001():
    async def scenario() -> None:
        async with broker() as server:
            client = await RawClient.associate(server.port, "pcp://a/agent")
            await server.stop()
            assert await client.closed_with() == 1001
            await client.close()

    asyncio.run(scenario())


def test_unassociated_clients_are_closed_and_idle_ones_too():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, association_timeout_ms=100, idle_timeout_ms=400) as server:
            silent = await RawClient.open(server.port)
            silent.uri = "pcp://silent/agent"
            silent.send_v1("http://example.com/ping", ["pcp://a/agent"])
            assert await silent.closed_with() == 4002
            assert Reason.NOT_ASSOCIATED in journal.reasons()
            idle = await RawClient.associate(server.port, "pcp://idle/agent")
            assert await idle.closed_with() == 1001

    asyncio.run(scenario())
