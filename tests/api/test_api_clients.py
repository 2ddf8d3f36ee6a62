"""Clients of the three fabrics through `import dovetail`, against real servers of `local()`."""

import asyncio
import concurrent.futures
import contextlib
import datetime as dt
import hashlib
import inspect
import itertools
import socket
import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest

import dovetail
from api.left_behind import cancel_at, nothing_left
from dovetail.swarm.settings import SwarmSettings
from system.pcp_site import Site, broker

pytestmark = pytest.mark.system
ANN, BEN = "pcp://ann/agent", "pcp://ben/agent"


@pytest.fixture(scope="module")
def site():
    with dovetail.local("pcp", "won", "swarm") as site:
        yield site


def run(work):
    return asyncio.run(asyncio.wait_for(work, 60))


def test_send_says_what_became_of_it(site):
    async def work():
        async with site.connect(BEN) as ben, site.connect(ANN) as ann:
            sent = await ann.send(BEN, {"door": "open"}, type="http://example.com/door")
            assert (sent.outcome, sent.targets, sent.ok, sent.reason) == ("accepted", (BEN,), True, None)
            assert sent.raise_for_outcome() is sent
            message = await ben.receive(timeout=60)
            assert (message.address, message.id) == (sent.address, sent.id)
            assert message.address == hashlib.sha256(message.raw).hexdigest()
            assert (message.type, message.sender, message.data) == ("http://example.com/door", ANN, {"door": "open"})
            nobody = await ann.send("pcp://gone/agent")
            assert (nobody.outcome, nobody.targets, nobody.ok) == ("nobody_there", (), False)
            with pytest.raises(dovetail.NotDelivered, match="nobody_there") as raised:
                nobody.raise_for_outcome()
            assert raised.value.sent is nobody
            assert raised.value.retriable
            wrong = await ann.send(BEN, type="a b")
            assert wrong.outcome == "rejected"
            assert "has characters that are not allowed" in wrong.reason
            both = await ann.send([BEN, ANN], b"\xff\x00")
            assert both.targets == (ANN, BEN)
            assert (await ben.receive(timeout=60)).data == b"\xff\x00"

    run(work())


def test_a_broker_that_does_not_report_is_told_as_that(site, monkeypatch):
    monkeypatch.setattr("dovetail.pcp.replies.Replies.report", lambda *_: None)

    async def work():
        async with site.connect(ANN) as ann:
            sent = await ann.send(ANN, "x", ttl=0.2)
            assert sent.outcome == "unknown"
            assert sent.reason == "the broker did not say, within its lifetime, whom it goes to"

    run(work())


def test_version_2_and_tls(site, tmp_path):
    async def work():
        keys = Site(tmp_path)
        for name in ("ann", "ben"):
            keys.client(name)
        files = {name: tls(tmp_path, name) for name in ("ann", "ben")}
        async with broker(**keys.settings) as server:
            one, two = f"wss://localhost:{server.port}/pcp", f"wss://localhost:{server.port}/pcp2/agent"
            async with (
                dovetail.connect(two, BEN, protocol=2, tls=files["ben"]) as ben,
                dovetail.connect(one, ANN, tls=files["ann"]) as ann,
            ):
                assert (await ben.send(ANN, {"n": 1})).outcome == "accepted"
                assert (await ann.receive(timeout=60)).data == {"n": 1}
                assert (await ben.send("pcp://gone/agent", {})).outcome == "nobody_there"
            with pytest.raises(dovetail.NotAllowed, match="pcp://cem/agent"):
                await opened(dovetail.connect(one, "pcp://cem/agent", tls=files["ann"]))
            with pytest.raises(dovetail.ConnectFailed, match="certificate not accepted"):
                await opened(dovetail.connect(one, ANN))
        with pytest.raises(dovetail.ConnectFailed, match="accepts only certificates"):
            await opened(dovetail.connect(site.url.replace("/pcp", "/pcp2/agent"), ANN, protocol=2))

    run(work())


def tls(directory, name):
    file = directory / name
    return dovetail.TLS(certificate=f"{file}.pem", key=f"{file}.key", authority=str(directory / "ca.pem"))


async def opened(client):
    async with client:
        pass


