"""Bad input on real sockets: a clear error, a journal entry with its reason, a metric, others unaffected."""

import asyncio
import contextlib
import json
import struct

import pytest

from dovetail.keys.authority import load_certificate
from dovetail.model.address import address_of
from dovetail.model.hop import Reason, Stage
from pcp.pcp_frames import chunk, compact, envelope, frame_v1, raw_v1
from system.pcp_raw import Closed, RawClient, hello_of
from system.pcp_site import MemoryJournal, Site, broker, scrape, until

pytestmark = pytest.mark.system
LATER = "2099-01-01T00:00:00Z"


def own(**changes: object) -> dict[str, object]:
    return envelope(**{"sender": "pcp://bad/agent", "targets": ["pcp://good/agent"], "expires": LATER, **changes})


BAD_FRAMES = {
    "garbage": (b"\xde\xad\xbe\xef" * 10, Reason.UNSUPPORTED_VERSION),
    "truncated": (raw_v1(compact(own()), b"data")[:-2], Reason.MALFORMED),
    "negative length": (b"\x01" + chunk(1, compact(own()), -5), Reason.MALFORMED),
    "huge length": (b"\x01" + chunk(1, compact(own()), 2**31 - 1), Reason.MALFORMED),
    "two envelopes": (raw_v1(compact(own())) + chunk(1, compact(own())), Reason.MALFORMED),
    "duplicate keys": (raw_v1(compact(own())[:-1] + b',"sender":"pcp://good/agent"}'), Reason.MALFORMED),
    "deep nesting": (raw_v1(b'{"targets":' + b"[" * 200_000), Reason.INVALID_SCHEMA),
    "invalid utf-8": (raw_v1(compact(own()).replace(b"ping", b"\xff\xff")), Reason.MALFORMED),
    "non-uuid id": (raw_v1(compact(own(id="1234"))), Reason.INVALID_SCHEMA),
    "bad uri": (raw_v1(compact(own(targets=["//good"]))), Reason.BAD_URI),
    "embedded nul in type": (raw_v1(compact(own(message_type="a\0b"))), Reason.FORBIDDEN_CHARACTERS),
    "embedded nul in target": (raw_v1(compact(own(targets=["pcp://good\0/agent"]))), Reason.FORBIDDEN_CHARACTERS),
    "foreign sender": (raw_v1(compact(own(sender="pcp://good/agent"))), Reason.SENDER_MISMATCH),
}
REPLIES = {}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frame_gets_an_answer_a_journal_entry_and_a_metric_and_harms_nobody(name):
    frame, reason = BAD_FRAMES[name]

    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, metrics_port=0) as server:
            bad = await RawClient.associate(server.port, "pcp://bad/agent")
            good = await RawClient.associate(server.port, "pcp://good/agent")
            bad.send_frame(2, frame)
            answer, _, _ = await bad.receive_v1()
            assert answer["message_type"] == REPLIES.get(reason, "http://puppetlabs.com/error_message")
            assert journal.hops_of(frame) == [(Stage.REJECTED, "pcp://bad/agent", reason)]
            _, metrics = await scrape(server.metrics_port)
            assert f'dovetail_pcp_messages_total{{reason="{reason.value}",stage="rejected"}} 1.0' in metrics
            message = bad.send_v1("http://example.com/ping", [good.uri], b"still here")
            assert (await good.receive_v1())[0]["id"] == message

    asyncio.run(scenario())


def test_type_server_is_refused():
    async def scenario() -> None:
        async with broker() as server:
            with pytest.raises(Closed) as closed:
                await RawClient.associate(server.port, "pcp://bad/server")
            assert closed.value.code == 4002

    asyncio.run(scenario())


