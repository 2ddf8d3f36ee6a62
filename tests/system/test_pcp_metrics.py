"""`/metrics` and `/healthz` over real sockets."""

import asyncio
import contextlib
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dovetail.journal.journal import Journal
from dovetail.runtime import metrics
from dovetail.runtime.metrics import MetricsServer
from dovetail.tlog.keys import Signer
from system.pcp_raw import RawClient
from system.pcp_site import broker, scrape

pytestmark = pytest.mark.system
SERVER = "pcp://b/server"


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


@contextlib.contextmanager
def small_disk(directory):
    """A file system of a few megabytes; skips the test where none can be mounted."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", directory], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def test_a_broker_whose_disk_is_full_is_not_well_until_there_is_room(tmp_path):
    """What it has not recorded it has not acknowledged; with room, it goes on by itself."""

    async def becomes(port, expected):
        while (health := await scrape(port, "/healthz")) != expected:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.05)
        return health

    async def scenario() -> None:
        signer = Signer(SERVER, Ed25519PrivateKey.generate())
        with Journal.open(tmp_path / "journal.db", server=SERVER, signer=signer) as journal:
            async with broker(journal, name="b", metrics_port=0) as server:
                a = await RawClient.associate(server.port, "pcp://a/agent")
                with (tmp_path / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(1 << 12))
                for _ in range(20):
                    a.send_v1("http://example.com/ping", [a.uri], b'"' + b"x" * 60_000 + b'"')
                assert await becomes(server.metrics_port, (503, "waiting for the disk\n"))
                (tmp_path / "filler").unlink()
                assert await becomes(server.metrics_port, (200, "ok\n"))
                for _ in range(20):
                    await a.receive_v1()

    with small_disk(tmp_path):
        asyncio.run(asyncio.wait_for(scenario(), 60))