def test_request_and_reply(site):
    async def serve(agent):
        async for question in agent:
            await question.reply({"heard": question.data})

    async def work():
        async with site.connect(BEN) as ben, site.connect(ANN) as ann:
            worker = asyncio.create_task(serve(ben))
            answer = await ann.request(BEN, 7)
            assert (answer.data, answer.sender) == ({"heard": 7}, BEN)
            with pytest.raises(dovetail.NotDelivered, match="nobody_there"):
                await ann.request("pcp://gone/agent", 7)
            worker.cancel()
            await asyncio.wait([worker])
            with pytest.raises(dovetail.TimedOut, match="did not answer within"):
                await ann.request(BEN, 7, ttl=0.2)
            assert await ann.inventory() == [ANN, BEN]
            assert await ann.inventory("pcp://b*/agent") == []
            assert await ann.inventory("pcp://*/controller") == []

    run(work())


def test_who_comes_and_goes(site):
    async def work():
        async with site.connect(ANN) as ann:
            seen = []
            changes = ann.watch("pcp://*/agent")
            seen.append(await anext(changes))
            async with site.connect(BEN):
                seen.append(await anext(changes))
            seen.append(await anext(changes))
            await changes.aclose()
            assert seen == [(ANN, True), (BEN, True), (BEN, False)]

    run(work())


def test_the_sync_twin(site):
    before = threading.enumerate()
    with dovetail.sync.connect(site.url, BEN) as ben, dovetail.sync.connect(site.url, ANN) as ann:
        sent = ann.send(BEN, "hello")
        message = ben.receive(timeout=60)
        assert message.address == sent.address
        assert ben.reply(message, "yes").ok
        assert ann.receive(timeout=60).in_reply_to == sent.id
        assert ann.inventory("pcp://*/agent") == [ANN, BEN]
        with pytest.raises(dovetail.TimedOut):
            ann.receive(timeout=0)
    assert threading.enumerate() == before
    with pytest.raises(dovetail.Closed):
        ann.send(BEN, "too late")


def test_the_sync_twin_asks_and_watches(site):
    before = threading.enumerate()
    with dovetail.sync.connect(site.url, BEN) as ben, dovetail.sync.connect(site.url, ANN) as ann:
        assert (ann.url, ann.identity) == (site.url, ANN)
        with ann.asking(BEN, 7) as asked:
            assert asked.sent.ok
            ben.reply(ben.receive(timeout=60), 8)
            assert asked.reply().data == 8
        seen = ann.watch("pcp://*/agent")
        assert [next(seen), next(seen)] == [(ANN, True), (BEN, True)]
        seen.close()
        assert list(zip(range(2), ann.watch("pcp://*/agent"), strict=False)) == [(0, (ANN, True)), (1, (BEN, True))]
    assert threading.enumerate() == before


