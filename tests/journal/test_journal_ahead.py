"""The next group is encoded while the disk is busy with this one: whatever becomes of this one, nothing is mixed up."""

from __future__ import annotations

import random
import sqlite3
import threading
import time

import pytest

from dovetail.errors import JournalError, JournalFull
from dovetail.hop import Observation, Stage
from dovetail.journal.catalogue import Limits
from dovetail.journal.database import IS_SHARED, connect_writer
from dovetail.journal.journal import Journal, JournalOptions
from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from journal.worlds import START_US, Model, observe, open_writer, random_observations

FULL = sqlite3.OperationalError("database or disk is full")
FULL.sqlite_errorcode = sqlite3.SQLITE_FULL
BROKEN = sqlite3.OperationalError("disk I/O error")
BROKEN.sqlite_errorcode = sqlite3.SQLITE_IOERR

pytestmark = pytest.mark.skipif(not IS_SHARED, reason="this SQLite is not made for connections shared by threads")


class SlowDisk:
    """A connection whose commits wait until they are let go, and fail if they are told to."""

    def __init__(self, path):
        self._connection = connect_writer(path)
        self.is_held = False
        self.began, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.errors = []

    def execute(self, sql, *parameters):
        if sql == "COMMIT" and self.is_held:
            self.began.release()
            assert self.go.acquire(timeout=20)
            if self.errors and (error := self.errors.pop(0)):
                raise error
        return self._connection.execute(sql, *parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.fixture
def held(tmp_path):
    """A journal with one hop, and its disk, which holds back every commit from now on."""
    disks = []

    def connect(path):
        disks.append(SlowDisk(path))
        return disks[-1]

    writer = open_writer(tmp_path / "a.journal", connect=connect)
    # no checkpoint comes between
    journal = Journal(writer, JournalOptions(checkpoint_interval_s=3600))
    journal.append([observe(b"before")])
    disks[0].is_held = True
    yield journal, disks[0]
    disks[0].is_held = False
    disks[0].go.release(100)
    journal.close()


class Caller(threading.Thread):
    """Appends once; `result` is the size or the error."""

    def __init__(self, journal, observations):
        super().__init__()
        self.journal, self.observations, self.result = journal, observations, None
        self.start()

    def run(self):
        try:
            self.result = self.journal.append(self.observations)
        except JournalError as error:
            self.result = error

    def wait(self):
        self.join(20)
        return self.result


def queue(journal, observations):
    """A caller whose append has arrived."""
    before = journal.queue_bytes
    caller = Caller(journal, observations)
    while journal.queue_bytes == before:
        time.sleep(0.001)
    return caller


def read(path):
    with JournalReader.open(path) as reader:
        return [(hop.raw, hop.stage, hop.counterpart) for hop in reader.hops()]


NEW = [observe(b"new", Stage.ACCEPTED, "pcp://a/new")]
AGAIN = [observe(b"new", Stage.DELIVERED, "pcp://a/new", "pcp://a/other", raw=None)]
BODY = [observe(b"later", Stage.FORWARDED, "pcp://a/other", raw=None)]


def chained(journal, disk):
    """A group is on its way to the disk, with the next one encoded behind it already; the callers of both."""
    first = Caller(journal, [observe(b"first")])
    assert disk.began.acquire(timeout=20)
    # both wait when the first one is done; together they are too large for one group
    second = queue(journal, [*NEW, observe(bytes(900_000))])
    third = queue(journal, [*AGAIN, *BODY, observe(bytes(900_001))])
    disk.go.release()
    assert first.wait() == 2
    assert disk.began.acquire(timeout=20)
    return second, third


def test_a_group_refers_to_what_the_one_on_its_way_brings(held):
    journal, disk = held
    second, third = chained(journal, disk)
    disk.is_held = False
    disk.go.release()
    assert (second.wait(), third.wait()) == (4, 8)
    assert journal.append([observe(b"later", Stage.ACCEPTED, "pcp://a/new")]) == 9
    journal.close()
    large = (Stage.ACCEPTED, None)
    assert [hop[1:] if len(hop[0] or b"") > 900 else hop for hop in read(journal.path)[2:]] == [
        (b"new", Stage.ACCEPTED, "pcp://a/new"),
        large,
        (None, Stage.DELIVERED, "pcp://a/new"),
        (None, Stage.DELIVERED, "pcp://a/other"),
        (None, Stage.FORWARDED, "pcp://a/other"),
        large,
        (b"later", Stage.ACCEPTED, "pcp://a/new"),
    ]
    assert verify_journal(journal.path).is_intact


def test_the_next_group_waits_for_nothing_but_its_turn(held, monkeypatch):
    journal, disk = held
    encoded = threading.Event()
    encode = journal._writer.encode

    def note(observations, after=None):
        made = encode(observations, after)
        if after is not None:
            encoded.set()
        return made

    monkeypatch.setattr(journal._writer, "encode", note)
    second, third = chained(journal, disk)
    assert encoded.wait(20), "it was encoded before the one before it was durable"
    assert journal.size == 2, "and nothing counts before it is durable"
    disk.go.release(2)
    assert (second.wait(), third.wait()) == (4, 8)


def test_a_full_disk_fails_one_group_and_the_next_is_encoded_anew(held):
    journal, disk = held
    disk.errors = [None, FULL]
    second, third = chained(journal, disk)
    disk.go.release(2)
    assert isinstance(second.wait(), JournalFull)
    assert third.wait() == 6
    disk.is_held = False
    assert journal.append(NEW) == 7
    journal.close()
    assert [(counterpart, len(raw or b"")) for raw, _, counterpart in read(journal.path)[2:]] == [
        ("pcp://a/new", 0),
        ("pcp://a/other", 0),
        ("pcp://a/other", 0),
        (None, 900_001),
        ("pcp://a/new", 3),
    ]
    assert verify_journal(journal.path).is_intact


def test_a_broken_disk_fails_both_groups(held):
    journal, disk = held
    disk.errors = [None, BROKEN]
    second, third = chained(journal, disk)
    disk.go.release(2)
    assert isinstance(second.wait(), JournalError)
    assert isinstance(third.wait(), JournalError)
    assert journal.failure is not None
    assert [raw for raw, _, _ in read(journal.path)] == [b"before", b"first"]


def test_what_nobody_waits_for_stays_before_what_came_after_it(held):
    journal, disk = held
    disk.errors = [None, FULL]
    first = Caller(journal, [observe(b"first")])
    assert disk.began.acquire(timeout=20)
    journal.write([observe(bytes(900_000))])
    journal.write([observe(bytes(900_001))])
    disk.go.release()
    assert first.wait() == 2
    assert disk.began.acquire(timeout=20)
    disk.is_held = False
    disk.go.release()
    assert journal.flush() == 4
    assert [len(raw) for raw, _, _ in read(journal.path)[2:]] == [900_000, 900_001]


def test_one_bad_append_fails_alone(held):
    journal, disk = held
    first = Caller(journal, [observe(b"first")])
    assert disk.began.acquire(timeout=20)
    second = queue(journal, [observe(bytes(900_000))])
    bad = queue(journal, [Observation(at_us=START_US, stage=Stage.ACCEPTED, message=b"short", raw=bytes(900_000))])
    disk.is_held = False
    disk.go.release()
    assert first.wait() == 2
    assert second.wait() == 3
    assert "an address has 32 bytes" in str(bad.wait())
    assert journal.queue_bytes == 0


@pytest.mark.parametrize("seed", range(4))
def test_under_a_disk_that_is_full_now_and_then_exactly_the_acknowledged_hops_are_there(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)

    class Unreliable(SlowDisk):
        def execute(self, sql, *parameters):
            if sql == "COMMIT" and self.is_held and rng.random() < 0.2:
                raise FULL
            return self._connection.execute(sql, *parameters)

    disks = []

    def connect(path):
        disks.append(Unreliable(path))
        return disks[-1]

    writer = open_writer(tmp_path / "a.journal", connect=connect, limits=Limits(index_after_messages=64))
    journal = Journal(writer, JournalOptions(checkpoint_interval_s=3600))
    contents, accepted, behind = {}, [], []
    encode, accept = writer.encode, writer.accept

    def note_encoded(observations, after=None):
        batch = encode(observations, after)
        contents[id(batch)] = batch, observations
        behind.append(after is not None)
        return batch

    def note_accepted(batch):
        accept(batch)
        accepted.extend(contents[id(batch)][1])

    monkeypatch.setattr(writer, "encode", note_encoded)
    monkeypatch.setattr(writer, "accept", note_accepted)
    disks[0].is_held = True
    acknowledged, refused = [], []

    def work(number):
        own = random.Random(seed * 100 + number)
        for _ in range(30):
            observations = random_observations(own, START_US, own.randrange(1, 12))
            try:
                journal.append(observations)
            except JournalFull:
                refused.extend(observations)
            else:
                acknowledged.extend(observations)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    disks[0].is_held = False
    journal.close()
    assert refused
    assert any(behind), "no group was ever encoded behind another"
    assert sorted(map(id, accepted)) == sorted(map(id, acknowledged))
    model = Model()
    model.append(accepted)
    with JournalReader.open(journal.path) as reader:
        assert list(reader.hops()) == model.hops
    assert verify_journal(journal.path).is_intact
