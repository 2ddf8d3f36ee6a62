"""Power cuts after every write and fsync, and errors at every one of them."""

import random

import apsw
import pytest

from dovetail.journal import high_water
from dovetail.journal.catalogue import Limits
from dovetail.journal.high_water import MarkFile, mark_path
from dovetail.journal.purge import purge_step
from dovetail.journal.verify import verify_journal
from dovetail.model.errors import JournalError, JournalFull
from journal.fault_vfs import Disk
from journal.worlds import START_US, Model, open_writer, random_observations

pytestmark = pytest.mark.exhaustive

LIMITS = Limits(messages_kept=8, names_kept=8, index_after_messages=10, index_after_runs=40)


def workload(journal, model, acknowledged, disk):
    """Some of everything a journal does; records after how many disk operations each hop was acknowledged."""
    rng = random.Random(7)
    for step in range(8):
        batch = random_observations(rng, START_US + step * 10**6, 4)
        journal.append(batch)
        model.append(batch)
        acknowledged.append((len(disk.log), len(model.hops)))
        if step % 3 == 2:
            journal.checkpoint()
        if step == 5:
            journal.index()
            purge_step(journal, now_us=START_US + 10**10)


class Recording:
    """A workload on a disk that records every write and fsync, to the database and to the high-water mark."""

    def __init__(self, folder, durability):
        self.disk, self.acknowledged, self.signed = Disk(), [], []
        model = Model()
        path = folder / "a.journal"
        with pytest.MonkeyPatch.context() as patch:
            self._record_mark(patch, mark_path(path).name)
            journal = open_writer(path, connect=self.disk.connect, limits=LIMITS, durability=durability)
            sign = journal.checkpoint

            def checkpoint():
                signed = sign()
                self.signed.append((len(self.disk.log), signed.size))

            patch.setattr(journal, "checkpoint", checkpoint)
            workload(journal, model, self.acknowledged, self.disk)
            self.hops = list(journal.hops())
            journal.sync()
            journal.close()

    def _record_mark(self, patch, name):
        write, sync = MarkFile._write, MarkFile._sync

        def recorded_write(mark, data, offset):
            self.disk.record("write", name, offset, data)
            write(mark, data, offset)

        def recorded_sync(mark):
            self.disk.record("sync", name)
            sync(mark)

        patch.setattr(MarkFile, "_write", recorded_write)
        patch.setattr(MarkFile, "_sync", recorded_sync)

    def stage(self, folder, count, keep, rng):
        """The disk after a power cut at operation `count`; returns the journal's path."""
        folder.mkdir()
        for name, content in self.disk.disk_after(count, keep, rng).items():
            (folder / name).write_bytes(content)
        return folder / "a.journal"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return Recording(tmp_path_factory.mktemp("disk"), "full")


@pytest.fixture(scope="module")
def relaxed(tmp_path_factory):
    return Recording(tmp_path_factory.mktemp("disk"), "relaxed")


@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_a_power_cut_after_any_operation_loses_and_doubles_nothing(recorded, tmp_path, keep):
    rng = random.Random(keep)
    assert len(recorded.disk.log) > 100
    for count in range(len(recorded.disk.log) + 1):
        path = recorded.stage(tmp_path / str(count), count, keep, rng)
        promised = max((size for done, size in recorded.acknowledged if done <= count), default=0)
        check_journal(path, recorded.hops, promised, rng)


@pytest.mark.parametrize("keep", ["none", "some", "all"])
def test_with_relaxed_durability_a_power_cut_loses_nothing_signed(relaxed, tmp_path, monkeypatch, keep):
    rng = random.Random(keep)
    monkeypatch.setattr(high_water, "boot_id", lambda: b"after power cut.")
    for count in range(len(relaxed.disk.log) + 1):
        path = relaxed.stage(tmp_path / str(count), count, keep, rng)
        promised = max((size for done, size in relaxed.signed if done <= count), default=0)
        check_journal(path, relaxed.hops, promised, rng)


def check_journal(path, hops, promised, rng):
    """Check that it has at least what was promised, can be continued, and is intact."""
    with open_writer(path) as journal:
        found = list(journal.hops())
        assert len(found) >= promised, f"{promised - len(found)} acknowledged hops lost in {path}"
        assert [_fields(hop) for hop in found] == [_fields(hop) for hop in hops[: len(found)]]
        journal.append(random_observations(rng, START_US, 2))
        journal.checkpoint()
    assert verify_journal(path).findings == [], path


def _fields(hop):
    # an operation after the cut may have purged bytes
    return hop.seq, hop.at_us, hop.stage, hop.message, hop.counterpart, hop.reason, hop.size


def test_no_room_at_any_write_acknowledges_nothing_and_can_be_repeated(tmp_path):
    for fail_at in range(20, 200, 3):
        disk, model = Disk(), Model()
        with open_writer(tmp_path / f"{fail_at}.journal", connect=disk.connect, limits=LIMITS) as journal:
            if len(disk.log) > fail_at:
                continue
            disk.fail_at = fail_at
            rng = random.Random(fail_at)
            for step in range(6):
                batch = random_observations(rng, START_US + step * 10**6, 4)
                for action in (lambda batch=batch: journal.append(batch), journal.checkpoint, journal.index):
                    try:
                        action()
                    except JournalFull:
                        if journal.size == len(model.hops):
                            action()
                    if journal.size != len(model.hops):
                        model.append(batch)
            assert list(journal.hops()) == model.hops
            journal.checkpoint()
        assert verify_journal(tmp_path / f"{fail_at}.journal").findings == []


def test_a_disk_that_fails_ends_the_writer_and_reopening_finds_what_was_acknowledged(tmp_path):
    broken = 0
    for fail_at in range(25, 90, 2):
        disk, model = Disk(), Model()
        disk.failure = apsw.SQLITE_IOERR_FSYNC
        path = tmp_path / f"{fail_at}.journal"
        journal = open_writer(path, connect=disk.connect, limits=LIMITS)
        disk.fail_at = max(fail_at, len(disk.log))
        rng = random.Random(fail_at)
        for step in range(8):
            batch = random_observations(rng, START_US + step * 10**6, 4)
            was_broken = journal.broken is not None
            try:
                journal.append(batch)
                model.append(batch)
                assert not was_broken, "a writer went on after the disk had failed"
            except JournalError:
                assert journal.broken is not None
        broken += journal.broken is not None
        journal.close()
        with open_writer(path) as reopened:
            found = list(reopened.hops())
            assert found[: len(model.hops)] == model.hops
            reopened.checkpoint()
        assert verify_journal(path).findings == []
    assert broken > 10
