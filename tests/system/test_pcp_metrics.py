"""`/metrics` and `/healthz` over real sockets."""

import asyncio
import contextlib

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dovetail.runtime import metrics
from dovetail.runtime.metrics import MetricsServer
from system.pcp_raw import RawClient
from system.pcp_site import broker, scrape

pytestmark = pytest.mark.system


def test_the_brokers_numbers_can_be_parsed():
    async def scenario() -> None:
        async with broker(metrics_port=0) as server:
            a = await RawClient.associate(server.port, "pcp://a/agent")
            b = await RawClient.associate(server.port, "pcp://b/controller")
            a.send_v1("http://example.com/ping", [b.uri], b"1")
            await b.receive_v1()
            status, text = await scrape(server.metrics_port)
            families = {family.name: family for family in text_string_to_metric_families(text)}
            assert status == 200
            samples = {
                (sample.name, *sorted(sample.labels.items())): sample.value
                for family in families.values()
                for sample in family.samples
            }
            assert samples["dovetail_pcp_connections",] == 2
            assert samples["dovetail_pcp_clients", ("type", "agent")] == 1
            assert samples["dovetail_pcp_messages_total", ("reason", ""), ("stage", "delivered")] == 5
            assert samples["dovetail_pcp_handshake_seconds_count",] == 2
            assert samples["dovetail_pcp_routing_seconds_count",] >= 3
            assert samples["dovetail_pcp_queue_bytes",] == 0

    asyncio.run(scenario())


def test_health_and_everything_else():
    async def scenario() -> None:
        health = "ok"
        server = MetricsServer(CollectorRegistry(), lambda: health)
        port = await server.start("127.0.0.1", 0)
        assert await scrape(port, "/healthz") == (200, "ok\n")
        health = "draining"
        assert await scrape(port, "/healthz") == (503, "draining\n")
        assert (await scrape(port, "/elsewhere"))[0] == 404
        assert (await scrape(port, "/metrics?x=1"))[0] == 200
        for request, status in ((b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"nonsense\r\n\r\n", b"400")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            assert (await reader.read()).split(b" ")[1] == status
            writer.close()
            await writer.wait_closed()
        await server.stop()
        await server.stop()

    asyncio.run(scenario())


def test_a_request_without_end_is_dropped():
    async def scenario() -> None:
        server = MetricsServer(CollectorRegistry(), lambda: "ok")
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 20_000)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await server.stop()

    asyncio.run(scenario())


def test_connections_are_bounded_and_dropped_at_the_end(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT_S", 600)

    async def scenario() -> None:
        server = MetricsServer(CollectorRegistry(), lambda: "ok")
        port = await server.start("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        assert await scrape(port, "/healthz") == (200, "ok\n")
        for reader, writer in silent[:15]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "dropped for a later one"
            writer.close()
        await server.stop()
        for reader, writer in silent[15:]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "dropped at the end"
            writer.close()

    asyncio.run(scenario())