def test_too_large_is_refused_by_its_header_before_it_is_stored():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal) as server:
            bad = await RawClient.associate(server.port, "pcp://bad/agent")
            bad.send_frame(2, b"\x01" * 1000, length=64 * 1024 * 1024 + 1)
            assert await bad.closed_with() == 1009
            await until(lambda: Reason.TOO_LARGE in journal.reasons())

    asyncio.run(scenario())


def test_a_message_of_several_megabytes_passes():
    async def scenario() -> None:
        async with broker() as server:
            a = await RawClient.associate(server.port, "pcp://a/agent")
            b = await RawClient.associate(server.port, "pcp://b/agent")
            data = b"x" * 5_000_000
            a.send_v1("http://example.com/big", [b.uri], data)
            assert (await b.receive_v1())[1] == data

    asyncio.run(scenario())


def test_read_buffers_of_large_messages_are_bounded_together():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, memory_bytes=14_000_000) as server:  # a quarter for what is incomplete
            receiver = await RawClient.associate(server.port, "pcp://b/agent")
            first = await RawClient.associate(server.port, "pcp://a1/agent")
            second = await RawClient.associate(server.port, "pcp://a2/agent")
            first.send_v1("http://example.com/big", [receiver.uri], b"x" * 2_000_000)
            assert len((await receiver.receive_v1())[1]) == 2_000_000
            second.send_v1("http://example.com/big", [receiver.uri], b"x" * 2_000_000)
            assert await second.closed_with() == 1011
            await until(lambda: Reason.QUEUE_FULL in journal.reasons())
            assert 0 < server.memory.used_bytes < 3_000_000
            assert first.uri in server.broker.registry.by_uri
            await first.close()
            await until(lambda: server.memory.used_bytes == 0)

    asyncio.run(scenario())


def test_fragmented_messages_are_put_together():
    async def scenario() -> None:
        async with broker() as server:
            a = await RawClient.associate(server.port, "pcp://a/agent")
            b = await RawClient.associate(server.port, "pcp://b/agent")
            message = raw_v1(compact(own(sender=a.uri, targets=[b.uri])), b"d" * 100)
            a.send_frame(2, message[:10], is_final=False)
            a.send_frame(9, b"ping between")
            a.send_frame(0, message[10:50], is_final=False)
            a.send_frame(0, b"", is_final=False)
            a.send_frame(0, message[50:])
            assert await a.receive_frame() == (10, b"ping between")
            assert await b.receive_frame() == (2, message)
            a.send_frame(2, message)
            assert await b.receive_frame() == (2, message)

    asyncio.run(scenario())


@pytest.mark.parametrize("payload", [b"", b"x" * 1000])
def test_a_fragmented_frame_bomb_is_bounded(payload):
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, max_message_bytes=200_000) as server:
            bad = await RawClient.associate(server.port, "pcp://bad/agent")
            bad.send_frame(2, b"\x01", is_final=False)
            with contextlib.suppress(ConnectionError):  # the connection may be reset while we are still sending
                for _ in range(400):
                    for _ in range(50):
                        bad.send_frame(0, payload, is_final=False)
                    await bad.writer.drain()
            assert await bad.closed_with() in (1009, 1006)
            await until(lambda: Reason.TOO_LARGE in journal.reasons())
            assert server.broker.connection_count == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("opcode", [0, 3, 11])
def test_frames_that_break_the_websocket_rules_end_the_connection(opcode):
    async def scenario() -> None:
        async with broker() as server:
            bad = await RawClient.associate(server.port, "pcp://bad/agent")
            bad.send_frame(opcode, b"x")
            assert await bad.closed_with() == 1002

    asyncio.run(scenario())


