"""Every call of the API with what it cannot use: one error of our tree, with a text, and whether to try again."""

import asyncio

import pytest

import dovetail
from dovetail.swarm.settings import SwarmSettings
from tables_on_disk import write_tables

pytestmark = pytest.mark.system
ANN = "pcp://ann/agent"
NOBODY = "00" * 32


@pytest.fixture(scope="module")
def site():
    with dovetail.local("pcp", "swarm") as site:
        yield site


@pytest.fixture(scope="module")
def whole_site():
    with dovetail.local("pcp", "won", "swarm") as site:
        yield site


@pytest.fixture(scope="module")
def place(tmp_path_factory, site):
    """A directory with garbage, an empty directory, tables, and a message that was sent."""
    place = tmp_path_factory.mktemp("place")
    (place / "garbage").write_bytes(b"\x00garbage" * 100)
    (place / "empty").mkdir()
    write_tables(place / "tables", {"findings": []})
    with dovetail.sync.connect(site.url, ANN) as ann:
        addresses = [ann.send(ANN, "me").address for _ in range(17)]  # two of them start with the same digit
    site.receipt(addresses[0]).save(place / "good.receipt")
    digits = [address[0] for address in addresses]
    (place / "digit").write_text(next(digit for digit in digits if digits.count(digit) > 1))
    return place


def started(make):
    """Run something that must be awaited, or connected."""

    async def work():
        made = make()
        if hasattr(made, "__aenter__"):
            async with made:
                return None
        return await made

    return asyncio.run(work())


async def first(iterator):
    return await anext(aiter(iterator))


def tables(place):
    return dovetail.open_tables(place / "tables")


def port_of(site):
    return int(site.url.rpartition(":")[2].partition("/")[0])


def sealed(site, place):
    lake = dovetail.open_lake(place / "sealed")
    lake.seal(site.journals)
    return lake


