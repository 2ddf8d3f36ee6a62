"""A node's `/metrics` and `/healthz` over real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.parser import text_string_to_metric_families

from dovetail.model.errors import JournalFull
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome
from dovetail.runtime.won_metrics import MAX_NAMED_NODES, _describe_queues
from dovetail.runtime.won_server import NodeOptions, NodeServer
from dovetail.won.status import QueueStatus
from dovetail.won.vocabulary import MessageType
from system.pcp_site import scrape

pytestmark = pytest.mark.system


def read_samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def run_node(directory):
    """A node and an owner that writes to a node that does not exist."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    node = f"http://127.0.0.1:{port}/won/resource"
    options = NodeOptions(
        uri=node, host="127.0.0.1", port=port, journal=directory / "node.db", metrics=("127.0.0.1", 0)
    )
    async with NodeServer(options, Ed25519PrivateKey.generate()) as server:
        atom = f"{node}/atom/alice"
        home = OwnerHome.create(directory / "alice", AtomFile(atom, (f"{atom}#chat",)))
        async with OwnerClient(home, is_created=False) as client:
            created = await client.say(lambda owner, now: owner.create(home.file.sockets, now))
            await client.wait_settled(created.uri, 10)
            away = "http://127.0.0.1:1/won/resource"
            sent = await client.say(
                lambda owner, now: owner.send_message(MessageType.CONNECT, f"{atom}#chat", f"{away}/atom/bob#chat", now)
            )
            await client.wait_settled(sent.uri, 0.5)
            health = await scrape(server.metrics_port, "/healthz")
            status, text = await scrape(server.metrics_port)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("dovetail.runtime.won_server.LATE_MS", 1)
                late = await scrape(server.metrics_port, "/healthz")
            assert late[0] == 200
            assert late[1].startswith(f"ok, but {away} has not been reached for ")
        server.journal._stalled = JournalFull("no room")
        stalled = await scrape(server.metrics_port, "/healthz")
    return away, status, read_samples(text), health, stalled, server


def test_the_nodes_numbers_can_be_parsed(tmp_path, caplog):
    away, status, samples, health, stalled, server = asyncio.run(run_node(tmp_path))
    assert caplog.text.count(f"no link to {away}: what is for it waits") == 1
    assert (status, health) == (200, (200, "ok\n"))
    assert stalled == (503, "waiting for the disk\n")
    assert samples["dovetail_won_messages_total", ("reason", ""), ("stage", "accepted")] == 2
    assert samples["dovetail_won_messages_total", ("reason", ""), ("stage", "created")] == 2
    assert samples["dovetail_won_atoms", ("state", "Active")] == 1
    assert samples["dovetail_won_connections", ("state", "RequestSent")] == 1
    assert samples["dovetail_won_chains", ("state", "awaiting_recipient")] == 1
    assert samples["dovetail_won_chains", ("state", "atom")] == 1
    assert samples["dovetail_won_links", ("kind", "owner")] == 1
    assert samples["dovetail_won_queue_messages", ("node", away)] == 1
    assert samples["dovetail_won_queue_oldest_seconds", ("node", away)] > 0.4
    assert samples["dovetail_won_node_linked", ("node", away)] == 0
    assert samples["dovetail_won_keys", ("kind", "own")] == 2
    assert samples["dovetail_journal_hops_total",] == server.journal.size
    assert samples["dovetail_journal_bytes",] > 0


def test_any_number_of_nodes_makes_a_bounded_answer():
    queues = [
        QueueStatus(
            node=f"https://n{number}.example/won/resource", length=number, oldest_ms=number * 1000, is_open=False
        )
        for number in range(MAX_NAMED_NODES + 5)
    ]
    length, age, _ = _describe_queues(queues)
    assert len(length.samples) == len(age.samples) == MAX_NAMED_NODES + 1
    assert length.samples[0].value == MAX_NAMED_NODES + 4
    assert (length.samples[-1].labels, length.samples[-1].value) == ({"node": "others"}, 0 + 1 + 2 + 3 + 4)
    assert age.samples[-1].value == 4
