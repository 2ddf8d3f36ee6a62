"""Fetching keys from real servers: over TLS, not from private addresses, one at a time per host, no redirects."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dovetail.runtime import key_fetches
from dovetail.runtime.addresses import AddressGuard, AddressRefused
from dovetail.runtime.key_fetches import KeyFetches
from dovetail.runtime.tls import ClientTls, client_context, server_context
from system.pcp_site import Site

pytestmark = pytest.mark.system
LOCAL = "https://localhost:1/won/resource"
PUBLIC = "https://node.example/won/resource"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nkey"


class Door:
    """Answers GETs; counts concurrent requests."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.inside = self.most = self.count = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.inside += 1
        self.count += 1
        self.most = max(self.most, self.inside)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await self.is_open.wait()
            self.inside -= 1
            writer.write(self.answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(answer: bytes, tls: ssl.SSLContext | None) -> AsyncIterator[tuple[Door, int]]:
    door = Door(answer)
    server = await asyncio.start_server(door.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield door, server.sockets[0].getsockname()[1]


def run(tmp_path, work: Callable[[Site, ssl.SSLContext], Awaitable[None]]) -> None:
    site = Site(tmp_path)
    tls = server_context(site.settings["certificate"], site.settings["key"])
    asyncio.run(work(site, tls))


def fetches(site: Site, own: str, *networks: str) -> KeyFetches:
    context = client_context(authority=site.settings["authority"])
    return KeyFetches(AddressGuard(own, networks), lambda: context)


def assert_idle(fetching: KeyFetches) -> None:
    assert (fetching._wanted, fetching._turns, fetching._in_progress) == ({}, {}, {})


@pytest.mark.parametrize(
    ("own", "networks", "expected"),
    [
        (LOCAL, (), b"key"),
        (PUBLIC, (), None),
        (PUBLIC, ("127.0.0.0/8", "::1/128"), b"key"),
        (PUBLIC, ("10.0.0.0/8",), None),
    ],
)
def test_loopback_is_fetched_from_only_where_it_was_configured(tmp_path, caplog, own, networks, expected):
    async def scenario(site: Site, tls: ssl.SSLContext) -> None:
        async with serving(OK, tls) as (door, port):
            assert await fetches(site, own, *networks).fetch(f"https://localhost:{port}/won/resource") == expected
            assert door.count == (expected is not None)

    run(tmp_path, scenario)
    assert sum("which is not a public address" in line for line in caplog.messages) == (expected is None)


def test_keys_come_over_tls_only(tmp_path):
    async def scenario(site: Site, tls: ssl.SSLContext) -> None:
        async with serving(OK, None) as (door, port):
            assert await fetches(site, LOCAL).fetch(f"http://localhost:{port}/won/resource") is None
            assert await fetches(site, LOCAL).fetch(f"https://localhost:{port}/won/resource") is None
        async with serving(OK, tls) as (door, port):
            other = KeyFetches(AddressGuard(LOCAL), lambda: client_context())
            assert await other.fetch(f"https://localhost:{port}/won/resource") is None, "its CA is not trusted"
            assert door.count == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: https://localhost:1/\r\nContent-Length: 3\r\n\r\nkey",
        b"HTTP/1.1 301 Moved\r\nLocation: /elsewhere\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + bytes(2_000_000),
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2_000_000),
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
        b"rubbish",
        CHUNKED + b"100001\r\n" + bytes(0x100001) + b"\r\n0\r\n\r\n",
        CHUNKED + (b"80001\r\n" + bytes(0x80001) + b"\r\n") * 2 + b"0\r\n\r\n",
        CHUNKED + b"1\r\nk\r\n" * 5_000 + b"0\r\n\r\n",
        CHUNKED + b"-3\r\nkey\r\n0\r\n\r\n",
        CHUNKED + b"2\r\nkey\r\n0\r\n\r\n",
        CHUNKED + b"3\r\nkey\r\n",
        CHUNKED.replace(b"chunked", b"gzip, chunked") + b"3\r\nkey\r\n0\r\n\r\n",
    ],
    ids=[
        "redirect",
        "moved",
        "large",
        "endless",
        "headers",
        "rubbish",
        "large-chunk",
        "large-chunks",
        "many-chunks",
        "negative-chunk",
        "short-chunk",
        "no-last-chunk",
        "compressed",
    ],
)
def test_redirects_and_what_is_too_large_are_no_documents(tmp_path, answer):
    async def scenario(site: Site, tls: ssl.SSLContext) -> None:
        async with serving(answer, tls) as (door, port):
            assert await fetches(site, LOCAL).fetch(f"https://localhost:{port}/won/resource") is None
            assert door.count == 1

    run(tmp_path, scenario)


