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
from dovetail.keys import CertificateKind, Names, create_authority, create_signing_key
from dovetail.shells.won_client import AtomFile, OwnerHome

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
    """One `won serve`; its port stays the same over restarts, because its URI names it."""

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
        assert json.loads(line)["port"] == self.port

    def _launch(self) -> None:
        arguments = ["serve", "--uri", self.uri, "--signing-key", self.key, "--journal", self.journal]
        arguments += ["--listen", f"127.0.0.1:{self.port}", "--certificate", self.site.certificate]
        arguments += ["--certificate-key", self.site.certificate_key, "--authority", self.site.authority]
        environment = os.environ | {"PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, *map(str, arguments)], stdout=subprocess.PIPE, env=environment
        )

    def kill(self) -> None:
        """No warning, no cleaning up."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self) -> int:
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        self.process.stdout.close()
        return code
