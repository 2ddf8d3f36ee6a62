"""Commands and API calls where a certificate is of another CA or has expired, the server's or the client's."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import dovetail as api
from api.left_behind import nothing_left
from cli.grid_site import commands, share
from dovetail.journal.journal import Journal
from dovetail.keys.authority import CertificateKind, Names
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.runtime.tls import guess_refusal
from dovetail.runtime.won_client import AtomFile, OwnerHome
from dovetail.runtime.won_server import NodeOptions, NodeServer
from dovetail.tlog.keys import Signer
from system.pcp_site import Site, broker

pytestmark = pytest.mark.system
ANN, BEN = "pcp://ann/agent", "pcp://ben/agent"
REASONS = {
    ("server", "foreign"): "cannot be reached: certificate not accepted: "
    "unable to get local issuer certificate; the authority must be the CA that signed it",
    ("server", "expired"): "cannot be reached: certificate not accepted: certificate has expired",
    (
        "client",
        "foreign",
    ): "cannot be reached: the peer closed the connection; our certificate .*/ann.pem was not issued "
    "by the CA in .*/ca.pem",
    (
        "client",
        "expired",
    ): "cannot be reached: the peer closed the connection; our certificate .*/late.pem expired on 20",
}
PCP = {
    "pcp send": (BEN, "1"),
    "pcp send --reply": (BEN, "1"),
    "pcp send --protocol 2": (BEN, "1"),
    "pcp send --wait 200ms": (BEN, "1"),
    "pcp listen": (),
    "pcp inventory": (),
    "pcp inventory --follow": (),
    "pcp trace": ("text", BEN, "--config", "{config}", "--sender", ANN),
}
TARGET = "https://localhost:1/won/resource/atom/ben#chat"
WON = {
    "won create": ("--node", "{node}", "--authority", "{authority}", "--home", "{new}"),
    "won create --further-client-of {home}": ("--node", "{node}", "--home", "{new}"),
    "won connect": (TARGET, "--home", "{home}"),
    "won send": (TARGET, "hello", "--home", "{home}"),
    "won close": (TARGET, "--home", "{home}"),
    "won replace": ("--home", "{home}"),
    "won activate": ("--home", "{home}"),
    "won deactivate": ("--home", "{home}"),
    "won delete": ("--home", "{home}"),
    "won get": ("{node}/atom/ann", "--home", "{home}"),
}
OTHERS = {"won log", "context check", "otel"}


class Servers:
    """Brokers and nodes with a usable certificate, one of another CA, and one that has expired."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ours, theirs = Site(directory / "ours"), Site(directory / "theirs")
        then = dt.datetime.now(dt.UTC) - dt.timedelta(days=30)
        names = Names(dns=["localhost"], ip=["127.0.0.1"])
        for site in (self.ours, theirs):
            site.authority.issue("ann", CertificateKind.CLIENT, Names())
            site.authority.issue("old", CertificateKind.SERVER, names, days=1, now=then)
            site.authority.issue("late", CertificateKind.CLIENT, Names(), days=1, now=then)
        self.authority = str(self.ours.directory / "ca.pem")
        self.clients = {"good": (self.ours, "ann"), "foreign": (theirs, "ann"), "expired": (self.ours, "late")}
        self._certificates = {
            "good": (self.ours, "localhost"),
            "foreign": (theirs, "localhost"),
            "expired": (self.ours, "old"),
        }
        self.brokers: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        self.homes: dict[str, Path] = {}
        self._loop = asyncio.new_event_loop()
        self._is_ready, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Servers:
        self._thread.start()
        assert self._is_ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60)
        self._loop.close()

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for name, (site, stem) in self._certificates.items():
                files = {"certificate": f"{site.directory}/{stem}.pem", "key": f"{site.directory}/{stem}.key"}
                started = await stack.enter_async_context(broker(**files, authority=self.authority))
                self.brokers[name] = f"wss://localhost:{started.port}/pcp"
                options = NodeOptions(
                    uri="https://localhost/won/resource",
                    host="127.0.0.1",
                    port=0,
                    journal=self.directory / f"{name}.db",
                    certificate=files["certificate"],
                    certificate_key=files["key"],
                )
                node = NodeServer(options, Ed25519PrivateKey.generate())
                port = await node.start()
                stack.push_async_callback(node.stop)
                uri = self.nodes[name] = f"https://localhost:{port}/won/resource"
                file = AtomFile(f"{uri}/atom/ann", (f"{uri}/atom/ann#chat",), self.authority)
                self.homes[name] = OwnerHome.create(self.directory / "homes" / name, file).directory
            self._is_ready.set()
            await self._ended.wait()

    def tls(self, client: str) -> api.TLS:
        site, stem = self.clients[client]
        stem = f"{site.directory}/{stem}"
        return api.TLS(certificate=f"{stem}.pem", key=f"{stem}.key", authority=self.authority)

    @staticmethod
    def pair(side: str, wrong: str) -> tuple[str, str]:
        """Which server and which client have a part in a case."""
        return (wrong, "good") if side == "server" else ("good", wrong)

    def options(self, server: str, client: str) -> list[str]:
        tls = self.tls(client)
        files = [f"--certificate={tls.certificate}", f"--tls-key={tls.key}", f"--authority={tls.authority}"]
        return ["--url", self.brokers[server], "--as", ANN, *files]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    log = logging.getLogger("dovetail.websocket")  # the servers are in this process, and would write among the output
    log.addFilter(nothing := lambda _: False)
    with Servers(tmp_path_factory.mktemp("certificates")) as servers:
        yield servers
    log.removeFilter(nothing)


