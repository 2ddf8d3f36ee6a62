"""`dovetail up` with real servers: killed, stopped, misconfigured; and nothing acknowledged is lost."""

import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from dovetail.hop import Stage
from dovetail.journal.lake import manifest_paths, read_manifest
from dovetail.journal.reader import JournalReader
from system.up_site import dovetail, free_port, json_lines, running

pytestmark = pytest.mark.system


class Place(NamedTuple):
    """A directory with `site.toml`, and the ports in it."""

    directory: Path
    broker: int
    peer: int
    metrics: int

    @property
    def peer_directory(self) -> Path:
        return self.directory / "journals" / "swarm_test_peer"

    @property
    def broker_journal(self) -> Path:
        return self.directory / "journals" / "pcp_broker_server.journal"

    def run(self, *arguments: object) -> str:
        ran = dovetail(*arguments, cwd=self.directory)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def send(self, target: str) -> None:
        """Send a message and await the broker's report, which it gives when it has journaled the message."""
        url = f"ws://127.0.0.1:{self.broker}/pcp"
        self.run("pcp", "send", "http://example.com/x", target, "--url", url, "--as", "pcp://a/agent", "--report")


@pytest.fixture
def site(tmp_path):
    """A file with a broker and a peer, and the key that the broker needs."""
    broker, peer, metrics = free_port(), free_port(socket.SOCK_DGRAM), free_port()
    (tmp_path / "site.toml").write_text(
        f"""
        [supervisor]
        metrics = "127.0.0.1:{metrics}"
        restart_min_s = 0.1
        [lake]
        seal_interval_s = 1
        [journal]
        checkpoint_interval_s = 0.5
        [[pcp]]
        role = "hub"
        insecure_plain = true
        port = {broker}
        rules = [{{ allow = true }}]
        [[swarm]]
        role = "edge"
        name = "test"
        work = 1
        listen = ["127.0.0.1:{peer}"]
        """
    )
    made = dovetail("keys", "issue", "pcp://broker/server", "--kind", "signing", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    return Place(tmp_path, broker, peer, metrics)


def health(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def hops(journal: Path) -> list[tuple[Stage, bytes | None]]:
    with JournalReader.open(journal) as reader:
        return [(hop.stage, hop.raw) for hop in reader.hops()]


def test_killed_servers_are_back_and_nothing_acknowledged_is_lost(site):
    with running(site.directory, "site.toml") as up:
        for name in ("pcp/broker", "swarm/test/peer", "seal"):
            up.await_line(f" {name}: running: ")
        assert health(site.metrics) == (200, "well\n")
        addresses = [
            site.run("swarm", "publish", "--dir", site.peer_directory, f"before {n}").strip() for n in range(3)
        ]
        site.send("pcp://b/agent")
        for name in ("pcp/broker", "swarm/test/peer"):
            os.kill(up.pid_of(name), signal.SIGKILL)
            up.await_line(f" {name}: waiting: was killed by SIGKILL; starts again in ")
            up.await_line(f" {name}: running: ", count=2)
        assert health(site.metrics) == (200, "well\n")
        status = json_lines(site.run("swarm", "status", "--dir", site.peer_directory, "--json"))[0]
        assert status["messages"] == 3
        site.send("pcp://c/agent")
        addresses.append(site.run("swarm", "publish", "--dir", site.peer_directory, "after").strip())
        assert up.stop() == 0
    created = [raw for stage, raw in hops(site.peer_directory / "journal.db") if stage is Stage.CREATED]
    assert [
        raw is not None and text in raw
        for raw, text in zip(created, (b"before 0", b"before 1", b"before 2", b"after"), strict=True)
    ] == [True] * 4
    assert len(set(addresses)) == 4
    assert sum(stage is Stage.ACCEPTED for stage, _ in hops(site.broker_journal)) >= 2
    verified = site.run("journal", "verify", site.broker_journal, site.peer_directory / "journal.db")
    assert verified.count(": intact; ") == 2
    sealed = {manifest.server: manifest.end for manifest in map(read_manifest, manifest_paths(site.directory / "lake"))}
    for journal in (site.broker_journal, site.peer_directory / "journal.db"):
        with JournalReader.open(journal) as reader:
            assert sealed[reader.identity.server] == reader.size, "the last sealing has everything"
