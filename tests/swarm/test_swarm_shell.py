"""The swarm's shells on loopback: sockets, journal before send, publish, subscribe, query, control, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import socket
import threading
from collections.abc import Callable

import msgspec
import pytest
from prometheus_client.exposition import generate_latest

from dovetail.api.swarm import SwarmPeer
from dovetail.journal.journal import JournalOptions
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import (
    ConfigError,
    ConnectFailed,
    DovetailError,
    JournalError,
    LocalProtocolError,
    ResourceBusy,
)
from dovetail.model.hop import Observation, Stage
from dovetail.runtime import swarm_node
from dovetail.runtime.clock import now_us
from dovetail.runtime.swarm_control import CONTROL_FILE, ControlServer
from dovetail.runtime.swarm_metrics import peer_registry
from dovetail.runtime.swarm_node import Gap, Message, Missed, SwarmNode
from dovetail.runtime.swarm_solver import WorkSolver
from dovetail.runtime.swarm_udp import SwarmUdp, format_endpoint, is_sendable, parse_endpoint
from dovetail.swarm.content import NONCES, Content, Reference, check_work, decode_content, encode_content
from dovetail.swarm.events import MessageAccepted
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.pow import RUN
from dovetail.swarm.settings import SwarmSettings
from swarm.peers import Bench, solved
from system.up_site import free_port

pytestmark = pytest.mark.system

SETTINGS = SwarmSettings(name="shell", work=500)


def node(directory, *bootstrap: str, listen=("127.0.0.1:0",)) -> SwarmNode:
    return SwarmNode(SETTINGS, directory, listen=listen, bootstrap=bootstrap, threads=1)


async def eventually(is_true, seconds: float = 60) -> None:
    for _ in range(int(seconds / 0.02)):
        if is_true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to pass in time")


def test_two_nodes_publish_subscribe_and_query(tmp_path):
    async def run() -> None:
        async with node(tmp_path / "a") as a, node(tmp_path / "b", a.endpoints[0]) as b:
            await eventually(lambda: b.status().forward and a.status().forward)
            items = b.subscribe()
            first = asyncio.ensure_future(anext(items))
            await asyncio.sleep(0)
            address = await a.publish(b"hello", 10)
            item = await asyncio.wait_for(first, 60)
            assert isinstance(item, Message)
            assert (item.address, item.payload, item.source) == (address, b"hello", a.peer.uri)
            assert [message.payload for message in b.query(item.timestamp_ms, item.timestamp_ms)] == [b"hello"]
            assert b.query(0, item.timestamp_ms - 1) == []
            with pytest.raises(LocalProtocolError):
                await a.publish(b"", 1441)
        with JournalReader.open(tmp_path / "a" / "journal.db") as reader:
            stages = [hop.stage for hop in reader.hops()]
        assert stages[:2] == [Stage.CREATED, Stage.FORWARDED]
        with JournalReader.open(tmp_path / "b" / "journal.db") as reader:
            stages = [hop.stage for hop in reader.hops()]
        assert stages[:2] == [Stage.ACCEPTED, Stage.DELIVERED]

    asyncio.run(run())


def test_a_node_keeps_its_identity_and_its_messages(tmp_path):
    async def run() -> None:
        async with node(tmp_path) as first:
            uri, address = first.peer.uri, await first.publish(b"kept", 10)
        async with node(tmp_path) as second:
            assert second.peer.uri == uri
            assert second.restored == 1
            assert second.peer.addresses() == {address}

    asyncio.run(run())


def test_a_node_with_a_copied_key_is_told_of_in_the_log_of_both(tmp_path, caplog):
    async def run() -> None:
        async with node(tmp_path / "a") as a:
            (tmp_path / "b").mkdir()
            shutil.copy(tmp_path / "a" / "peer.skey", tmp_path / "b" / "peer.skey")
            async with node(tmp_path / "b", a.endpoints[0]) as b:
                assert a.peer.uri == b.peer.uri
                places = {a.endpoints[0], b.endpoints[0]}
                await eventually(lambda: all(f"at {place}, uses this peer's key" in caplog.text for place in places))
                assert a.status().refused.keys() == b.status().refused.keys() == {"duplicate_identity"}

    asyncio.run(run())


def test_the_payload_of_an_expired_message_leaves_the_journal_by_itself(tmp_path):
    async def run() -> None:
        quick = SwarmSettings(name="quick", epoch_ms=1_000, work=1)
        options = JournalOptions(checkpoint_interval_s=0.05)
        async with SwarmNode(quick, tmp_path, journal_options=options, threads=1, purge_interval_s=0.05) as a:
            await a.publish(b"compiles the search for a nonce", 60)
            address = await a.publish(b"short-lived", 3)
            assert a.journal.raw(address) is not None
            await eventually(lambda: a.journal.raw(address) is None)

            def ended() -> list[Stage]:
                return sorted(hop.stage for hop in a.journal.hops_of(address))

            # two timers: the peer's own notes the expiry, before or after the purge
            await eventually(lambda: Stage.EXPIRED in ended())
            assert ended() == [Stage.CREATED, Stage.EXPIRED, Stage.PURGED]

    asyncio.run(run())


def test_an_epoch_below_a_minute_is_told_of_in_the_log(tmp_path, caplog):
    SwarmNode(SwarmSettings(name="quick", epoch_ms=1_000), tmp_path).journal.close()
    assert "swarm quick: an epoch of 1000 ms, expected at least 60000" in caplog.text


def test_ipv6(tmp_path):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")

    async def run() -> None:
        try:
            a = node(tmp_path / "a", listen=("[::1]:0",))
            async with a, node(tmp_path / "b", a.endpoints[0], listen=("127.0.0.1:0", "[::1]:0")) as b:
                await eventually(lambda: b.status().forward and a.status().forward)
                address = await a.publish(b"six", 10)
                await eventually(lambda: address in b.peer.addresses())
                assert a.endpoints[0].startswith("[::1]:")
                assert [endpoint.rpartition(":")[0] for endpoint in b.endpoints] == ["127.0.0.1", "[::1]"]
                # all traffic between them came from IPv6 endpoints, and neither refused anything
                assert [one.endpoint for one in b.peer._contacts.known] == [a.endpoints[0]]
                assert [one.endpoint for one in a.peer._contacts.known] == [b.endpoints[1]]
                assert [message.payload for message in b.query(0, 1 << 47)] == [b"six"]
                assert (a.status().refused, b.status().refused) == ({}, {})
        except ResourceBusy as error:
            if "of ::1 is not an address of this machine" in str(error):
                pytest.skip("no IPv6 here")
            raise

    asyncio.run(run())


class SlowJournal:
    """A journal that waits until it is released."""

    def __init__(self) -> None:
        self.stalled = None
        self.on_failure = None
        self.committed: list[Observation] = []
        self._waiting: list[tuple[list[Observation], Callable[[None], None]]] = []

    def commit(self, observations, done) -> None:
        self._waiting.append((observations, done))

    def let_go(self) -> None:
        self.commit = self._commit
        for observations, done in self._waiting:
            self._commit(observations, done)

    def _commit(self, observations, done) -> None:
        self.committed += observations
        done(None)


def test_nothing_is_sent_before_it_is_journaled():
    async def run() -> None:
        bench = Bench(now=now_us())
        journal = SlowJournal()
        told = []
        udp = SwarmUdp(bench.peer, journal, listener=told.extend)
        (endpoint,) = await udp.start(["127.0.0.1:0"])
        neighbour = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        neighbour.bind(("127.0.0.1", 0))
        neighbour.setblocking(False)
        bench.link(format_endpoint(neighbour.getsockname()), 1)
        with contextlib.suppress(BlockingIOError):
            while True:
                neighbour.recv(2048)
        message = bench.content(b"x")
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        other.sendto(encode_packet(message, bench.signer, now_us() // 1000, 0), parse_endpoint(endpoint))
        await eventually(lambda: bench.peer.status().messages == 1)
        await asyncio.sleep(0.1)
        with pytest.raises(BlockingIOError):
            neighbour.recv(2048)
        assert not [event for event in told if isinstance(event, MessageAccepted)]
        journal.let_go()
        received = []

        def is_relayed() -> bool:
            with contextlib.suppress(BlockingIOError):
                received.append(neighbour.recv(2048)[8:])
            return message in received

        await eventually(is_relayed)
        assert [one.stage for one in journal.committed[:1]] == [Stage.ACCEPTED]
        await eventually(lambda: [event for event in told if isinstance(event, MessageAccepted)])
        await udp.stop()
        neighbour.close()
        other.close()

    asyncio.run(run())


def test_gaps_are_announced_and_a_slow_subscriber_is_told_what_it_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(swarm_node, "MAX_WAITING", 3)

    async def run() -> None:
        async with node(tmp_path) as a:
            items = a.subscribe()
            first = asyncio.ensure_future(anext(items))
            await asyncio.sleep(0)
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            signer = SwarmSigner(SETTINGS.key)
            content = Content(
                timestamp_ms=now_us() // 1000, ttl_epochs=5, references=(Reference(b"missing!", 0),), payload=b"child"
            )
            message = solved(SETTINGS, content)
            sender.sendto(encode_packet(message, signer, now_us() // 1000, 0), parse_endpoint(a.endpoints[0]))
            assert (await asyncio.wait_for(first, 60)).payload == b"child"
            gap = await asyncio.wait_for(anext(items), 5)
            assert gap == Gap(msg_hash=b"missing!", state="missing", referrer=gap.referrer)
            for number in range(6):
                await a.publish(b"%d" % number, 5)
            missed = await asyncio.wait_for(anext(items), 5)
            assert missed == Missed(count=3)
            assert (await anext(items)).payload == b"3"
            sender.close()
            items.close()

    asyncio.run(run())


def test_control_socket_publishes_tails_and_tells_the_status(tmp_path):
    async def run() -> None:
        async with node(tmp_path) as a:
            control = ControlServer(a, tmp_path / CONTROL_FILE)
            await control.start()
            assert (tmp_path / CONTROL_FILE).stat().st_mode & 0o777 == 0o600
            async with SwarmPeer(tmp_path) as peer:
                published = await peer.publish("one", ttl_epochs=5)
                async with contextlib.aclosing(peer.events(dt.datetime.fromtimestamp(0, dt.UTC))) as events:
                    first = await anext(events)
                    second = await peer.publish("two", ttl_epochs=5)
                    assert [first.data, (await anext(events)).data] == ["one", "two"]
                assert (first.address, first.references, first.ttl_epochs) == (published.address, (), 5)
                (found,) = [each for each in await peer.query(first.at) if each.address == second.address]
                assert found.references == (published.address[:16],)
                status = await peer.status()
                assert (status["messages"], status["tips"], status["missing"], status["refused"]) == (2, 1, 0, {})
                with pytest.raises(DovetailError, match="ttl of 9999"):
                    await peer.publish("", ttl_epochs=9999)
            reader, writer = await asyncio.open_unix_connection(tmp_path / CONTROL_FILE)
            writer.write(b'{"verb": "publish", "payload": "zz"}\n')
            assert b"fromhex" in await reader.read()
            writer.close()
            await control.stop()
            with pytest.raises(ConnectFailed, match="has no running peer"):
                await SwarmPeer(tmp_path).status()

    asyncio.run(run())


def test_metrics_have_every_number_of_the_status(tmp_path):
    async def run() -> None:
        async with node(tmp_path) as a:
            await a.publish(b"x", 5)
            a.peer.receive_datagrams((b"\x62garbage!",), "192.0.2.1:9", now_us())
            text = generate_latest(peer_registry(a)).decode()
            status = a.status()
        lines = text.splitlines()
        for line in (
            "dovetail_swarm_messages 1.0",
            "dovetail_swarm_accepted_total 1.0",
            'dovetail_swarm_refused_total{reason="unknown_swarm"} 1.0',
            'dovetail_swarm_links{direction="forward"} 0.0',
            'dovetail_swarm_sent_bytes_total{purpose="relay"} 0.0',
        ):
            assert line in lines
        names = {line.partition(" ")[0].removesuffix("_total") for line in lines}
        numbers = {name for name, value in msgspec.to_builtins(status).items() if isinstance(value, int)}
        assert {name for name in numbers if f"dovetail_swarm_{name}" not in names} == set()

    asyncio.run(run())


class HeldSearch:
    """Finds nothing; each run waits until it is released."""

    name = "held"

    def __init__(self) -> None:
        self.may_run = threading.Semaphore(0)
        self.begun = 0

    def find(self, message, target, start, count):
        self.begun += 1
        assert self.may_run.acquire(timeout=30)


def test_the_solver_solves_in_threads_and_stops_when_cancelled():
    async def run() -> None:
        message = encode_content(Content(timestamp_ms=1, ttl_epochs=1, payload=b"x"))
        solver = WorkSolver(threads=2)
        check_work(await solver.solve(message, (1 << 256) // 50_000), (1 << 256) // 50_000)
        solver.close()
        examined: list[int] = []
        search = HeldSearch()
        endless_solver = WorkSolver(threads=1, search=search)
        endless = asyncio.ensure_future(endless_solver.solve(message, 1, examined.append))
        search.may_run.release()
        await eventually(lambda: search.begun == 2)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        # the current run ends, whatever could be examined after it
        for _ in range(3):
            search.may_run.release()
        endless_solver.close()
        await asyncio.to_thread(endless_solver._pool.shutdown)
        assert (search.begun, examined) == (2, [RUN, 2 * RUN])

    asyncio.run(run())


class NotedSearch:
    """Records where it searched, and finds at the third run."""

    name = "noted"

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []

    def find(self, message, target, start, count):
        self.runs.append((start, count))
        return (start + 5) % NONCES if len(self.runs) % 3 == 0 else None


def test_anti_spamming_the_search_starts_at_a_random_nonce_and_goes_on_increasing():
    async def run() -> None:
        message = encode_content(Content(timestamp_ms=1, ttl_epochs=1))
        starts = set()
        for _ in range(4):
            search = NotedSearch()
            solver = WorkSolver(threads=1, search=search)
            found = await solver.solve(message, 1)
            solver.close()
            first, count = search.runs[0]
            assert [start for start, _ in search.runs] == [(first + number * count) % NONCES for number in range(3)]
            assert decode_content(found).pow_nonce == (search.runs[2][0] + 5) % NONCES
            starts.add(first)
        assert len(starts) == 4
        assert max(starts) > 1 << 56

    asyncio.run(run())


@pytest.mark.parametrize("text", ["example.org:9", "192.0.2.1", "192.0.2.1:70000", "192.0.2.1:-1", "[::1]", ""])
def test_endpoints_that_are_not_numeric_are_refused(text):
    with pytest.raises(ConfigError):
        parse_endpoint(text)
    assert not is_sendable(text)


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9", "224.0.0.1:9", "255.255.255.255:9", "[ff02::1]:9", "[::]:9", "192.0.2.1:0"]
)
def test_endpoints_that_are_no_machine_are_not_sent_to(text):
    assert not is_sendable(text)


def test_endpoints_round_trip():
    for text in ("192.0.2.1:9", "[2001:db8::1]:4711"):
        assert format_endpoint(parse_endpoint(text)) == text
        assert is_sendable(text)


def test_a_port_that_is_taken_is_said(tmp_path):
    """When a peer is made, before it has a directory; or when it starts, if the port was free until then."""

    async def run() -> None:
        port = free_port(socket.SOCK_DGRAM)
        endpoint = f"127.0.0.1:{port}"
        other = node(tmp_path / "b", listen=(endpoint,))
        async with node(tmp_path / "a", listen=(endpoint,)):
            with pytest.raises(ResourceBusy, match=f"^udp port {port} of 127.0.0.1 is in use"):
                node(tmp_path / "c", listen=(endpoint,))
            assert not (tmp_path / "c").exists()
            with pytest.raises(ResourceBusy, match=f"^udp port {port} of 127.0.0.1 is in use: stop the program"):
                await other.__aenter__()
            with pytest.raises(JournalError, match="is closed"):
                other.journal.append([])

    asyncio.run(run())


def test_a_second_endpoint_that_cannot_be_bound_leaves_the_first_free(tmp_path):
    async def run() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            first = format_endpoint(probe.getsockname())
        with pytest.raises(ConfigError, match="one IPv4 and one IPv6 endpoint at most"):
            await node(tmp_path / "a", listen=(first, "127.0.0.1:0")).__aenter__()
        async with node(tmp_path / "a", listen=(first,)) as a:
            assert a.endpoints == [first]

    asyncio.run(run())
