"""Figures from real metrics servers, and from those that do not answer."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from dovetail.dashboard.gauges import Endpoint, ask, parse_endpoint
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
            return await asyncio.to_thread(ask, (Endpoint("peer", f"http://127.0.0.1:{port}/metrics"),))
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
    (told,) = ask((Endpoint("nobody", "http://127.0.0.1:1/metrics"),))
    assert "refused" in told["error"]


@pytest.mark.parametrize("text", ["http://x/metrics", "a=", "=http://x", "a=file:///etc/passwd"])
def test_refuses_what_is_no_endpoint(text):
    with pytest.raises(UsageError):
        parse_endpoint(text)
