"""Real won nodes as processes on loopback with TLS, for system tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import dovetail
from dovetail.journal.reader import JournalReader
from dovetail.keys import CertificateKind, Names, create_authority, create_signing_key
from dovetail.model.hop import Stage
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome
from dovetail.won.chain import ChainState
from dovetail.won.message import decode_message
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import MessageType

QUICK = WonSettings(retry_ms=50, max_retry_ms=500)
RUN = "from dovetail.cli.won import app; app()"


class Site:
    """A directory with a CA, one certificate for localhost, and any number of nodes."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.keys = directory / "keys"
        authority = create_authority(self.keys, "test CA")
        self.certificate_key, self.certificate = authority.issue(
            "localhost", CertificateKind.SERVER, Names(dns=("localhost",))
        )
        self.authority = self.keys / "ca.pem"

    def node(self, name: str) -> NodeProcess:
        return NodeProcess(self, name)

    def home(self, node: NodeProcess, name: str) -> OwnerHome:
        atom = f"{node.uri}/atom/{name}"
        return OwnerHome.create(self.directory / name, AtomFile(atom, (f"{atom}#chat",), str(self.authority)))


class NodeProcess:
    """One `won serve`; its port stays the same across restarts, because its URI contains it."""

    def __init__(self, site: Site, name: str):
        self.site, self.name = site, name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"https://localhost:{self.port}/won/resource"
        self.key, _ = create_signing_key(site.keys, self.uri)
        self.journal = site.directory / f"{name}.db"
        self.process: subprocess.Popen | None = None

    async def start(self) -> None:
        self._launch()
        line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), 30)
        ready = json.loads(line)
        assert (ready["uri"], ready["port"]) == (self.uri, self.port)
        self.metrics_port = ready["metrics_port"]

    def _launch(self) -> None:
        arguments = ["serve", "--uri", self.uri, "--signing-key", self.key, "--journal", self.journal]
        arguments += ["--listen", f"127.0.0.1:{self.port}", "--certificate", self.site.certificate]
        arguments += ["--tls-key", self.site.certificate_key, "--authority", self.site.authority]
        arguments += ["--metrics", "127.0.0.1:0"]
        environment = os.environ | {"PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, *map(str, arguments)], stdout=subprocess.PIPE, env=environment
        )

    def kill(self) -> None:
        """No warning, no clean-up."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self) -> int:
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code


async def say(client, kind, target, text=None):
    own = client.home.file.sockets[0]
    return await client.say(lambda owner, now: owner.send_message(kind, own, target, now, text))


async def create(home):
    client = OwnerClient(home, is_created=False, settings=QUICK)
    await client.__aenter__()
    message = await client.say(lambda owner, now: owner.create(home.file.sockets, now))
    assert await client.wait_settled(message.uri, 20) is ChainState.ATOM
    return client


async def connect(alice, bob):
    for one, other in ((alice, bob), (bob, alice)):
        message = await say(one, MessageType.CONNECT, other.home.file.sockets[0])
        assert await one.wait_settled(message.uri, 20) is ChainState.COMPLETE


def conversation_of(journal_path):
    """The messages of connections in a closed journal, which must itself be intact."""
    with JournalReader.open(journal_path) as reader:
        hops = list(reader.hops())
    kept = {hop.message: hop.raw for hop in hops if hop.raw and hop.stage in (Stage.ACCEPTED, Stage.CREATED)}
    taken = [hop.message for hop in hops if hop.stage in (Stage.ACCEPTED, Stage.CREATED)]
    assert len(taken) == len(set(taken)), "something is doubled"
    return [raw for raw in kept.values() if decode_message(raw).sender_socket is not None]