def test_chunked_document_is_put_together(tmp_path):
    async def scenario(site: Site, tls: ssl.SSLContext) -> None:
        answer = CHUNKED + b"1;name=value\r\nk\r\n0002\r\ney\r\n0\r\nTrailer: x\r\n\r\n"
        async with serving(answer, tls) as (_, port):
            assert await fetches(site, LOCAL).fetch(f"https://localhost:{port}/won/resource") == b"key"

    run(tmp_path, scenario)


def test_one_at_a_time_per_host_and_hosts_beside_each_other(tmp_path):
    async def scenario(site: Site, tls: ssl.SSLContext) -> None:
        async with serving(OK, tls) as (slow, slow_port), serving(OK, tls) as (other, other_port):
            slow.is_open.clear()
            fetching = fetches(site, LOCAL)
            waiting = [
                asyncio.ensure_future(fetching.fetch(f"https://{host}:{slow_port}/atom"))
                for host in ("localhost", "LocalHost", "a@localhost", "b@localhost", "c@localhost")
            ]
            assert await fetching.fetch(f"https://localhost:{other_port}/x") == b"key"
            slow.is_open.set()
            assert await asyncio.gather(*waiting) == [b"key"] * 5
            assert (slow.most, slow.count, other.count) == (1, 5, 1)
            assert_idle(fetching)

    run(tmp_path, scenario)


def test_a_host_that_never_answers_takes_neither_memory_nor_turns_for_ever(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(key_fetches, "MAX_WAITING", 8)
    monkeypatch.setattr(key_fetches, "MAX_WAITING_PER_SOURCE", 6)
    monkeypatch.setattr(key_fetches, "WAIT_S", 0.2)

    async def scenario(site: Site, tls: ssl.SSLContext) -> None:
        async with serving(OK, tls) as (slow, slow_port), serving(OK, tls) as (_, other_port):
            slow.is_open.clear()
            fetching = fetches(site, LOCAL)
            names = [f"https://localhost:{slow_port}/atom/{number}" for number in range(100)]
            waiting = [asyncio.ensure_future(fetching.fetch(name)) for name in names]
            assert await asyncio.gather(*waiting[1:]) == [None] * 99, "refused at once, or after having waited in vain"
            assert await fetching.fetch(f"https://localhost:{other_port}/x") == b"key"
            slow.is_open.set()
            assert await waiting[0] == b"key"
            assert slow.count == 1
            assert_idle(fetching)

    run(tmp_path, scenario)
    assert "too many fetches wait" in caplog.text


def test_hosts_that_never_answer_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(key_fetches, "MAX_WAITING", 3)

    async def scenario(site: Site, tls: ssl.SSLContext) -> None:
        async with serving(OK, tls) as (slow, port):
            slow.is_open.clear()
            fetching = fetches(site, LOCAL)
            names = [
                f"https://{host}:{port}/x" for host in ("localhost", "127.0.0.1", "a@localhost", "a@127.0.0.1", "[::1]")
            ]
            waiting = [asyncio.ensure_future(fetching.fetch(name)) for name in names]
            assert await asyncio.gather(*waiting[3:]) == [None] * 2
            assert len(fetching._in_progress) == 2
            slow.is_open.set()
            assert await asyncio.gather(*waiting[:3]) == [b"key"] * 3

    run(tmp_path, scenario)


class SlowHosts(AddressGuard):
    """Names whose addresses are found when the test says so; counts what is being fetched."""

    def __init__(self) -> None:
        super().__init__(PUBLIC)
        self.asked: list[str] = []
        self.found: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def resolve(self, uri: str) -> str:
        self.asked.append(uri)
        await self.found[uri].wait()
        raise AddressRefused("found")


async def rest() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def slow_fetches() -> AsyncIterator[tuple[KeyFetches, SlowHosts, Callable[..., asyncio.Future[bytes | None]]]]:
    guard = SlowHosts()
    fetching = KeyFetches(guard, lambda: None)
    tasks = []

    def start(uri: str, source: str | None) -> asyncio.Future[bytes | None]:
        tasks.append(asyncio.ensure_future(fetching.fetch(uri, source)))
        return tasks[-1]

    yield fetching, guard, start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert_idle(fetching)


def test_one_who_names_hundreds_of_slow_hosts_holds_up_nobody_else():
    async def scenario() -> None:
        async with slow_fetches() as (_, guard, start):
            for number in range(1_000):
                start(f"https://{number}.slow.example/won/resource", "192.0.2.1")
            await rest()
            assert len(guard.asked) == key_fetches.MAX_AT_ONCE_PER_SOURCE
            start("https://partner.example/won/resource", "192.0.2.2")
            await rest()
            assert guard.asked[-1] == "https://partner.example/won/resource"

    asyncio.run(scenario())


def test_where_many_fill_all_places_the_next_is_for_another():
    async def scenario() -> None:
        async with slow_fetches() as (_, guard, start):
            for number in range(50):
                for stranger in range(4):
                    start(f"https://{number}.{stranger}.example/won/resource", f"192.0.2.{stranger}")
            await rest()
            assert len(guard.asked) == key_fetches.MAX_AT_ONCE
            start("https://partner.example/won/resource", "198.51.100.1")
            for number in range(5):
                await rest()
                guard.found[guard.asked[number]].set()
            await rest()
            assert "https://partner.example/won/resource" in guard.asked
            assert len(guard.asked) == key_fetches.MAX_AT_ONCE + 5

    asyncio.run(scenario())


def test_keys_on_one_host_are_fetched_in_turns_of_those_who_need_them():
    async def scenario() -> None:
        async with slow_fetches() as (_, guard, start):
            for number in range(100):
                start(f"https://partner.example/won/resource/atom/{number}", "192.0.2.1")
            await rest()
            start("https://partner.example/won/resource/atom/new", "192.0.2.2")
            for number in range(2):
                await rest()
                guard.found[guard.asked[number]].set()
            await rest()
            assert len(guard.asked) == 3
            assert "https://partner.example/won/resource/atom/new" in guard.asked

    asyncio.run(scenario())


def test_key_that_several_need_is_fetched_once_in_the_turn_that_comes_first():
    async def scenario() -> None:
        async with slow_fetches() as (fetching, guard, start):
            names = [f"https://{number}.example/won/resource" for number in range(100)]
            for name in names:
                start(name, "192.0.2.1")
            await rest()
            assert not fetching.join("https://new.example/won/resource", "192.0.2.2")
            assert fetching.join(names[-1], "192.0.2.2")
            assert fetching.join(names[-1], "192.0.2.3")
            await rest()
            assert guard.asked[-1] == names[-1]
            assert len(guard.asked) == key_fetches.MAX_AT_ONCE_PER_SOURCE + 1
            start("https://more.example/won/resource", "192.0.2.1")
            await rest()
            assert guard.asked[-1] == names[-1], "the share of the first is used up as before"

    asyncio.run(scenario())


def test_who_joins_late_has_all_of_the_time_for_a_turn(monkeypatch):
    monkeypatch.setattr(key_fetches, "WAIT_S", 0.05)

    async def scenario() -> None:
        async with slow_fetches() as (fetching, guard, start):
            start("https://partner.example/won/resource", "192.0.2.1")
            late = start("https://partner.example/won/resource/atom/a", "192.0.2.1")
            await rest()
            monkeypatch.setattr(key_fetches, "WAIT_S", 60.0)
            assert fetching.join("https://partner.example/won/resource/atom/a", "192.0.2.2")
            await asyncio.wait([late], timeout=0.1)
            assert not late.done()
            guard.found[guard.asked[0]].set()
            await rest()
            assert guard.asked[-1] == "https://partner.example/won/resource/atom/a"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        *((each, False) for each in ("127.0.0.1", "::1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254")),
        *((each, False) for each in ("fe80::1%eth0", "fd00::1", "0.0.0.0", "::", "224.0.0.1", "::ffff:127.0.0.1")),
        *((each, False) for each in ("100.64.0.1", "::ffff:10.0.0.1", "255.255.255.255")),
        *(
            (each, False)
            for each in ("64:ff9b::7f00:1", "64:ff9b:1::5db8:d822", "2002:a01:203::1", "::7f00:1", "fec0::1")
        ),
        *((each, True) for each in ("64:ff9b::5db8:d822", "::ffff:93.184.216.34")),
    ],
)
def test_addresses_that_are_not_public(address, allowed):
    assert AddressGuard(PUBLIC).is_allowed(address) is allowed