def test_a_client_that_never_reads_is_closed_named_and_others_do_not_feel_it():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, queue_bytes=500_000, metrics_port=0) as server:
            deaf = await RawClient.associate(server.port, "pcp://deaf/agent")
            good = await RawClient.associate(server.port, "pcp://good/agent")
            sender = await RawClient.associate(server.port, "pcp://sender/controller")
            deaf.reader._transport.pause_reading()
            data = b"x" * 100_000
            for _ in range(400):
                sent = sender.send_v1("http://example.com/ping", ["pcp://*/agent"], data)
                await sender.writer.drain()
                assert (await good.receive_v1())[0]["id"] == sent
                if "pcp://deaf/agent" not in server.broker.registry.by_uri:
                    break
            assert "pcp://deaf/agent" not in server.broker.registry.by_uri
            _, metrics = await scrape(server.metrics_port)
            assert 'dovetail_pcp_slow_consumers_total{client="pcp://deaf/agent"} 1.0' in metrics
            assert server.broker.queued_bytes < 2_000_000
            await until(lambda: len(server._connections) == 2)

    asyncio.run(scenario())


def test_pings_of_a_client_that_never_reads_do_not_pile_up():
    async def scenario() -> None:
        async with broker() as server:
            deaf = await RawClient.associate(server.port, "pcp://deaf/agent")
            deaf.reader._transport.pause_reading()
            connection = next(iter(server._connections.values()))
            for _ in range(60):
                for _ in range(1000):
                    deaf.send_frame(9, b"p" * 125)
                await deaf.writer.drain()
            await asyncio.sleep(0.1)
            assert connection.unsent_bytes < 2 * 64 * 1024

    asyncio.run(scenario())


def test_http_that_is_no_upgrade_is_refused():
    async def scenario() -> None:
        async with broker(handshake_timeout_ms=300) as server:
            for request in (b"GET /pcp HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01garbage\r\n\r\n", b"x" * 100_000):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(request)
                try:
                    answer = await asyncio.wait_for(reader.read(), 5)
                except ConnectionError:
                    answer = b""
                assert b" 101 " not in answer
                writer.close()
            client = await RawClient.associate(server.port, "pcp://a/agent")
            assert client.uri in server.broker.registry.by_uri

    asyncio.run(scenario())


def test_many_that_reconnect_at_once_are_all_served():
    async def scenario() -> None:
        async with broker() as server:
            names = [f"pcp://agent{number}/agent" for number in range(300)]
            for _ in range(2):
                clients = await asyncio.gather(*(RawClient.associate(server.port, name) for name in names))
                await asyncio.gather(*(client.close() for client in clients))
            await until(lambda: server.broker.connection_count == 0)
            assert not server._connections

    asyncio.run(scenario())


def test_rejected_bytes_are_evidence_up_to_a_limit():
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal, evidence_bytes=100) as server:
            bad = await RawClient.associate(server.port, "pcp://bad/agent")
            frame = b"\x07" * 5000
            bad.send_frame(2, frame)
            await bad.receive_v1()
            (seen,) = [seen for seen in journal.observations if seen.message == address_of(frame)]
            assert (seen.raw, seen.size) == (frame[:100], 5000)

    asyncio.run(scenario())


def test_error_names_the_id_of_the_message_that_caused_it():
    async def scenario() -> None:
        async with broker() as server:
            bad = await RawClient.associate(server.port, "pcp://bad/agent")
            bad.send_frame(2, frame_v1(extra=1))
            fields, data, _ = await bad.receive_v1()
            assert json.loads(data)["id"] == fields["in-reply-to"] == envelope()["id"]
            bad.send_frame(1, struct.pack(">I", 0))
            fields, data, _ = await bad.receive_v1()
            assert "text frame" in json.loads(data)["description"]

    asyncio.run(scenario())


