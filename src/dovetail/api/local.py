"""A site for tests, notebooks and first steps: servers on loopback in a thread of this process, with keys and journals.

The servers are the same as those of `dovetail pcp serve`, `won serve` and `swarm serve`. They listen only on 127.0.0.1;
without TLS, anyone on this machine may use them.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anyio.from_thread import start_blocking_portal

from dovetail.api.failures import files_as
from dovetail.api.values import check_text
from dovetail.journal.journal import JournalOptions
from dovetail.keys.files import make_private_directory
from dovetail.model.errors import Closed, ConfigError, UsageError
from dovetail.runtime.listening import check_port

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from dovetail.api.pcp import PcpClient
    from dovetail.api.receipts import Receipt
    from dovetail.api.swarm import SwarmPeer
    from dovetail.api.won import WonClient

T = TypeVar("T")
HOST = "127.0.0.1"
FABRICS = ("pcp", "won", "swarm")
CHECKPOINT_WAIT_S = 30.0
JOURNAL_OPTIONS = JournalOptions(checkpoint_interval_s=0.2)
"""Signed often, so that receipts are available quickly."""
_SWARM_WORK = 1_000


class Site:
    """Servers on this machine. Use it with `with`, or `close` it."""

    def __init__(self, *fabrics: str, directory: Path | None = None, port: int = 0) -> None:
        chosen = fabrics or ("pcp",)
        for fabric in chosen:
            if fabric not in FABRICS:
                raise UsageError(f"fabric {fabric!r}, expected any of {', '.join(FABRICS)}")
        self.url: str | None = None
        """The broker's URL."""
        self.node: str | None = None
        """The won node's URI."""
        self.journals: list[Path] = []
        """The servers' journals."""
        self.trust: list[Path] = []
        """The servers' public keys, as `Receipt.verify` takes them."""
        self._peers: dict[str, Path] = {}
        self._door: list[str] = []
        self._is_closed = False
        self._stack = contextlib.ExitStack()
        try:
            if "pcp" in chosen:
                check_port("tcp", HOST, port)
            if directory is None:
                with files_as(ConfigError):
                    directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dovetail-")))
            self.directory = Path(directory)
            try:
                make_private_directory(self.directory)
            except OSError as error:
                raise ConfigError(f"{self.directory} cannot be created: {error.strerror or error}") from error
            self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal("asyncio"))
            if "pcp" in chosen:
                self._start_broker(port)
            if "won" in chosen:
                self._start_node()
            self._has_swarm = "swarm" in chosen
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the servers; a temporary directory is removed."""
        self._is_closed = True
        self._stack.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the site is closed: `local` makes another one")

    def connect(self, identity: str, **options: Any) -> Any:
        """A client: of the broker by a pcp:// URI, of the node or the swarm by a plain name, such as "ann".

        With more than one of these fabrics, a name is written "won:ann" or "swarm:ann". `pcp`, `won` and `swarm` give
        the same clients, with their types.
        """
        if check_text(identity, "identity").startswith("pcp://"):
            return self.pcp(identity, **options)
        fabric, _, name = identity.rpartition(":")
        if not fabric:
            fabric = "won" if self.node is not None else "swarm"
        if fabric not in ("won", "swarm"):
            raise UsageError(f"{identity!r}, expected pcp://NAME/TYPE, won:NAME, swarm:NAME or a plain name")
        return self.won(name, **options) if fabric == "won" else self.swarm(name)

    def pcp(self, identity: str, **options: Any) -> PcpClient:
        """A client of the broker."""
        from dovetail.api.pcp import PcpClient

        self._check_open()
        if self.url is None:
            raise UsageError('this site has no broker; use local("pcp")')
        return PcpClient(self.url, identity, **options)

    def won(self, name: str, **options: Any) -> WonClient:
        """The owner of the atom of this name, which is created on first use."""
        from dovetail.api.won import WonClient

        self._check_open()
        if self.node is None:
            raise UsageError('this site has no won node; use local("won")')
        home = self.directory / "owners" / name
        if not home.exists():
            self._call(lambda: WonClient.create(self.node or "", home, name=name))
        return WonClient(home, **options)

    def swarm(self, name: str) -> SwarmPeer:
        """The peer of this name, which joins the swarm on first use."""
        from dovetail.api.swarm import SwarmPeer

        self._check_open()
        if not self._has_swarm:
            raise UsageError('this site has no swarm; use local("swarm")')
        if name not in self._peers:
            self._start_peer(name)
        return SwarmPeer(self._peers[name])

    def receipt(self, address: str, *, redact: bool = False) -> Receipt:
        """The receipt of a message, once the servers have signed what they saw of it."""
        from dovetail.api.receipts import Receipt

        self._check_open()
        return Receipt.build(address, journals=self.journals, redact=redact, wait=CHECKPOINT_WAIT_S)

    def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        return self._portal.call(work)

    def _start_broker(self, port: int) -> None:
        from dovetail.pcp.settings import ALLOW_ALL, PcpSettings
        from dovetail.runtime.pcp_serve import describe, open_journal
        from dovetail.runtime.pcp_server import PcpServer

        path = self.directory / "broker" / "journal.db"
        make_private_directory(path.parent)
        settings = PcpSettings(
            name="broker",
            host=HOST,
            port=port,
            insecure_plain=True,
            rules=ALLOW_ALL,
            journal=str(path),
            durability="full",  # what was accepted can be proven at once
        )
        journal = open_journal(settings, JOURNAL_OPTIONS)
        assert journal is not None
        self._stack.callback(journal.close)
        server = PcpServer(settings, journal)
        self._call(server.start)
        self._stack.callback(self._portal.call, server.stop)
        self.url = str(describe(server)["url"])
        self._add(path, next(path.parent.glob("*.vkey")))

    def _start_node(self) -> None:
        from dovetail.keys.signing import create_signing_key, file_stem, load_signing_key
        from dovetail.runtime.won_server import NodeOptions, NodeServer

        directory = self.directory / "node"
        make_private_directory(directory)
        known = next(directory.glob("port-*"), None)
        port = _free_port() if known is None else int(known.name.removeprefix("port-"))
        (directory / f"port-{port}").touch()  # the node's URI contains the port, and its atoms contain the URI
        uri = f"http://{HOST}:{port}/won/resource"
        key = directory / f"{file_stem(uri)}.skey"
        if not key.exists():
            create_signing_key(directory, uri)
        path = directory / "journal.db"

        async def start() -> NodeServer:
            server = NodeServer(
                NodeOptions(uri=uri, host=HOST, port=port, journal=path, journal_options=JOURNAL_OPTIONS),
                load_signing_key(key, uri).private_key,
            )
            return await server.__aenter__()

        server = self._call(start)
        self._stack.callback(self._portal.call, server.stop)
        self.node = uri
        self._add(path, key.with_suffix(".vkey"))

    def _start_peer(self, name: str) -> None:
        from dovetail.journal.reader import read_identity
        from dovetail.runtime.swarm_control import CONTROL_FILE, ControlServer
        from dovetail.runtime.swarm_node import JOURNAL_FILE, SwarmNode
        from dovetail.swarm.settings import SwarmSettings

        directory = self.directory / "peers" / name

        async def start() -> SwarmNode:
            settings = SwarmSettings(name="local", work=_SWARM_WORK)
            node = SwarmNode(settings, directory, bootstrap=self._door, threads=1, journal_options=JOURNAL_OPTIONS)
            await node.__aenter__()
            control = ControlServer(node, directory / CONTROL_FILE)
            try:
                await control.start()
            except BaseException:
                await node.close()
                raise
            self._stack.callback(self._portal.call, control.stop)
            return node

        node = self._call(start)
        self._stack.callback(self._portal.call, node.close)
        if self._door:
            self._call(node.linked)
        else:
            self._door = list(node.endpoints)
        self._peers[name] = directory
        path = directory / JOURNAL_FILE
        key = directory / "peer.vkey"
        key.write_text(read_identity(path).verifier.text() + "\n")
        self._add(path, key)

    def _add(self, journal: Path, key: Path) -> None:
        self.journals.append(journal)
        self.trust.append(key)


def local(*fabrics: str, directory: Path | None = None, port: int = 0) -> Site:
    """A site on loopback in this process, with new keys and journals; a broker, unless other fabrics are named.

    Without `directory` everything is in a temporary directory, removed when the site is closed.
    """
    return Site(*fabrics, directory=directory, port=port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
