"""Figures from real metrics servers, and from those that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from dovetail.dashboard import gauges, hub
from dovetail.dashboard.gauges import Endpoint, ask, parse_endpoint
from dovetail.dashboard.site_sources import Site
from dovetail.model.errors import UsageError
from dovetail.runtime.metrics import MetricsServer


def test_reads_what_a_server_tells():
    registry = CollectorRegistry()
    Gauge("dovetail_swarm_tips", "Messages that no unexpired message refers to.", registry=registry).set(4)
    Counter("dovetail_swarm_refused", "Refused.", ["reason"], registry=registry).labels("<b>").inc(2)
    Gauge("python_things", "Of no interest.", registry=registry).set(1)

    async def run():
        server = MetricsServer(registry, lambda: "ok")
        port = await server.start("127.0.0.1", 0)
        try:
            return await ask((Endpoint("peer", f"http://127.0.0.1:{port}/metrics"),))
        finally:
            await server.stop()

    (told,) = asyncio.run(run())
    assert told["error"] == ""
    assert {(each["name"], each["labels"], each["value"]) for each in told["figures"]} == {
        ("healthy", "", 1.0),
        ("swarm_tips", "", 4.0),
        ("swarm_refused_total", "reason=<b>", 2.0),
    }


def test_says_who_does_not_answer():
    (told,) = asyncio.run(ask((Endpoint("nobody", "http://127.0.0.1:1/metrics"),)))
    assert "refused" in told["error"]


async def drip(reader, writer):
    """A server whose answer arrives byte by byte and never ends."""
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)


async def flood(reader, writer):
    """A server whose answer is larger than any page of metrics."""
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 << 20))
        await writer.drain()


async def stay_silent(reader, writer):
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        await reader.read()


@pytest.mark.parametrize(
    ("behave", "words"), [(drip, "did not answer"), (stay_silent, "did not answer"), (flood, "something else")]
)
def test_an_endpoint_that_is_slow_or_endless_delays_no_look_at_the_journals(behave, words, folder, monkeypatch):
    monkeypatch.setattr(gauges, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(hub, "LOOK_EVERY_S", 0.01)
    looks_while_asking = []

    async def run():
        server = await asyncio.start_server(behave, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
        watched = hub.Hub(hub.Sources(Site((folder,)), endpoints=(Endpoint("slow", url),)))
        async with server, watched.running():
            while not (state := json.loads(watched.latest))["gauges"]:
                looks_while_asking.append(state["hops"])
                await asyncio.sleep(0.01)
            return state

    state = asyncio.run(run())
    assert words in state["gauges"][0]["error"]
    assert [alert["about"] for alert in state["alerts"]] == ["slow"]
    assert set(looks_while_asking) == {state["hops"]}
    assert looks_while_asking, "the journals were shown before the endpoint was given up"


@pytest.mark.parametrize("text", ["http://x/metrics", "a=", "=http://x", "a=file:///etc/passwd"])
def test_refuses_what_is_no_endpoint(text):
    with pytest.raises(UsageError):
        parse_endpoint(text)