@pytest.mark.parametrize(
    "call",
    [
        lambda ann: ann.receive(),
        lambda ann: next(iter(ann)),
        lambda ann: ann.request(BEN, "x"),
        lambda ann: list(zip(range(3), ann.watch(), strict=False)),
    ],
)
def test_ctrl_c_ends_a_call_of_the_sync_twin(site, monkeypatch, call):
    before = threading.enumerate()
    result = concurrent.futures.Future.result

    def interrupt(future, timeout=None):
        """A call that takes long is interrupted."""
        try:
            return result(future, 0.2 if timeout is None else timeout)
        except concurrent.futures.TimeoutError:
            raise KeyboardInterrupt from None

    with dovetail.sync.connect(site.url, BEN), dovetail.sync.connect(site.url, ANN) as ann:
        with monkeypatch.context() as patch:
            patch.setattr(concurrent.futures.Future, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                call(ann)
        assert ann.send(ANN, "still here").ok
        assert ann.receive(timeout=60).data == "still here"
    assert threading.enumerate() == before


def test_the_sync_twin_runs_a_peer(tmp_path):
    (tmp_path / "swarm.toml").write_text('name = "twin"\nwork = 1000\n')
    before = threading.enumerate()
    with dovetail.sync.SwarmPeer.join(tmp_path / "swarm.toml", tmp_path / "a") as ann:
        settings = tmp_path / "swarm.toml"
        with dovetail.sync.SwarmPeer.join(settings, tmp_path / "b", bootstrap=ann.endpoints) as ben:
            ben.linked(timeout=30)
            sent = ann.publish("ship in sight")
            begun = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
            assert (
                next(each for each in ben.events(begun) if isinstance(each, dovetail.Message)).address == sent.address
            )
            assert ben.receive(timeout=30).address == sent.address
            with pytest.raises(dovetail.TimedOut):
                ben.receive(timeout=0)
            assert next(ann.events()).address == sent.address, "a peer hears itself"
    assert threading.enumerate() == before


def test_a_second_client_of_the_same_name_is_named(site):
    async def work():
        async with site.connect(ANN) as first, site.connect(BEN) as ben:
            waiting = asyncio.create_task(first.request(BEN, "x"))
            await ben.receive(timeout=60)
            async with site.connect(ANN):
                with pytest.raises(dovetail.NotDelivered, match=f"another client connected as {ANN}") as raised:
                    await waiting
                assert raised.value.retriable

    run(work())


def test_won(site):
    async def work():
        async with site.connect("won:ann") as ann, site.connect("won:ben") as ben:
            assert (await ann.open(ben.sockets[0], "may I?")).ok
            asked = await ben.receive(timeout=20)
            assert (asked.data, asked.type, asked.sender) == ("may I?", "ConnectMessage", ann.sockets[0])
            assert (await ben.open(asked.sender)).outcome == "delivered"
            sent = await ann.send(ben.sockets[0], "the gravel is on the quay")
            assert (sent.outcome, sent.targets) == ("delivered", (ben.sockets[0],))
            assert sent.address.startswith("wm:/")
            while (message := await ben.receive(timeout=20)).data != "the gravel is on the quay":
                pass
            assert message.address == sent.address
            held = {each.address: each.state for each in ann.conversation(ben.sockets[0])}
            assert held[sent.address] == "complete"
            with pytest.raises(dovetail.UsageError, match="text"):
                await ann.send(ben.sockets[0], 7)
            return sent.address

    address = run(work())
    proof = site.receipt(address).verify(trust=site.trust)
    assert any("the message" in claim and "atom/ben" in claim for claim in proof.claims), proof.claims


def test_an_atom_is_created_changed_and_deleted_and_its_log_checked(site, tmp_path):
    home, node = tmp_path / "eve", site.node
    made = run(dovetail.WonClient.create(node, home, name="eve", content=b'<> <https://schema.org/name> "Eve" .'))
    assert made.created.ok
    with dovetail.sync.connect(node, home) as eve:
        assert (eve.atom, eve.node, eve.sockets) == (made.atom, node, made.sockets)
        assert b'"Eve"' in eve.log(offline=True).trig()
        assert eve.replace(["chat", "news"]).ok
        assert eve.deactivate().ok
        assert eve.open(f"{made.atom}#news").outcome == "rejected"
        assert eve.activate().ok
    further = dovetail.sync.WonClient.create_further(home, tmp_path / "phone")
    assert (further.atom, further.created) == (made.atom, None)
    assert further.sockets == (f"{made.atom}#chat", f"{made.atom}#news"), "as replaced"
    with dovetail.sync.connect(node, tmp_path / "phone") as phone:
        log = phone.log()
        assert (log.findings, len(log.messages), len(list(log.lines()))) == ((), 5, 5)
        assert log.size == 10, "each has a response"
        assert {record["address"] for record in log.records()} == {message.address for message in log.messages}
        with pytest.raises(dovetail.DovetailError, match="several messages begin with wm:/Qm"):
            phone.send(AWAY, "x", forward=["wm:/Qm"])
        with pytest.raises(dovetail.UsageError):
            phone.send(AWAY, "x", forward=["x"])
        assert phone.delete().ok
        assert phone.activate().outcome == "rejected"


def test_swarm(site):
    async def work():
        begun = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
        async with site.connect("swarm:ann") as ann, site.connect("swarm:ben") as ben:
            sent = await ann.publish("ship in sight")
            assert sent.outcome == "accepted"
            for _ in range(1000):
                found = await ben.query(begun)
                if sent.address in {each.address for each in found}:
                    break
                await asyncio.sleep(0.01)
            assert sent.address in {each.address for each in found}
            while (message := await ben.receive(timeout=30)).address != sent.address:  # it came before the first call
                pass
            assert message.data == "ship in sight"
            assert (await ann.status())["journal_hops"] > 0
            with pytest.raises(dovetail.TimedOut):
                await ben.receive(timeout=0.01)
            with pytest.raises(dovetail.UsageError, match="expected at most"):
                await ann.publish(bytes(100_000))

    run(work())


def refused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("kind", ["nobody", "silent", "http"])
def test_no_server_or_the_wrong_one_is_told_at_once(site, kind, tmp_path):
    port = refused_port()

    async def answer(reader, writer):
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            if kind == "http":
                await reader.read(100)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                await reader.read()

    async def work():
        server = None if kind == "nobody" else await asyncio.start_server(answer, "127.0.0.1", port)
        url = f"ws://127.0.0.1:{port}/pcp"
        async with nothing_left():
            with pytest.raises(dovetail.ConnectFailed) as raised:
                await opened(dovetail.connect(url, ANN, timeout=0.5))
            assert raised.value.retriable
            assert raised.value.url == url
            assert str(raised.value).startswith(url)
            node = f"http://127.0.0.1:{port}/won/resource"
            with pytest.raises(dovetail.ConnectFailed) as raised:
                await dovetail.WonClient.create(node, tmp_path / "home", timeout=0.5)
            assert str(raised.value).startswith(node)
        assert not (tmp_path / "home").exists()
        if server is not None:
            server.close()

    run(work())


def test_no_peer_is_told_at_once(tmp_path):
    async def work():
        async with nothing_left():
            with pytest.raises(dovetail.ConnectFailed, match="has no running peer"):
                await opened(dovetail.connect(f"unix:{tmp_path}"))

    run(work())


def test_waiting_for_a_server_that_comes(tmp_path):
    """`wait` retries until the broker is up."""
    port = refused_port()

    async def work():
        async with dovetail.connect(f"ws://127.0.0.1:{port}/pcp", ANN, wait=60) as ann:
            return await ann.inventory()

    with dovetail.sync.start_blocking_portal("asyncio") as portal:
        waiting = portal.start_task_soon(work)
        with dovetail.local(directory=tmp_path / "site", port=port):
            assert waiting.result(60) == [ANN]
    made = [path for path in (tmp_path / "site").rglob("*") if path.suffix != ".vkey"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "site", *made)), "readable by others"