@pytest.fixture(autouse=True)
def config_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("DOVETAIL_CONTEXT", raising=False)


def check(ran, server, reason):
    assert (ran.code, ran.out, ran.err.count("\n")) == (4, "", 1), ran
    assert re.match(f"dovetail: {server} {reason}", ran.err), ran.err


CASES = [("server", "foreign"), ("server", "expired"), ("client", "foreign"), ("client", "expired")]


@pytest.mark.parametrize(("line", "case"), share(((line, case) for line in PCP for case in CASES), 0))
def test_brokers(dovetail, servers, tmp_path, line, case):
    (tmp_path / "broker.toml").write_text('[pcp]\nname = "broker"\nrules = []\n')
    server, client = servers.pair(*case)
    words = [word.format(config=tmp_path / "broker.toml") for word in (*line.split(), *PCP[line])]
    ran = dovetail(*words, *servers.options(server, client))
    check(ran, servers.brokers[server], REASONS[case])


@pytest.mark.parametrize(("line", "wrong"), share(itertools.product(WON, ["foreign", "expired"]), 0))
def test_nodes(dovetail, servers, tmp_path, line, wrong):
    """Owners have no certificates: they sign what they send."""
    places = {
        "node": servers.nodes[wrong],
        "authority": servers.authority,
        "home": servers.homes[wrong],
        "new": tmp_path / "new",
    }
    ran = dovetail(*(word.format(**places) for word in (*line.split(), *WON[line])))
    check(ran, servers.nodes[wrong], REASONS["server", wrong])
    assert not (tmp_path / "new").exists()


def test_no_command_is_left_out():
    """A new command that takes a certificate, a CA or an owner's directory belongs to a table above."""
    known = {" ".join(line.split()[:2]) for line in (*PCP, *WON)} | OTHERS
    about = {"certificate", "authority", "home"}
    taking = {name for name, each in commands().items() if about & {parameter.name for parameter in each.params}}
    assert taking - {"context save", "keys revoke", "pcp serve", "won serve"} <= known
    assert known <= set(commands())


@pytest.mark.parametrize("wrong", ["foreign", "expired"])
def test_commands_with_another_answer(dovetail, servers, wrong):
    """`won log` prints what is on disk, `context check` is asked whether servers answer."""
    ran = dovetail("won", "log", "--home", servers.homes[wrong])
    assert ran.code == 0
    assert re.search(f"{servers.nodes[wrong]} {REASONS['server', wrong]}.*; showing the local copy", ran.err)
    dovetail("context", "save", "c", *servers.options(wrong, "good"))
    ran = dovetail("context", "check", "c")
    assert ran.code == 3
    assert re.search(f"{servers.brokers[wrong]} {REASONS['server', wrong]}", ran.err)


@pytest.mark.parametrize("wrong", ["foreign", "expired"])
def test_a_receiver_of_spans(dovetail, servers, tmp_path, monkeypatch, wrong):
    """It is certified by whom the system trusts, or by whom this variable names."""
    monkeypatch.setenv("SSL_CERT_FILE", servers.authority)
    signer = Signer(BEN, Ed25519PrivateKey.generate())
    with Journal.open(tmp_path / "journal.db", server=BEN, signer=signer) as journal:
        journal.append([Observation(at_us=1, stage=Stage.ACCEPTED, message=address_of(b"m"), raw=b"m")])
    url = servers.nodes[wrong].removesuffix("/won/resource")
    ran = dovetail("--log-level", "error", "otel", tmp_path / "journal.db", "--once", "--endpoint", url)
    check(ran, f"{url}/v1/traces", REASONS["server", wrong])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_api(servers, tmp_path, case):
    server, client = servers.pair(*case)

    def broker() -> api.PcpClient:
        return api.connect(servers.brokers[server], ANN, tls=servers.tls(client))

    async def opened(made):
        async with nothing_left(), made:
            pass

    async def created():
        async with nothing_left():
            await api.WonClient.create(servers.nodes[server], tmp_path / "new", authority=servers.authority)

    calls = [(servers.brokers, lambda: asyncio.run(opened(broker())))]
    calls.append((servers.brokers, api.sync.connect(servers.brokers[server], ANN, tls=servers.tls(client)).__enter__))
    if case[0] == "server":
        home = servers.homes[server]
        calls.append((servers.nodes, lambda: asyncio.run(opened(api.connect(servers.nodes[server], home)))))
        calls.append((servers.nodes, lambda: asyncio.run(created())))
    for places, call in calls:
        with pytest.raises(api.ConnectFailed, match=f"^{places[server]} {REASONS[case]}") as raised:
            call()
        assert (raised.value.url, raised.value.retriable) == (places[server], True)
    assert not (tmp_path / "new").exists()


def test_a_refusal_of_which_nothing_is_known(tmp_path):
    site = Site(tmp_path)
    site.authority.issue("ann", CertificateKind.CLIENT, Names())
    for authority in (None, str(tmp_path / "ca.pem"), str(tmp_path / "no.pem")):
        assert guess_refusal(str(tmp_path / "ann.pem"), authority) == "it may not accept our certificate"
