"""The queue of one destination."""

from __future__ import annotations

import pytest

from dovetail.won.archive import MemoryArchive, RecentArchive
from dovetail.won.outbox import Outbox
from dovetail.won.settings import WonSettings

SETTINGS = WonSettings(window=2, max_queue=3, retry_ms=100, max_retry_ms=1000, response_timeout_ms=500)


@pytest.fixture
def box():
    box = Outbox("https://b.example/won/resource", SETTINGS)
    for uri in ("m1", "m2", "m3"):
        box.add(uri)
    return box


def take_all(box, now):
    return list(iter(lambda: box.take(now), None))


def test_nothing_leaves_before_the_link_is_open(box):
    assert box.take(0) is None
    assert box.is_full


def test_messages_leave_in_order_within_the_window(box):
    box.link = "l"
    box.opened()
    assert take_all(box, 0) == ["m1", "m2"]
    box.remove("m1")
    assert take_all(box, 0) == ["m3"]
    assert len(box) == 2


def test_large_messages_leave_one_after_the_other_was_answered():
    box = Outbox("https://b.example/won/resource", WonSettings(burst_bytes=5_000))
    for uri in ("m1", "m2", "m3"):
        box.add(uri)
    box.link = "l"
    box.opened()
    for uri in ("m1", "m2"):
        assert box.take(0) == uri
        box.note_size(uri, 3_000)
    assert box.take(0) is None
    box.remove("m1")
    assert box.take(0) == "m3"
    box.note_size("m3", 3_000)
    box.lost(0, 0.5)
    box.link = "l2"
    box.opened()
    assert take_all(box, 1) == ["m2", "m3"], "nothing is under way over a new link"


def test_broken_link_sends_everything_again_from_the_oldest(box):
    box.link = "l"
    box.opened()
    take_all(box, 0)
    box.remove("m1")
    box.lost(0, 0.5)
    box.link = "l2"
    box.opened()
    assert take_all(box, 1) == ["m2", "m3"]


def test_message_without_response_is_overdue_after_a_while(box):
    box.link = "l"
    box.opened()
    take_all(box, 0)
    assert box.next_timer() == 500_000
    assert box.take_overdue(499_999) == []
    assert box.take_overdue(500_000) == ["m1", "m2"]
    assert box.next_timer() == 1_000_000


def test_pause_doubles_up_to_its_bound_and_jitters(box):
    pauses = []
    for _ in range(6):
        box.lost(0, 1.0)
        pauses.append(box.retry_at)
    assert pauses == [100_000, 200_000, 400_000, 800_000, 1_000_000, 1_000_000]
    box.lost(0, 0.0)
    assert box.retry_at == 500_000


def test_empty_box_wants_no_timer():
    assert Outbox("https://b.example/won/resource", SETTINGS).next_timer() is None


def test_recent_archive_reads_older_messages_from_the_journal():
    stored = {bytes([n]) * 32: b"raw%d" % n for n in range(3)}
    archive = RecentArchive(stored.get, capacity=1, capacity_bytes=100)
    for address, raw in stored.items():
        archive.put(address, raw)
    assert all(archive.raw(address) == raw for address, raw in stored.items())
    assert archive.raw(b"x" * 32) is None


def test_recent_archive_keeps_only_so_many_bytes_and_always_the_newest():
    archive = RecentArchive(lambda _: None, capacity=100, capacity_bytes=10)
    addresses = [bytes([n]) * 32 for n in range(4)]
    for address in addresses[:3]:
        archive.put(address, b"1234")
        archive.put(address, b"1234")
    assert [archive.raw(address) for address in addresses] == [None, b"1234", b"1234", None]
    archive.put(addresses[3], b"x" * 20)
    assert [archive.raw(address) for address in addresses] == [None, None, None, b"x" * 20]


def test_memory_archive_keeps_everything():
    archive = MemoryArchive()
    archive.put(b"a" * 32, b"raw")
    assert archive.raw(b"a" * 32) == b"raw"
    assert archive.raw(b"b" * 32) is None