def test_a_client_that_is_not_let_in(tmp_path):
    async def work():
        from dovetail.pcp.settings import PcpSettings
        from dovetail.runtime.pcp_server import PcpServer

        server = PcpServer(PcpSettings(name="b", port=0, insecure_plain=True, rules=()), None)
        await server.start()
        async with nothing_left():
            with pytest.raises(dovetail.NotAllowed, match="not authorised to associate") as raised:
                await opened(dovetail.connect(f"ws://127.0.0.1:{server.port}/pcp", ANN))
            assert not raised.value.retriable
        await server.stop()

    run(work())


async def begin_iterating(client):
    async for _ in client:
        pass


async def ask_in_two_steps(ann):
    async with ann.asking(BEN, "x") as asked:
        await asked.reply()


async def reply_to_oneself(ann):
    await ann.send(ANN, "x")
    await (await ann.receive()).reply("y")


async def create(cleo):
    with tempfile.TemporaryDirectory() as name:
        await dovetail.WonClient.create(cleo.atom.partition("/atom/")[0], Path(name) / "home")


async def create_further(cleo):
    with tempfile.TemporaryDirectory() as name:
        await dovetail.WonClient.create_further(cleo._home.directory, Path(name) / "home")


AWAY = "https://127.0.0.1:1/won/resource/atom/x#chat"
CALLS = {
    "pcp send": (ANN, lambda ann: ann.send(BEN, "x")),
    "pcp request": (ANN, lambda ann: ann.request(BEN, "x")),
    "pcp asking": (ANN, ask_in_two_steps),
    "pcp reply": (ANN, reply_to_oneself),
    "pcp receive": (ANN, lambda ann: ann.receive()),
    "pcp __aiter__": (ANN, begin_iterating),
    "pcp inventory": (ANN, lambda ann: ann.inventory()),
    "pcp watch": (ANN, lambda ann: begin_iterating(ann.watch())),
    "won create": ("won:cleo", create),
    "won send": ("won:cleo", lambda cleo: cleo.send(AWAY, "x")),
    "won open": ("won:cleo", lambda cleo: cleo.open(AWAY)),
    "won close": ("won:cleo", lambda cleo: cleo.close(AWAY)),
    "won read": ("won:cleo", lambda cleo: cleo.read(f"{cleo.atom}/c")),
    "won create_further": ("won:cleo", create_further),
    "won replace": ("won:cleo", lambda cleo: cleo.replace()),
    "won activate": ("won:cleo", lambda cleo: cleo.activate()),
    "won deactivate": ("won:cleo", lambda cleo: cleo.deactivate()),
    "won delete": ("won:dean", lambda dean: dean.delete()),
    "won log": ("won:cleo", lambda cleo: cleo.log()),
    "won receive": ("won:cleo", lambda cleo: cleo.receive()),
    "won __aiter__": ("won:cleo", begin_iterating),
    "swarm publish": ("swarm:ann", lambda ann: ann.publish("x")),
    "swarm receive": ("swarm:ann", lambda ann: ann.receive()),
    "swarm __aiter__": ("swarm:ann", begin_iterating),
    "swarm events": ("swarm:ann", lambda ann: begin_iterating(ann.events())),
    "swarm query": ("swarm:ann", lambda ann: ann.query(dt.datetime.now(dt.UTC))),
    "swarm status": ("swarm:ann", lambda ann: ann.status()),
    "swarm linked": ("swarm:ann", lambda ann: ann.linked()),
}