def test_an_owners_own_node_may_be_anywhere_and_others_may_not():
    async def scenario() -> None:
        guard = AddressGuard("https://10.1.2.3/won/resource/atom/a", trusts_own=True)
        assert await guard.resolve("https://10.1.2.3/won/resource") == "10.1.2.3"
        with pytest.raises(AddressRefused):
            await guard.resolve("https://10.1.2.4/won/resource")

    asyncio.run(scenario())


def test_the_authority_for_other_nodes_is_read_again_without_a_restart(tmp_path):
    first, second = Site(tmp_path / "one"), Site(tmp_path / "two")
    path = tmp_path / "ca.pem"
    path.write_bytes((tmp_path / "one" / "ca.pem").read_bytes())

    async def scenario() -> None:
        tls = ClientTls(str(path), check_s=0.0)
        fetching = KeyFetches(AddressGuard(LOCAL), tls.current)
        context = server_context(second.settings["certificate"], second.settings["key"])
        async with serving(OK, context) as (_, port):
            assert await fetching.fetch(f"https://localhost:{port}/x") is None
            path.write_bytes((tmp_path / "one" / "ca.pem").read_bytes() + (tmp_path / "two" / "ca.pem").read_bytes())
            assert await fetching.fetch(f"https://localhost:{port}/x") == b"key"

    assert first
    asyncio.run(scenario())
