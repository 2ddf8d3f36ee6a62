"""Links on real sockets: limits and rules are the same for listening and dialling ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from dovetail.model.hop import Reason
from dovetail.runtime.frames import Memory, encode_frames
from dovetail.runtime.http import Reply
from dovetail.runtime.limits import Limits
from dovetail.runtime.websocket import Accept, Link, LinkHandler, dial, listen
from system.pcp_raw import RawClient, RawPeer, RawServer
from system.pcp_site import until

pytestmark = pytest.mark.system
SIDES = ["accepted", "dialled"]
LIMITS = Limits(max_message_bytes=100_000, max_fragments=10)


class Recorder(LinkHandler[str]):
    """Records its callbacks, and the newest link; sends messages back if it `answers`."""

    def __init__(self) -> None:
        self.answers = False
        self.link: Link | None = None
        self.told: list[tuple[object, ...]] = []
        self.came = asyncio.Event()

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        self.came.set()

    def opened(self, link: Link, label: str) -> None:
        self.link = link
        self._tell("opened", link.id, label)

    def frame(self, data: bytes, link: str, is_text: bool) -> None:
        self._tell("frame", data, link, is_text)
        if self.answers:
            self.link.send(data, is_text=is_text)

    def pinged(self, link: str) -> None:
        self._tell("pinged", link)

    def refused(self, data: bytes, link: str, reason: Reason, size: int) -> None:
        self._tell("refused", data, link, reason, size)

    def closed(self, link: str, code: int) -> None:
        self._tell("closed", link, code)

    async def wait(self, *what: object) -> None:
        """Wait until this callback came."""
        async with asyncio.timeout(60):
            while what not in self.told:
                self.came.clear()
                await self.came.wait()


def admit(request) -> Accept[str] | Reply:
    path = request.path.decode()
    return Reply(404, b"nothing here\n") if path == "/nothing" else Accept("a", path)


@contextlib.asynccontextmanager
async def linked(
    side: str, limits: Limits = LIMITS, memory: Memory | None = None, unsent: Memory | None = None
) -> AsyncIterator[tuple[Recorder, RawPeer]]:
    """A link of ours, accepted or dialled, with a raw peer at its other end."""
    handler = Recorder()
    memory, unsent = memory or Memory(1 << 30), unsent or Memory(1 << 30, Link.drop_unread)
    shared = {"limits": limits, "memory": memory, "unsent": unsent}
    if side == "accepted":
        acceptor = await listen(handler, "127.0.0.1", 0, admit=admit, tls=None, **shared)
        peer: RawPeer = await RawClient.open(acceptor.port, "/pcp")
        await handler.wait("opened", "a", "/pcp")
        close = acceptor.close
    else:
        upgraded: asyncio.Future[RawServer] = asyncio.get_running_loop().create_future()

        async def upgrade(reader, writer) -> None:
            upgraded.set_result(await RawServer.upgrade(reader, writer))

        server = await asyncio.start_server(upgrade, "127.0.0.1", 0, limit=1 << 27)
        port = server.sockets[0].getsockname()[1]
        await dial(handler, f"ws://127.0.0.1:{port}/pcp", "a", tls=None, label="/pcp", **shared)
        peer = await upgraded
        close = server.close
    try:
        yield handler, peer
    finally:
        close()
        handler.link.abort()
        await until(lambda: handler.told[-1][0] == "closed")
        peer.writer.transport.abort()
        await peer.close()
        await RawClient.close_all()
        assert (memory.used_bytes, unsent.used_bytes) == (0, 0)


@pytest.fixture(params=SIDES)
def side(request) -> str:
    return request.param


def run(scenario) -> None:
    """Run to the end, with nothing left over that asyncio would log."""

    leftover: list[dict[str, object]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: leftover.append(context))
        await scenario()

    asyncio.run(watched())
    gc.collect()
    assert leftover == []


def test_messages_go_both_ways(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(1, b"text")
            peer.send_frame(2, b"x" * 90_000)
            await handler.wait("frame", b"text", "a", True)
            await handler.wait("frame", b"x" * 90_000, "a", False)
            handler.link.send(b"y" * 70_000, is_text=False)
            handler.link.send(b"hello", is_text=True)
            assert await peer.receive_frame() == (2, b"y" * 70_000)
            assert await peer.receive_frame() == (1, b"hello")
            if side == "accepted":
                handler.link.write(encode_frames([b"1", b"2"], is_text=True))
                assert [await peer.receive_frame() for _ in range(2)] == [(1, b"1"), (1, b"2")]
            assert handler.link.peer.startswith("127.0.0.1:")

    run(scenario)


def test_fragments_are_put_together_with_pings_between(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(1, b"a", is_final=False)
            peer.send_frame(0, b"", is_final=False)
            peer.send_frame(9, b"ping between")
            peer.send_frame(0, b"b" * 70_000, is_final=False)
            peer.send_frame(0, b"c")
            peer.send_frame(10, b"a pong nobody asked for")
            assert await peer.receive_frame() == (10, b"ping between")
            await handler.wait("frame", b"a" + b"b" * 70_000 + b"c", "a", True)
            await until(lambda: handler.told.count(("pinged", "a")) == 2)
            peer.send_frame(2, b"next")
            await handler.wait("frame", b"next", "a", False)

    run(scenario)


@pytest.mark.parametrize("payload", [b"", b"x"])
def test_too_many_fragments_are_refused_empty_ones_too(side, payload):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(2, payload, is_final=False)
            for _ in range(LIMITS.max_fragments):
                peer.send_frame(0, payload, is_final=False)
            assert await peer.closed_with() == 1009
            held = LIMITS.max_fragments * len(payload)
            await handler.wait("refused", payload * LIMITS.max_fragments, "a", Reason.TOO_LARGE, held + len(payload))

    run(scenario)


def test_too_many_bytes_in_fragments_are_refused(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(2, b"x" * 60_000, is_final=False)
            peer.send_frame(0, b"x" * 60_000)
            assert await peer.closed_with() == 1009
            await handler.wait("refused", b"x" * 60_000, "a", Reason.TOO_LARGE, 120_000)

    run(scenario)


@pytest.mark.parametrize("is_final", [True, False])
def test_a_frame_that_is_too_large_is_refused_by_its_header(side, is_final):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(2, b"only the beginning", is_final=is_final, length=LIMITS.max_message_bytes + 1)
            assert await peer.closed_with() == 1009
            await handler.wait("refused", b"", "a", Reason.TOO_LARGE, LIMITS.max_message_bytes + 1)

    run(scenario)


def test_a_continuation_of_nothing_is_refused(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(0, b"lone")
            assert await peer.closed_with() == 1002
            await handler.wait("refused", b"lone", "a", Reason.MALFORMED, 4)
            assert not [each for each in handler.told if each[0] == "frame"]

    run(scenario)


def test_a_message_inside_another_is_refused(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(1, b"begun", is_final=False)
            peer.send_frame(1, b"another")
            assert await peer.closed_with() == 1002
            await handler.wait("refused", b"another", "a", Reason.MALFORMED, 7)

    run(scenario)


@pytest.mark.parametrize("reserved", [1, 2, 4])
@pytest.mark.parametrize(("opcode", "is_final"), [(1, True), (2, True), (2, False), (9, True), (10, True), (8, True)])
def test_reserved_bits_are_refused_in_every_frame(side, reserved, opcode, is_final):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(opcode, b"" if opcode == 8 else b"data", is_final=is_final, reserved=reserved)
            assert await peer.closed_with() == 1002
            await handler.wait("closed", "a", 1006)
            assert [each[0] for each in handler.told] == ["opened", "refused", "closed"]

    run(scenario)


@pytest.mark.parametrize(
    "frame",
    [
        {"opcode": 9, "payload": b"p" * 126},
        {"opcode": 9, "payload": b"p", "is_final": False},
        {"opcode": 3},
        {"opcode": 11},
        {"opcode": 8, "payload": b"\x00"},
        {"opcode": 2, "payload": b"x", "is_masked": "wrong"},
    ],
)
def test_frames_that_break_the_rules_end_the_link(side, frame):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            if frame.get("is_masked") == "wrong":
                peer.send_frame(2, b"x", is_masked=not peer.is_client)
            else:
                peer.send_frame(**frame)
            assert await peer.closed_with() == 1002
            await handler.wait("closed", "a", 1006)
            assert [each[0] for each in handler.told] == ["opened", "closed"]

    run(scenario)


@pytest.mark.parametrize(("payload", "code"), [(b"\x0f\xa0bye", 4000), (b"", 1005)])
def test_the_peers_close_code_is_told_and_answered(side, payload, code):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.send_frame(8, payload)
            assert await peer.closed_with() == (1000 if code == 1005 else code)
            await handler.wait("closed", "a", code)

    run(scenario)


def test_closing_says_why_as_far_as_it_fits(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            handler.link.close(4001, "é" * 100)
            handler.link.close(4002)
            handler.link.send(b"too late", is_text=True)
            assert await peer.closed_with() == 4001
            await handler.wait("closed", "a", 1006)

    run(scenario)


def test_a_peer_that_does_not_read_is_dropped_at_the_bound(side, caplog):
    async def scenario() -> None:
        limits = Limits(max_message_bytes=1 << 20, max_unsent_bytes=1 << 20)
        async with linked(side, limits) as (handler, peer):
            peer.writer.transport.pause_reading()
            for _ in range(100):
                handler.link.send(b"x" * 1_000_000, is_text=False)
                assert handler.link.unsent_bytes <= 2_100_000
            await handler.wait("closed", "a", 1006)

    run(scenario)
    assert [record.message for record in caplog.records if "1048576 bytes unsent" in record.message]


def test_what_is_written_on_to_a_link_that_is_full_counts_for_all_links_together(side, caplog):
    async def scenario() -> None:
        limits = Limits(max_message_bytes=1 << 20, max_unsent_bytes=1 << 30)
        unsent = Memory(5 << 20, Link.drop_unread)
        async with linked(side, limits, unsent=unsent) as (handler, peer):
            peer.writer.transport.pause_reading()
            most = 0
            for _ in range(40):
                handler.link.send(b"x" * 1_000_000, is_text=False)
                most = max(most, handler.link.unsent_bytes)
            assert most <= 7 << 20
            await handler.wait("closed", "a", 1006)

    run(scenario)
    assert [record.message for record in caplog.records if "it leaves" in record.message]


def test_pings_of_a_peer_that_does_not_read_do_not_pile_up(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            peer.writer.transport.pause_reading()
            for _ in range(60):
                for _ in range(1000):
                    peer.send_frame(9, b"p" * 125)
                await peer.writer.drain()
            await until(lambda: handler.told.count(("pinged", "a")) == 60_000)
            assert handler.link.unsent_bytes < 2 * 64 * 1024

    run(scenario)


@pytest.mark.parametrize("answer", ["pongs", "messages"])
def test_a_peer_that_resets_the_connection_is_not_answered_with_a_line_in_the_log_each_time(side, answer, caplog):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            handler.link.set_reading(False)
            handler.answers = answer == "messages"
            for _ in range(500):
                peer.send_frame(9 if answer == "pongs" else 2)
            await peer.writer.drain()
            reset = struct.pack("ii", 1, 0)
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            peer.writer.transport.abort()
            handler.link.set_reading(True)
            await handler.wait("closed", "a", 1006)

    run(scenario)
    assert [record.name for record in caplog.records if record.name == "aiofastnet"] == []


@pytest.mark.parametrize("kind", ["one frame", "fragments"])
def test_unfinished_messages_of_all_links_are_bounded_together(side, kind):
    async def scenario() -> None:
        limits = Limits(max_message_bytes=10_000_000)
        memory = Memory(1_000_000)
        async with linked(side, limits, memory) as (handler, peer):
            if kind == "one frame":
                peer.send_frame(2, b"x" * 3_000_000, length=9_000_000)
            else:
                peer.send_frame(2, b"x" * 10_000, is_final=False)
                for _ in range(200):
                    peer.send_frame(0, b"x" * 10_000, is_final=False)
            await until(lambda: any(each[0] == "refused" for each in handler.told))
            assert handler.link._assembler is None, "what it held is given back before the other side lets go"
            assert await peer.closed_with() in (1011, 1006)  # the rest of what we send may reset the connection
            await until(lambda: handler.told[-1][0] == "closed")
            ((_, _, _, reason, size),) = [each for each in handler.told if each[0] == "refused"]
            assert reason is Reason.QUEUE_FULL
            assert 500_000 <= size <= 4_000_000

    run(scenario)


@pytest.mark.parametrize("kind", ["one frame", "fragments"])
def test_of_an_untrusted_peer_only_so_much_is_read(side, kind):
    async def scenario() -> None:
        limits = Limits(max_message_bytes=30_000_000, untrusted_bytes=65_536)
        memory = Memory(1 << 30)
        async with linked(side, limits, memory) as (handler, peer):
            peer.send_frame(1, b"small")
            await handler.wait("frame", b"small", "a", True)
            whole = b"x" * 20_000_000
            if kind == "one frame":
                peer.send_frame(2, whole)
            else:
                for start in range(0, len(whole), 10_000):
                    opcode, is_final = 0 if start else 2, start + 10_000 == len(whole)
                    peer.send_frame(opcode, whole[start : start + 10_000], is_final=is_final)
            await until(lambda: memory.used_bytes > 65_536)
            handler.link.set_reading(False)
            handler.link.set_reading(True)
            for _ in range(20):
                await asyncio.sleep(0)
            assert memory.used_bytes < 300_000
            assert peer.writer.transport.get_write_buffer_size() > 1_000_000
            handler.link.trust()
            await handler.wait("frame", whole, "a", False)

    run(scenario)


def test_reading_stops_and_goes_on(side):
    async def scenario() -> None:
        async with linked(side) as (handler, peer):
            handler.link.set_reading(False)
            handler.link.set_reading(False)
            peer.send_frame(1, b"later")
            await peer.writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)
            assert [each[0] for each in handler.told] == ["opened"]
            handler.link.set_reading(True)
            await handler.wait("frame", b"later", "a", True)

    run(scenario)


def test_a_peer_that_no_longer_answers_pings_is_dropped(side):
    async def scenario() -> None:
        async with linked(side, Limits(max_message_bytes=1000, ping_s=0.05)) as (handler, peer):
            assert await peer.receive_frame() == (9, b"")
            await handler.wait("closed", "a", 1006)

    run(scenario)