def test_every_await_of_the_api_is_cancelled_below():
    """And entering `async with` is, by the test after it."""
    kinds = {"pcp": dovetail.PcpClient, "won": dovetail.WonClient, "swarm": dovetail.SwarmPeer}
    awaits = {
        f"{fabric} {name}"
        for fabric, kind in kinds.items()
        for name, method in inspect.getmembers(kind, inspect.isroutine)
        if (name == "__aiter__" or not name.startswith("_"))
        and (
            inspect.iscoroutinefunction(method)
            or inspect.isasyncgenfunction(method)
            or inspect.isasyncgenfunction(inspect.unwrap(method))
        )
    }
    assert awaits | {"pcp reply"} == set(CALLS)


STILL_WORKS = {"pcp": lambda ann: ann.inventory(), "won": lambda cleo: cleo.log(), "swarm": lambda ann: ann.status()}


WAITS_FOR_NOTHING = {"won log", "swarm linked"}
"""All keys are known, and the peer is of another process."""


@pytest.mark.parametrize("name", CALLS)
def test_cancelling_a_call_anywhere_leaves_nothing_behind(site, name):
    """At each of its await points; the client goes on working."""
    identity, call = CALLS[name]

    async def work(point):
        client = site.connect(identity)  # starts the server's own part before counting
        if name == "swarm publish":
            await client.publish("x")  # the thread of the site's own peer that does the work
        async with nothing_left(), client as opened, nothing_left():
            is_there = await cancel_at(call(opened), point)
            await STILL_WORKS[name.partition(" ")[0]](opened)
        return is_there

    points = sum(1 for point in itertools.takewhile(lambda point: run(work(point)), itertools.count(1)))
    assert points > 0 or name in WAITS_FOR_NOTHING


@pytest.mark.parametrize("identity", [ANN, "won:cleo", "swarm:ann"])
def test_cancelling_while_connecting_or_closing_leaves_nothing_behind(site, identity):
    async def opened_and_closed(client):
        async with client:
            pass

    async def work(point):
        client = site.connect(identity)  # starts the server's own part before counting
        async with nothing_left():
            return await cancel_at(opened_and_closed(client), point)

    points = sum(1 for point in itertools.takewhile(lambda point: run(work(point)), itertools.count(1)))
    assert points > 1


def test_cancelling_a_peer_of_this_process_leaves_nothing_behind(tmp_path):
    settings = SwarmSettings(name="alone", work=1000)

    async def joined():
        async with dovetail.SwarmPeer.join(settings, tmp_path) as peer:
            await peer.publish("x")
            await peer.linked()

    async def work(point):
        async with nothing_left():
            return await cancel_at(joined(), point)

    assert sum(1 for point in itertools.takewhile(lambda point: run(work(point)), itertools.count(1))) > 2


def test_a_peer_of_this_process_that_has_ended_says_so(tmp_path):
    async def work():
        peer = dovetail.SwarmPeer.join(SwarmSettings(name="alone", work=1000), tmp_path)
        async with nothing_left():
            for call in (peer.status, peer.linked, lambda: peer.publish("x")):
                with pytest.raises(dovetail.Closed):
                    await call()
            async with peer:
                await peer.status()
            with pytest.raises(dovetail.Closed, match="has ended"):
                await opened(peer)

    run(work())


