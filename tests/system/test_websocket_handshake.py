"""Handshakes on real sockets: limited in time, number and rate, one log line per failure, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import warnings

import pytest
from aiofastnet.ssl_transport import SSLTransport_Socket

from counting import count_calls
from dovetail.keys import CertificateKind, Names
from dovetail.model.errors import ConnectFailed
from dovetail.runtime.acceptor import Acceptor, HandshakeLimits, host_of
from dovetail.runtime.http import Reply, probe
from dovetail.runtime.limits import Limits
from dovetail.runtime.tls import ServerTls, client_context
from dovetail.runtime.websocket import Accept, LinkHandler, dial, listen
from system.pcp_raw import RawClient, Refused, hello_of
from system.pcp_site import Site, until

pytestmark = pytest.mark.system
LONG = 60.0


class Recorder(LinkHandler[int]):
    def __init__(self) -> None:
        self.links = []
        self.closed_codes: list[int] = []

    def opened(self, link, label: str) -> None:
        self.links.append(link)

    def closed(self, link: int, code: int) -> None:
        self.closed_codes.append(code)


def limits(**handshake: float) -> Limits:
    return Limits(max_message_bytes=1000, handshake=HandshakeLimits(**{"timeout_s": LONG, "grace_s": 0, **handshake}))


def admit(request) -> Accept[int] | Reply:
    path = request.path.decode()
    if path == "/large":
        return Reply(200, b"x" * 50_000_000)
    return Accept(1, path) if path == "/pcp" else Reply(404, b"nothing here\n", headers=(("Vary", "Accept"),))


@contextlib.asynccontextmanager
async def listening(tls: ServerTls | None = None, **handshake: float):
    handler = Recorder()
    acceptor = await listen(handler, "127.0.0.1", 0, admit=admit, tls=tls, limits=limits(**handshake))
    try:
        yield handler, acceptor
    finally:
        acceptor.close()
        await RawClient.close_all()
        for link in handler.links:
            link.abort()
        await until(lambda: len(handler.closed_codes) == len(handler.links))


def server_tls(site: Site) -> ServerTls:
    return ServerTls(*site.settings.values())


def failed(acceptor: Acceptor) -> list[str]:
    return list(acceptor.failures.elements())


def lines(caplog) -> list[str]:
    """The log lines, without the ports of clients; fails if there is a traceback."""
    assert all(record.exc_info is None for record in caplog.records)
    return [record.message for record in caplog.records if record.levelname != "INFO"]


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    RawClient.writers.append(writer)
    return reader, writer


def tls_transports() -> int:
    return sum(isinstance(each, SSLTransport_Socket) for each in gc.get_objects())


def foreign_client(site: Site, tmp_path) -> ssl.SSLContext:
    context = Site(tmp_path / "other").client("stranger")
    context.load_verify_locations(site.directory / "ca.pem")
    return context


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("no certificate", "tls", "tls: peer did not return a certificate"),
        ("foreign certificate", "tls", "certificate not accepted: self-signed certificate in certificate chain"),
        ("no TLS", "tls", "tls: http request"),
        ("leaves", "closed", "the peer closed the connection"),
        ("leaves in the hello", "closed", "the peer closed the connection"),
        ("silent", "timeout", "no handshake within 0.2 s"),
        ("silent after TLS", "timeout", "no handshake within 0.2 s"),
    ],
)
def test_a_failed_tls_handshake_is_one_line_in_the_log(tmp_path, caplog, fault, kind, said):
    site = Site(tmp_path / "site")

    async def scenario() -> int:
        async with listening(server_tls(site), timeout_s=0.2 if "silent" in fault else LONG) as (handler, acceptor):
            if fault in ("no certificate", "foreign certificate", "silent after TLS"):
                context = ssl.create_default_context(cafile=site.directory / "ca.pem")
                if fault == "foreign certificate":
                    context = foreign_client(site, tmp_path)
                elif fault == "silent after TLS":
                    context = site.client("a")
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", acceptor.port, ssl=context, server_hostname="localhost"
                    )
                    address = writer.get_extra_info("sockname")
                    RawClient.writers.append(writer)
                    await reader.read()
            else:
                reader, writer = await connect(acceptor.port)
                address = writer.get_extra_info("sockname")
                if fault == "leaves in the hello":
                    writer.write(b"\x16\x03\x01")
                if "leaves" in fault:
                    writer.close()
                elif fault == "no TLS":
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(OSError):
                    await reader.read()
            await until(lambda: failed(acceptor))
            assert failed(acceptor) == [kind]
            assert handler.links == []
            client = await RawClient.open(acceptor.port, "/pcp", site.client("b"))
            assert len(handler.links) == 1
            await client.close()
            return address[1]

    port = asyncio.run(scenario())
    assert lines(caplog) == [f"handshake failed peer=127.0.0.1:{port}: {said}"]


def test_a_peer_that_only_asks_for_a_page_and_does_not_read_it_is_dropped_in_time(caplog):
    async def scenario() -> None:
        async with listening(timeout_s=0.2) as (_, acceptor):
            _, writer = await connect(acceptor.port)
            writer.transport.pause_reading()
            writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: failed(acceptor) == ["timeout"])

    asyncio.run(scenario())
    assert len(lines(caplog)) == 1


def test_the_oldest_of_too_many_handshakes_gives_way(caplog):
    async def scenario() -> None:
        async with listening(at_once=3) as (_, acceptor):
            silent = [await connect(acceptor.port) for _ in range(3)]
            client = await RawClient.open(acceptor.port)
            assert await silent[0][0].read() == b""
            assert failed(acceptor) == ["dropped"]
            await connect(acceptor.port)
            await RawClient.open(acceptor.port)
            assert await silent[1][0].read() == b""
            assert not silent[2][0].at_eof()
            client.send_frame(9, b"still there")
            assert await client.receive_frame() == (10, b"still there")

    asyncio.run(scenario())
    assert [line.partition(": ")[2] for line in lines(caplog)] == ["too many handshakes at once"] * 2


def test_nobody_gives_way_before_a_moment_has_passed():
    async def scenario() -> None:
        async with listening(at_once=2, grace_s=LONG) as (handler, acceptor):
            silent = [await connect(acceptor.port) for _ in range(2)]
            await until(lambda: acceptor.handshake_count == 2)
            waiting = asyncio.ensure_future(RawClient.open(acceptor.port))
            for _ in range(20):
                await asyncio.sleep(0)
            assert (failed(acceptor), handler.links, waiting.done()) == ([], [], False)
            silent[1][1].close()  # makes room
            await waiting
            assert failed(acceptor) == []

    asyncio.run(scenario())


def test_a_burst_beyond_the_limit_leaves_no_socket_behind(caplog):
    async def scenario() -> None:
        async with listening(at_once=2) as (_, acceptor):
            peers = await asyncio.gather(*(connect(acceptor.port) for _ in range(20)))
            ended = [asyncio.ensure_future(reader.read()) for reader, _ in peers]
            await until(lambda: sum(each.done() for each in ended) == 18)
            for each in ended:
                each.cancel()
            await RawClient.open(acceptor.port)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(scenario())
        gc.collect()
    assert [str(each.message) for each in told] == []


def test_tls_handshakes_per_second_are_limited_and_links_go_on(tmp_path):
    site = Site(tmp_path)

    async def scenario() -> None:
        async with listening(server_tls(site), tls_per_s=0.01) as (handler, acceptor):
            client = await RawClient.open(acceptor.port, "/pcp", site.client("a"))
            second = asyncio.ensure_future(RawClient.open(acceptor.port, "/pcp", site.client("b")))
            await until(lambda: acceptor.handshake_count == 1)
            for turn in range(50):
                client.send_frame(9, bytes([turn]))
                assert await client.receive_frame() == (10, bytes([turn]))
            assert not second.done()
            assert len(handler.links) == 1
            second.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await second

    asyncio.run(scenario())


def test_addresses_take_turns_so_that_one_with_many_hellos_waits_for_itself():
    async def scenario() -> list[str]:
        order: list[str] = []

        async def greet(*_: object) -> None: ...

        acceptor = Acceptor(greet, HandshakeLimits(tls_per_s=100))

        async def take(host: str) -> None:
            await acceptor.take_turn(host)
            order.append(host)

        crowd = [asyncio.ensure_future(take("192.0.2.1")) for _ in range(60)]
        await until(lambda: order)
        await take("192.0.2.2")
        for each in crowd:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        return order

    order = asyncio.run(scenario())
    assert len(order) < 40, "the other had to wait for all of the crowd"


def test_few_of_a_crowd_start_in_one_turn_so_that_others_need_not_wait_for_the_work_of_all():
    async def scenario() -> int:
        async def greet(*_: object) -> None: ...

        acceptor = Acceptor(greet, HandshakeLimits())
        crowd = [asyncio.ensure_future(acceptor.take_turn("192.0.2.1")) for _ in range(100)]
        await asyncio.sleep(0)
        started = sum(each.done() for each in crowd)
        for each in crowd:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        return started

    assert 1 <= asyncio.run(scenario()) <= 10


def test_where_too_many_shake_hands_the_address_with_most_of_them_gives_way():
    async def scenario() -> None:
        async with listening(at_once=4) as (_, acceptor):
            other, writer = await asyncio.open_connection("127.0.0.1", acceptor.port, local_addr=("127.0.0.2", 0))
            RawClient.writers.append(writer)
            await until(lambda: acceptor.handshake_count == 1)
            crowd = [await connect(acceptor.port) for _ in range(6)]
            assert [await reader.read() for reader, _ in crowd[:3]] == [b""] * 3
            assert len(failed(acceptor)) == 3
            assert not any(reader.at_eof() for reader in (other, *(each for each, _ in crowd[3:])))

    asyncio.run(scenario())


def test_making_room_costs_the_same_however_many_addresses_there_are():
    """A host may have 65,536 networks of 64 bits."""

    async def cost(hosts: int) -> int:
        async def greet(*_: object) -> None: ...

        acceptor = Acceptor(greet, HandshakeLimits())
        for number in range(hosts):
            acceptor._remember(asyncio.ensure_future(asyncio.sleep(60)), f"2001:db8:{number:x}::/64", 0.0)
        calls = count_calls(acceptor._make_room)
        left = [*acceptor._handshakes]
        for task in left:
            task.cancel()
        assert len(left) == hosts - 1
        return calls

    assert asyncio.run(cost(300)) == asyncio.run(cost(3))


def test_whoever_waits_for_the_rate_is_served_after_all(tmp_path):
    site = Site(tmp_path)

    async def scenario() -> None:
        async with listening(server_tls(site), tls_per_s=200) as (handler, acceptor):
            context = site.client("a")
            await asyncio.gather(*(RawClient.open(acceptor.port, "/pcp", context) for _ in range(150)))
            assert len(handler.links) == 150
            assert failed(acceptor) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("said", [0, 1, 4, 5, 100])
def test_tls_takes_no_memory_before_the_hello_has_come(tmp_path, said):
    site = Site(tmp_path)
    hello = hello_of(site.client("a"))

    async def scenario() -> None:
        async with listening(server_tls(site)) as (_, acceptor):
            reader, writer = await connect(acceptor.port)
            writer.write(hello[:said])
            await until(lambda: acceptor.handshake_count == 1)
            for _ in range(20):
                await asyncio.sleep(0)
            assert tls_transports() == 0
            writer.write(hello[said:])
            assert await reader.readexactly(1) == b"\x16"  # the server's part of the handshake
            assert tls_transports() == 1

    gc.collect()
    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["dropped", "dropped in TLS", "closed", "tls"])
def test_a_failed_handshake_leaves_nothing_to_the_garbage_collector(tmp_path, kind):
    site = Site(tmp_path)
    hello = hello_of(site.client("a"))

    async def scenario() -> None:
        limits = {"dropped": {"at_once": 1}, "dropped in TLS": {"tls_at_once": 1}}.get(kind, {})
        async with listening(server_tls(site), **limits) as (_, acceptor):
            for _ in range(10):
                reader, writer = await connect(acceptor.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n" if kind == "tls" else hello)
                if kind != "tls":
                    await reader.readexactly(1)
                if kind == "closed":
                    writer.transport.abort()
            await until(lambda: failed(acceptor) == [kind.split()[0]] * (9 if limits else 10))
            await until(lambda: tls_transports() == (1 if limits else 0))

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


def test_many_failures_are_summed_up_in_the_log(caplog):
    async def scenario() -> None:
        async with listening(at_once=1) as (_, acceptor):
            await asyncio.gather(*(connect(acceptor.port) for _ in range(100)))
            await until(lambda: any("more handshakes failed" in line for line in lines(caplog)))

    asyncio.run(scenario())
    assert lines(caplog)[20].endswith(" more handshakes failed within a second")


def test_closing_ends_what_is_in_its_handshake_and_keeps_links(caplog):
    async def scenario() -> None:
        async with listening() as (_, acceptor):
            client = await RawClient.open(acceptor.port)
            silent, _ = await connect(acceptor.port)
            await until(lambda: len(acceptor._handshakes) == 1)
            acceptor.close()
            assert await silent.read() == b""
            client.send_frame(9, b"still there")
            assert await client.receive_frame() == (10, b"still there")
            with pytest.raises(ConnectionRefusedError):
                await connect(acceptor.port)

    asyncio.run(scenario())
    assert lines(caplog) == []


def test_http_answers_end_their_connection():
    async def scenario() -> None:
        async with listening() as (_, acceptor):
            reader, writer = await connect(acceptor.port)
            writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 404 Not Found\r\n")
            assert b"Vary: Accept" in head
            assert b"Content-Type: text/plain" in head
            assert body == b"nothing here\n"
            with pytest.raises(Refused) as refused:
                await RawClient.open(acceptor.port, "/nothing")
            assert refused.value.status == 404

    asyncio.run(scenario())


def test_a_replaced_certificate_is_shown_to_the_next_client(tmp_path):
    site = Site(tmp_path)

    async def scenario() -> None:
        tls = ServerTls(*site.settings.values(), check_s=0)
        async with listening(tls) as (_, acceptor):

            async def shown() -> str:
                client = await RawClient.open(acceptor.port, "/pcp", site.client("a"))
                return client.writer.get_extra_info("peercert")["serialNumber"]

            first = await shown()
            assert await shown() == first
            site.authority.issue("renewed", CertificateKind.SERVER, Names(dns=["localhost"]))
            (tmp_path / "renewed.key").replace(tmp_path / "localhost.key")
            (tmp_path / "renewed.pem").replace(tmp_path / "localhost.pem")
            assert await shown() != first

    asyncio.run(scenario())


# Clients


async def fail_to_dial(url: str, tls: ssl.SSLContext | None = None, **handshake: float) -> str:
    handler = Recorder()
    with pytest.raises(ConnectFailed) as failed:
        await dial(handler, url, 1, tls=tls, limits=limits(**handshake))
    assert handler.links == []
    assert failed.value.__cause__ is None
    return str(failed.value)


def test_dialling_tells_in_one_line_what_failed(tmp_path, caplog):
    site = Site(tmp_path / "site")

    async def scenario() -> None:
        async with listening(server_tls(site)) as (_, acceptor):
            url = f"wss://localhost:{acceptor.port}/pcp"
            said = await fail_to_dial(url, Site(tmp_path / "other").client("a"))
            assert said.startswith(f"{url} cannot be reached: certificate not accepted: ")
            assert said.endswith("; the authority must be the CA that signed it")
            said = await fail_to_dial(f"wss://localhost:{acceptor.port}/nothing", site.client("a"))
            assert said.endswith("but received 404")
            said = await fail_to_dial(f"ws://localhost:{acceptor.port}/pcp")
            assert said.endswith("/pcp cannot be reached: the peer closed the connection; it may expect TLS")
            said = await fail_to_dial(url, client_context(authority=str(tmp_path / "site" / "ca.pem")))
            assert said == f"{url} cannot be reached: the peer closed the connection"
        said = await fail_to_dial(url, site.client("a"))
        assert said == f"{url} cannot be reached: connection refused"

    asyncio.run(scenario())
    assert all(line.startswith("handshake failed peer=127.0.0.1:") for line in lines(caplog))


@pytest.mark.parametrize("fetching", [False, True])
def test_a_client_with_tls_is_told_at_once_that_the_server_has_none(tmp_path, caplog, fetching):
    """Waiting for the end of an HTTP head, the server would be silent until the client gives up."""
    site = Site(tmp_path / "site")

    async def scenario() -> None:
        async with listening() as (_, acceptor):
            if fetching:
                with pytest.raises(ConnectFailed) as raised:
                    await probe(f"https://localhost:{acceptor.port}/won/resource", site.client("a"), LONG)
                said = str(raised.value)
            else:
                said = await fail_to_dial(f"wss://localhost:{acceptor.port}/pcp", site.client("a"))
            assert said.endswith(" cannot be reached: the server answers without TLS")
            assert failed(acceptor) == ["closed"]

    asyncio.run(scenario())
    (line,) = lines(caplog)
    assert line.endswith(": the client begins with TLS, which this server does not have")


async def listen_silently(context: ssl.SSLContext | None):
    """A server that never answers: not at all, or only at TLS level."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def keep_silent(reader, writer) -> None:
        began.set()
        while await reader.read(1000):
            pass
        writer.close()
        ended.set()

    return await asyncio.start_server(keep_silent, "localhost", 0, ssl=context), began, ended


