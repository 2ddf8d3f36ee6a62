"""The servers of a demo: generated keys and certificates, a broker and three nodes as separate processes."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

from dovetail.demo.layout import Layout
from dovetail.demo.processes import ServerProcess
from dovetail.demo.relays import Front
from dovetail.keys import CertificateKind, Names, create_authority, create_signing_key
from dovetail.runtime.tls import client_context

NODES = ("north", "east", "south")
BROKER = "pcp://broker/server"
QUEUE_BYTES = 256 * 1024
"""The queue limit of one connection at the broker: small, so that a slow consumer shows within seconds."""

_RULES = """
[[pcp.rules]]
name = "agents do not command"
allow = false
sender = "pcp://*/agent"
target = "pcp://*/agent"

[[pcp.rules]]
name = "everything else"
allow = true
"""


class Site:
    """Directories, keys and processes. `start` it; `stop` it, or `kill` it if something went wrong."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._keys = layout.site / "keys"
        self._authority = create_authority(self._keys, "Dovetail demo CA")
        self._authority.issue("localhost", CertificateKind.SERVER, Names(dns=("localhost",), ip=("127.0.0.1",)))
        self.broker = ServerProcess(
            "the broker", ["pcp", "serve", "--json", "--config", self._write_broker()], self.log_of("broker")
        )
        self.broker_url = ""
        self.broker_url_v2 = ""
        self.nodes = {name: NodeProcess(self, name) for name in NODES}
        self._others: list[ServerProcess] = []

    @property
    def authority(self) -> str:
        """The CA's certificate."""
        return str(self._keys / "ca.pem")

    async def start(self) -> None:
        """Start all servers at once."""
        ready, *_ = await asyncio.gather(self.broker.start(), *(node.start() for node in self.nodes.values()))
        # The certificate is for the name, but the printed URL has the IP address.
        self.broker_url = str(ready["url"]).replace("127.0.0.1", "localhost")
        self.broker_url_v2 = str(ready["url_v2"]).replace("127.0.0.1", "localhost")

    async def stop(self) -> None:
        """Shut everything down cleanly, so that all journals are closed and signed to the end."""
        for process in self._others:
            process.kill()
        await asyncio.gather(self.broker.stop(), *(node.process.stop() for node in self.nodes.values()))
        for node in self.nodes.values():
            await node.front.stop()

    def kill(self) -> None:
        """Kill all processes."""
        for process in (*self._others, self.broker, *(node.process for node in self.nodes.values())):
            process.kill()

    def client_files(self, name: str) -> tuple[str, str]:
        """Certificate and key of a client by this name, created if missing."""
        certificate, key = self._keys / f"{name}.pem", self._keys / f"{name}.key"
        if not certificate.exists():
            self._authority.issue(name, CertificateKind.CLIENT, Names())
        return str(certificate), str(key)

    def client_context(self, name: str) -> ssl.SSLContext:
        """TLS for a client by this name."""
        return client_context(*self.client_files(name), self.authority)

    def listener(self, uri: str) -> ServerProcess:
        """A client of the broker in its own process: `dovetail pcp listen`."""
        name = uri.removeprefix("pcp://").partition("/")[0]
        certificate, key = self.client_files(name)
        arguments = ["pcp", "listen", "--url", self.broker_url, "--as", uri, "--certificate", certificate]
        process = ServerProcess(uri, [*arguments, "--tls-key", key, "--authority", self.authority], self.log_of(name))
        self._others.append(process)
        return process

    def node_key(self, uri: str) -> Path:
        """Create a signing key for a node."""
        return create_signing_key(self._keys, uri)[0]

    def node_arguments(self) -> list[str]:
        """TLS for a node."""
        files = {"--certificate": "localhost.pem", "--tls-key": "localhost.key", "--authority": "ca.pem"}
        return [text for option, name in files.items() for text in (option, str(self._keys / name))]

    def log_of(self, name: str) -> Path:
        """The log file of a process by this name."""
        return self.layout.logs / f"{name}.log"

    def _write_broker(self) -> Path:
        path = self.layout.site / "broker.toml"
        settings = {
            "name": "broker",
            "port": 0,
            "certificate": str(self._keys / "localhost.pem"),
            "key": str(self._keys / "localhost.key"),
            "authority": str(self._keys / "ca.pem"),
            "journal": str(self.layout.journals / "broker.journal"),
            "signing_key": str(create_signing_key(self._keys, BROKER)[0]),
            "access_log": False,
            "queue_bytes": QUEUE_BYTES,
        }
        # strings, numbers and booleans are the same in JSON and TOML
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        path.write_text("\n".join(["[pcp]", *lines, _RULES]))
        return path


class NodeProcess:
    """A won node behind a proxy, whose port is part of the node's URI and outlives the process."""

    def __init__(self, site: Site, name: str) -> None:
        self.name = name
        self.front = Front()
        self.uri = ""
        self.journal = site.layout.journals / f"node-{name}.journal"
        self.process = ServerProcess("", [], site.log_of(name))
        self._site = site

    async def start(self) -> None:
        """Start it for the first time."""
        await self.front.start()
        self.uri = f"https://localhost:{self.front.port}/won/resource"
        arguments = ["won", "serve", "--uri", self.uri, "--signing-key", self._site.node_key(self.uri)]
        arguments += ["--journal", self.journal, "--listen", "127.0.0.1:0", *self._site.node_arguments()]
        self.process = ServerProcess(f"node {self.name}", arguments, self._site.log_of(self.name))
        await self.restart()

    async def restart(self) -> None:
        """Start it again after it ended."""
        self.front.target = int((await self.process.start())["port"])

    def kill(self) -> None:
        """Kill it without warning."""
        self.process.kill()