@pytest.mark.parametrize("identity", [ANN, "won:cleo", "swarm:ann"])
def test_a_closed_client_says_so_and_can_be_opened_again(site, identity):
    fabric = "pcp" if identity == ANN else identity.partition(":")[0]
    asked = [(name, call) for name, (_, call) in CALLS.items() if name.startswith(f"{fabric} ")]
    unbound = {"won create", "won create_further", "won log", "won read"}  # these need no connection

    async def work():
        async with nothing_left():
            client = site.connect(identity)
            for _ in range(2):
                async with client:
                    await STILL_WORKS[fabric](client)
                for name, call in asked:
                    if name.endswith(" __aiter__") or name == "swarm events":
                        await call(client)  # it ends
                    elif name not in unbound:
                        with pytest.raises(dovetail.Closed) as raised:
                            await call(client)
                        assert str(raised.value)

    run(work())


@pytest.mark.parametrize("identity", [ANN, "won:cleo", "swarm:ann"])
def test_a_client_is_open_once_and_in_one_event_loop(site, identity):
    """Elsewhere every call says so at once: waiting in one loop for another never ends."""
    fabric = "pcp" if identity == ANN else identity.partition(":")[0]
    unbound = {"won create", "won create_further", "won log", "won read"}  # these need no connection
    calls = [call for name, (_, call) in CALLS.items() if name.startswith(f"{fabric} ") and name not in unbound]
    client = site.connect(identity)

    async def elsewhere():
        for call in (*calls, lambda client: client.__aexit__(None, None, None)):
            with pytest.raises(dovetail.UsageError, match="in another event loop"):
                await call(client)

    async def work():
        async with nothing_left(), client:
            with pytest.raises(dovetail.UsageError, match="open already"):
                async with client:
                    pass
            await asyncio.to_thread(asyncio.run, elsewhere())
            await STILL_WORKS[fabric](client)
        await client.__aexit__(None, None, None)  # closing it twice is once too often, but harmless

    run(work())


def test_an_owner_whose_journal_cannot_be_written_says_so_in_time(site):
    """As when the disk is full: it waited for ever, and `timeout` was for the node's answer only."""
    client = site.won("ella", timeout=60)

    async def work():
        async with nothing_left(), client:
            with contextlib.closing(sqlite3.connect(client._home.journal_path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                client._timeout_s = 0.5
                with pytest.raises((dovetail.TimedOut, dovetail.JournalError), match="journal") as raised:
                    await client.open(f"{site.node}/atom/cleo#chat")
                assert raised.value.retriable
                other.execute("ROLLBACK")

    run(work())


def test_the_sync_twin_is_open_once(site):
    with dovetail.sync.connect(site.url, ANN) as ann:
        with pytest.raises(dovetail.UsageError, match="open already"), ann:
            pass
        assert ann.send(ANN, "x").ok


def test_a_closed_site_says_so():
    with dovetail.local() as closed:
        pass
    for call in (closed.__enter__, lambda: closed.connect(ANN), lambda: closed.receipt("00")):
        with pytest.raises(dovetail.Closed, match="the site is closed"):
            call()
    closed.close()


@pytest.mark.parametrize("identity", [ANN, "swarm:dora"])
def test_a_closed_client_wakes_those_who_wait(site, identity):
    client = site.connect(identity)

    async def work():
        async with client as ann:
            waiting = asyncio.create_task(ann.receive())
            iterating = asyncio.create_task(begin_iterating(ann))
            await asyncio.sleep(0)
        with pytest.raises(dovetail.Closed):
            await waiting
        await iterating

    run(work())


def test_who_reads_too_slowly_is_told(site, monkeypatch):
    monkeypatch.setattr("dovetail.runtime.pcp_client.MAX_UNREAD_MESSAGES", 2)

    async def work():
        async with site.connect(ANN) as ann, site.connect(BEN) as ben:
            for number in range(5):
                await ann.send(BEN, number)
            await ann.request("pcp:///server", {"query": ["pcp://*/*"]}, type="http://puppetlabs.com/inventory_request")
            while ben._wire.unread.missed < 3:  # noqa: ASYNC110 - no event signals their arrival
                await asyncio.sleep(0.01)
            with pytest.raises(dovetail.Missed) as raised:
                await ben.receive()
            assert raised.value.count == 3
            assert [(await ben.receive()).data for _ in range(2)] == [3, 4]

    run(work())


def test_what_was_accepted_is_in_the_journal(site):
    async def work():
        async with site.connect(ANN) as ann:
            for number in range(20):
                sent = await ann.send(ANN, number)
                assert site.receipt(sent.address).subject == sent.address

    run(work())