@pytest.mark.parametrize("silence", ["plain", "before TLS", "after TLS"])
@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_giving_up_leaves_no_socket_behind(tmp_path, silence, how):
    site = Site(tmp_path)
    context = server_tls(site).current() if silence == "after TLS" else None

    async def scenario() -> None:
        server, began, ended = await listen_silently(context)
        url = f"{'ws' if silence == 'plain' else 'wss'}://localhost:{server.sockets[0].getsockname()[1]}/"
        if how == "timeout":
            assert await fail_to_dial(url, site.client("a"), timeout_s=0.2) == f"{url} did not answer within 0.2 s"
        else:
            dialled = asyncio.ensure_future(dial(Recorder(), url, 1, tls=site.client("a"), limits=limits()))
            await began.wait()
            dialled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialled
        async with asyncio.timeout(60):
            await ended.wait()
        server.close()
        await server.wait_closed()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(scenario())
        gc.collect()
    assert [str(each.message) for each in told] == []


@pytest.mark.parametrize(
    ("address", "host"),
    [
        (("192.0.2.7", 50_000), "192.0.2.7"),
        (("2001:db8:1:2:aaaa::1", 50_000, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff:ffff:ffff:ffff", 50_000, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:3::", 50_000, 0, 0), "2001:db8:1:3::/64"),
        (("::ffff:192.0.2.7", 50_000, 0, 0), "192.0.2.7"),
        (("fe80::1%eth0", 50_000, 0, 2), "fe80::/64"),
        ("", "unknown"),
    ],
)
def test_all_addresses_that_one_host_may_have_share_its_limits(address, host):
    assert host_of(address) == host