@pytest.mark.parametrize("reserved", [1, 2, 4])
def test_reserved_bits_end_the_connection_and_are_journaled(reserved):
    async def scenario() -> None:
        journal = MemoryJournal()
        async with broker(journal) as server:
            bad = await RawClient.associate(server.port, "pcp://bad/agent")
            bad.send_frame(2, raw_v1(compact(own())), reserved=reserved)
            assert await bad.closed_with() == 1002
            await until(lambda: Reason.MALFORMED in journal.reasons())

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["one frame", "fragments"])
def test_of_a_client_that_has_not_associated_only_a_little_is_read(kind):
    async def scenario() -> None:
        async with broker(association_timeout_ms=60_000) as server:
            bad = await RawClient.open(server.port)
            if kind == "one frame":
                bad.send_frame(2, bytes(20_000_000), length=60_000_000)
            else:
                bad.send_frame(2, bytes(100_000), is_final=False)
                for _ in range(199):
                    bad.send_frame(0, bytes(100_000), is_final=False)
            good = await RawClient.associate(server.port, "pcp://good/agent")
            for turn in range(200):  # time enough to read everything, if it were read
                good.send_frame(9, bytes([turn]))
                assert await good.receive_frame() == (10, bytes([turn]))
            assert bad.writer.transport.get_write_buffer_size() > 5_000_000
            big = b"x" * 2_000_000
            good.send_v1("http://example.com/big", [good.uri], big)
            assert (await good.receive_v1())[1] == big

    asyncio.run(scenario())


def test_an_association_with_a_large_message_right_behind_it_is_served():
    async def scenario() -> None:
        async with broker() as server:
            eager = await RawClient.open(server.port)
            eager.uri = "pcp://eager/agent"
            big = b"x" * 2_000_000
            eager.send_v1("http://puppetlabs.com/associate_request", ["pcp:///server"])
            eager.send_v1("http://example.com/big", [eager.uri], big)
            assert (await eager.receive_v1())[0]["message_type"] == "http://puppetlabs.com/associate_response"
            assert (await eager.receive_v1())[1] == big

    asyncio.run(scenario())


def test_a_failed_tls_handshake_is_one_line_and_a_metric(tmp_path, caplog):
    site = Site(tmp_path)

    async def scenario() -> int:
        async with broker(metrics_port=0, **site.settings) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            port: int = writer.get_extra_info("sockname")[1]
            writer.write(b"\x16\x03\x01")
            writer.close()
            await until(lambda: caplog.records)
            _, metrics = await scrape(server.metrics_port)
            assert 'dovetail_handshake_failures_total{kind="closed"} 1.0' in metrics
            return port

    port = asyncio.run(scenario())
    told = [record for record in caplog.records if record.levelname not in ("INFO", "DEBUG")]
    assert [record.message for record in told] == [
        f"handshake failed peer=127.0.0.1:{port}: the peer closed the connection"
    ]
    assert told[0].exc_info is None


def test_silent_strangers_give_way_to_clients(tmp_path):
    site = Site(tmp_path)

    async def scenario() -> None:
        async with broker(max_handshakes=10, **site.settings) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
            for _, writer in silent:
                writer.write(hello_of(site.client("a")))
            client = await RawClient.associate(server.port, "pcp://a/agent", site.client("a"))
            assert client.uri in server.broker.registry.by_uri
            for reader, _ in silent[:20]:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            assert sum(reader.at_eof() or reader.exception() is not None for reader, _ in silent) == 20
            for _, writer in silent:
                writer.close()

    asyncio.run(scenario())


def test_a_refused_certificate_is_told_with_address_and_name(tmp_path, caplog):
    site = Site(tmp_path)

    async def scenario() -> int:
        site.client("traitor")
        revocations = site.authority.write_revocation_list()
        site.authority.revoke(load_certificate(tmp_path / "traitor.pem"))
        async with broker(revocations=str(revocations), **site.settings) as server:
            client = await RawClient.open(server.port, context=site.client("traitor"))
            port: int = client.writer.get_extra_info("sockname")[1]
            assert await client.closed_with() == 1012
            return port

    port = asyncio.run(scenario())
    assert [record.message for record in caplog.records if "refused" in record.message] == [
        f"connection refused peer=127.0.0.1:{port} certificate=traitor: certificate revoked"
    ]