SWARM = SwarmSettings(name="s", work=1000)
IN_A_FILE = "/dev/null/x"
BY_THE_SYSTEM = {"seal into a file", "prove by a file", "join in a file"}
"""The cause is the error of the operating system."""
WITHOUT = {
    "scheme": (lambda s, p: dovetail.connect("gopher://x", "y"), dovetail.UsageError),
    "empty url": (lambda s, p: dovetail.connect("", ANN), dovetail.UsageError),
    "url of no type": (lambda s, p: dovetail.connect(5, ANN), dovetail.UsageError),
    "url with a control character": (lambda s, p: dovetail.connect("ws://x\0/pcp", ANN), dovetail.UsageError),
    "too long a name": (lambda s, p: started(lambda: dovetail.connect("unix:" + "x" * 300)), dovetail.ConnectFailed),
    "no such kind of client": (lambda s, p: s.connect("gopher:ann"), dovetail.UsageError),
    "identity of no type": (lambda s, p: s.connect(5), dovetail.UsageError),
    "address of no type": (lambda s, p: dovetail.Receipt.build(5, journals=s.journals), dovetail.UsageError),
    "no identity": (lambda s, p: dovetail.connect(s.url), dovetail.UsageError),
    "bad identity": (lambda s, p: dovetail.connect(s.url, "nobody"), dovetail.UsageError),
    "no such version": (lambda s, p: dovetail.connect(s.url, ANN, protocol=3), dovetail.UsageError),
    "another version": (
        lambda s, p: started(lambda: dovetail.connect(s.url, ANN, protocol=2)),
        dovetail.ConnectFailed,
    ),
    "no host": (lambda s, p: dovetail.connect("ws://", ANN), dovetail.UsageError),
    "no such port": (lambda s, p: dovetail.connect("ws://127.0.0.1:99999/pcp", ANN), dovetail.UsageError),
    "no such host": (
        lambda s, p: started(lambda: dovetail.connect("ws://nowhere.invalid/pcp", ANN)),
        dovetail.ConnectFailed,
    ),
    "no such key": (
        lambda s, p: dovetail.connect(
            "wss://127.0.0.1:1/pcp", ANN, tls=dovetail.TLS(certificate="no", key="no", authority="no")
        ),
        dovetail.DovetailError,
    ),
    "no such peer": (lambda s, p: started(lambda: dovetail.connect(f"unix:{p}")), dovetail.ConnectFailed),
    "no such owner": (lambda s, p: dovetail.connect("https://x/won/resource", p / "no"), dovetail.DovetailError),
    "no owner there": (lambda s, p: dovetail.WonClient(p / "empty"), dovetail.DovetailError),
    "no node": (lambda s, p: started(lambda: dovetail.WonClient.create("x", p / "h")), dovetail.DovetailError),
    "no such port of a node": (
        lambda s, p: started(lambda: dovetail.WonClient.create("http://127.0.0.1:99999/won/resource", p / "h")),
        dovetail.DovetailError,
    ),
    "no settings": (lambda s, p: started(lambda: dovetail.SwarmPeer.join(p / "no", p / "x")), dovetail.ConfigError),
    "bad settings": (
        lambda s, p: started(lambda: dovetail.SwarmPeer.join(p / "garbage", p / "x")),
        dovetail.ConfigError,
    ),
    "no fabric": (lambda s, p: dovetail.local("nope"), dovetail.UsageError),
    "no directory": (lambda s, p: dovetail.local(directory=p / "garbage" / "x"), dovetail.ConfigError),
    "port in use": (lambda s, p: dovetail.local(directory=p / "busy", port=port_of(s)), dovetail.DovetailError),
    "not of this site": (lambda s, p: s.connect("won:ann"), dovetail.UsageError),
    "no receipt": (lambda s, p: dovetail.Receipt.load(p / "no"), dovetail.ReceiptError),
    "a directory": (lambda s, p: dovetail.Receipt.load(p), dovetail.ReceiptError),
    "garbage": (lambda s, p: dovetail.Receipt.load(p / "garbage"), dovetail.ReceiptError),
    "no place for it": (
        lambda s, p: dovetail.Receipt.load(p / "good.receipt").save(p / "no" / "x"),
        dovetail.ReceiptError,
    ),
    "no keys": (
        lambda s, p: dovetail.Receipt.load(p / "good.receipt").verify(trust=p / "no"),
        dovetail.KeyFileError,
    ),
    "keys of nobody": (
        lambda s, p: dovetail.Receipt.load(p / "good.receipt").verify(trust=p / "empty"),
        dovetail.DovetailError,
    ),
    "unknown": (lambda s, p: dovetail.Receipt.build(NOBODY, journals=s.journals), dovetail.ReceiptError),
    "no address": (lambda s, p: dovetail.Receipt.build("!!", journals=s.journals), dovetail.UsageError),
    "several": (
        lambda s, p: dovetail.Receipt.build((p / "digit").read_text(), journals=s.journals),
        dovetail.ReceiptError,
    ),
    "nowhere": (lambda s, p: dovetail.Receipt.build(NOBODY), dovetail.UsageError),
    "no journal": (lambda s, p: dovetail.Receipt.build(NOBODY, journals=p / "no"), dovetail.JournalError),
    "garbage as journal": (lambda s, p: dovetail.Receipt.build(NOBODY, journals=p / "garbage"), dovetail.JournalError),
    "no lake": (lambda s, p: dovetail.Receipt.build(NOBODY, lake=p / "no"), dovetail.DovetailError),
    "an empty lake": (lambda s, p: dovetail.Receipt.build(NOBODY, lake=p / "empty"), dovetail.DovetailError),
    "no bucket": (lambda s, p: dovetail.Receipt.build(NOBODY, lake="s3:///x"), dovetail.DovetailError),
    "verify nothing": (lambda s, p: dovetail.verify_journal(p / "no"), dovetail.JournalError),
    "verify garbage": (lambda s, p: dovetail.verify_journal(p / "garbage"), dovetail.JournalError),
    "verify by nothing": (lambda s, p: dovetail.verify_journal(s.journals[0], trust=p / "no"), dovetail.KeyFileError),
    "hops of no lake": (lambda s, p: dovetail.open_lake(p / "no").hops(), dovetail.AuditError),
    "hops of a file": (lambda s, p: dovetail.open_lake(p / "garbage").hops(), dovetail.AuditError),
    "seal nothing": (lambda s, p: dovetail.open_lake(p / "l").seal(p / "no"), dovetail.DovetailError),
    "seal garbage": (lambda s, p: dovetail.open_lake(p / "l").seal(p / "garbage"), dovetail.DovetailError),
    "audit nothing": (lambda s, p: dovetail.open_lake(p / "no").audit(p / "t"), dovetail.AuditError),
    "seal into a file": (lambda s, p: dovetail.open_lake(IN_A_FILE).seal(s.journals), dovetail.AuditError),
    "prove by a file": (lambda s, p: dovetail.Receipt.build(NOBODY, lake=IN_A_FILE), dovetail.ReceiptError),
    "join in a file": (lambda s, p: dovetail.SwarmPeer.join(SWARM, IN_A_FILE), dovetail.ConfigError),
    "wait less than nothing": (lambda s, p: sealed(s, p).audit(p / "t", loss_timeout=-1), dovetail.UsageError),
    "no tables": (lambda s, p: dovetail.open_tables(p / "no"), dovetail.AuditError),
    "tables in a file": (lambda s, p: dovetail.open_tables(p / "garbage"), dovetail.AuditError),
    "no run": (lambda s, p: dovetail.open_tables(p / "tables", run=99), dovetail.AuditError),
    "no table": (lambda s, p: tables(p)["nope"], dovetail.AuditError),
    "no trace": (lambda s, p: tables(p).why(NOBODY), dovetail.AuditError),
    "a trace of what": (lambda s, p: tables(p).why("!!"), dovetail.DovetailError),
    "a trace of no type": (lambda s, p: tables(p).why(5), dovetail.UsageError),
    "conditions of no type": (lambda s, p: tables(p)["findings"].arrow("seq=1"), dovetail.UsageError),
    "a value of no type": (lambda s, p: tables(p)["findings"].arrow({"seq": object()}), dovetail.UsageError),
    "no column": (lambda s, p: tables(p)["findings"].arrow({"nope": 1}), dovetail.UsageError),
    "no row": (lambda s, p: list(tables(p)["findings"].rows({"nope": 1})), dovetail.UsageError),
    "send unconnected": (lambda s, p: started(lambda: dovetail.connect(s.url, ANN).send(ANN)), dovetail.Closed),
    "receive unconnected": (lambda s, p: started(lambda: dovetail.connect(s.url, ANN).receive(1)), dovetail.Closed),
    "ask unconnected": (lambda s, p: started(lambda: dovetail.connect(s.url, ANN).request(ANN)), dovetail.Closed),
    "list unconnected": (lambda s, p: started(lambda: dovetail.connect(s.url, ANN).inventory()), dovetail.Closed),
    "watch unconnected": (
        lambda s, p: started(lambda: first(dovetail.connect(s.url, ANN).watch())),
        dovetail.Closed,
    ),
    "iterate unconnected": (lambda s, p: started(lambda: first(dovetail.connect(s.url, ANN))), dovetail.Closed),
    "the twin unconnected": (lambda s, p: dovetail.sync.connect(s.url, ANN).send(ANN), dovetail.Closed),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_without_what_it_needs(site, place, name, tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CONFIG_DIR", str(tmp_path))
    call, kind = WITHOUT[name]
    with pytest.raises(kind) as raised:
        call(site, place)
    assert str(raised.value)
    assert "\n" not in str(raised.value)
    if name == "another version":
        assert str(raised.value).endswith("; is this its path for version 2?")
    assert raised.value.retriable is (kind is dovetail.ConnectFailed or name == "port in use")
    if name in BY_THE_SYSTEM:
        assert isinstance(raised.value.__cause__, OSError)


ATOM = "http://127.0.0.1:1/won/resource/atom/ben#chat"
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
CONNECTED = {
    "target": (ANN, lambda ann: ann.send("nobody", "x"), dovetail.UsageError),
    "data": (ANN, lambda ann: ann.send(ANN, object()), dovetail.UsageError),
    "lifetime": (ANN, lambda ann: ann.send(ANN, "x", ttl=-1), dovetail.UsageError),
    "lifetime that is no number": (ANN, lambda ann: ann.send(ANN, "x", ttl=float("nan")), dovetail.UsageError),
    "lifetime without end": (ANN, lambda ann: ann.send(ANN, "x", ttl=float("inf")), dovetail.UsageError),
    "lifetime beyond all dates": (ANN, lambda ann: ann.request(ANN, "x", ttl=1e12), dovetail.UsageError),
    "no text": (ANN, lambda ann: ann.send(ANN, "\ud800"), dovetail.UsageError),
    "data without end": (ANN, lambda ann: ann.send(ANN, ENDLESS), dovetail.UsageError),
    "no text for a node": ("won:ann", lambda ann: ann.send(ATOM, "\ud800"), dovetail.UsageError),
    "own socket": ("won:ann", lambda ann: ann.send(ATOM, "x", socket="a b"), dovetail.UsageError),
    "socket": ("won:ann", lambda ann: ann.open(f"{ATOM}<"), dovetail.UsageError),
    "socket with two names": ("won:ann", lambda ann: ann.send(f"{ATOM}#more", "x"), dovetail.UsageError),
    "socket with a wrong escape": ("won:ann", lambda ann: ann.open(f"{ATOM}%zz"), dovetail.UsageError),
    "socket of no type": ("won:ann", lambda ann: ann.open(5), dovetail.UsageError),
    "home in a file": ("won:ann", lambda ann: dovetail.WonClient.create(ann.node, IN_A_FILE), dovetail.ConfigError),
    "sockets that are a text": ("won:ann", lambda ann: ann.replace(sockets="chat"), dovetail.UsageError),
    "new sockets": ("won:ann", lambda ann: ann.replace(sockets=["a", ""]), dovetail.UsageError),
    "too long": ("won:ann", lambda ann: ann.send(ATOM, "x" * 1_000_000), dovetail.DovetailError),
    "description": ("won:ann", lambda ann: ann.replace(content=b"<"), dovetail.DovetailError),
    "no text for a peer": ("swarm:ann", lambda ann: ann.publish("\ud800"), dovetail.UsageError),
    "payload of no type": ("swarm:ann", lambda ann: ann.publish(None), dovetail.UsageError),
    "target of no type": (ANN, lambda ann: ann.send(5, "x"), dovetail.UsageError),
    "targets of no type": (ANN, lambda ann: ann.send(b"pcp://b/agent", "x"), dovetail.UsageError),
    "message of no type": (ANN, lambda ann: ann.send(ANN, "x", type=5), dovetail.UsageError),
    "lifetime of no type": (ANN, lambda ann: ann.send(ANN, "x", ttl="5"), dovetail.UsageError),
    "pattern of no type": (ANN, lambda ann: ann.inventory(5), dovetail.UsageError),
    "no target": (ANN, lambda ann: ann.send([], "x"), dovetail.UsageError),
    "nobody there": (ANN, lambda ann: ann.request("pcp://b/agent", "x"), dovetail.NotDelivered),
    "asked": (ANN, lambda ann: ann.request("b", "x"), dovetail.UsageError),
    "pattern": (ANN, lambda ann: ann.inventory("nonsense"), dovetail.UsageError),
    "watched": (ANN, lambda ann: first(ann.watch("nonsense")), dovetail.UsageError),
    "time": (ANN, lambda ann: ann.receive(0.01), dovetail.TimedOut),
    "payload": ("swarm:ann", lambda ann: ann.publish("x" * 100_000), dovetail.UsageError),
    "epochs": ("swarm:ann", lambda ann: ann.publish("x", ttl_epochs=-1), dovetail.DovetailError),
    "time of a peer": ("swarm:ann", lambda ann: ann.receive(0.01), dovetail.TimedOut),
}


@pytest.mark.parametrize("name", CONNECTED)
def test_a_connected_client_says_what_it_does_not_take(whole_site, name):
    identity, call, kind = CONNECTED[name]

    async def work():
        async with whole_site.connect(identity) as client:
            with pytest.raises(kind) as raised:
                (await call(client)).raise_for_outcome()
            return raised.value

    error = asyncio.run(work())
    assert str(error)
    assert error.retriable is (name in {"nobody there", "time", "time of a peer"})
