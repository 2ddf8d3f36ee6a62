"""Group commit: many callers, two durabilities, bounds, checkpoints in the background."""

import asyncio
import logging
import queue
import shutil
import threading
import time

import apsw
import pytest

from dovetail.journal.database import connect_writer
from dovetail.journal.journal import MAX_GROUP_BYTES, Journal, JournalOptions
from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import Address, address_of
from dovetail.model.errors import JournalError, JournalFull, JournalLocked
from dovetail.model.hop import Observation, Stage
from journal.fault_vfs import Disk
from journal.worlds import SERVER, SIGNER, observe, open_writer


def open_journal(path, **options):
    return Journal.open(path, server=SERVER, signer=SIGNER, options=JournalOptions(**options))


def commits_of(path):
    with JournalReader.open(path) as reader:
        return reader.one("SELECT count(*) FROM commits")[0]


def test_append_returns_when_the_hops_can_be_read_by_others(tmp_path):
    with open_journal(tmp_path / "a.journal") as journal:
        assert journal.append([observe(b"1"), observe(b"2")]) == 2
        with JournalReader.open(journal.path) as reader:
            assert [hop.raw for hop in reader.hops()] == [b"1", b"2"]
        assert [hop.raw for hop in journal.hops_of(address_of(b"2"))] == [b"2"]
        assert journal.raw(address_of(b"1")) == b"1"


def test_many_threads_share_commits_and_nothing_is_lost_or_doubled(tmp_path):
    def work(number):
        for i in range(50):
            journal.append([observe(b"%d %d" % (number, i))])

    with open_journal(tmp_path / "a.journal") as journal:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert journal.size == 400
        found = [hop.raw for hop in journal.hops()]
    assert sorted(found) == sorted(b"%d %d" % (n, i) for n in range(8) for i in range(50))
    for number in range(8):
        own = [raw for raw in found if raw.startswith(b"%d " % number)]
        assert own == [b"%d %d" % (number, i) for i in range(50)], "a caller's own order was not kept"
    assert commits_of(tmp_path / "a.journal") < 400
    assert verify_journal(tmp_path / "a.journal").is_intact


def write_soon(journal, observations):
    """Append without waiting."""
    journal.commit(observations, lambda _: None)


async def committed(journal, observations):
    """Commit as a server does; raises the error."""
    done = asyncio.get_running_loop().create_future()
    tell = done.get_loop().call_soon_threadsafe
    journal.commit(observations, lambda error: tell(done.set_result, error))
    if (error := await done) is not None:
        raise error


def test_tasks_of_an_event_loop_share_commits_and_the_loop_is_not_blocked(tmp_path):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(committed(journal, [observe(b"%d" % i)]) for i in range(500)))
        ticking.cancel()
        return ticks

    with open_journal(tmp_path / "a.journal") as journal:
        ticks = asyncio.run(main())
        assert journal.size == 500
    assert ticks > 3
    assert commits_of(tmp_path / "a.journal") <= 50


def test_one_callers_impossible_observation_fails_alone(tmp_path):
    bad = Observation(at_us=1, stage=Stage.ACCEPTED, message=Address(b"short"))

    async def main():
        return await asyncio.gather(
            committed(journal, [observe(b"1")]),
            committed(journal, [bad]),
            committed(journal, [observe(b"2")]),
            return_exceptions=True,
        )

    with open_journal(tmp_path / "a.journal") as journal:
        results = asyncio.run(main())
        assert isinstance(results[1], JournalError)
        assert not any(isinstance(result, Exception) for result in (results[0], results[2]))
        assert [hop.raw for hop in journal.hops()] == [b"1", b"2"]


def test_relaxed_writes_gather_into_few_commits_and_flush_makes_them_durable(tmp_path):
    with open_journal(tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=50) as journal:
        for i in range(1000):
            write_soon(journal, [observe(b"%d" % i)])
        assert journal.flush() == 1000
        assert journal.queue_bytes == 0
    assert commits_of(tmp_path / "a.journal") < 50
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_relaxed_writes_are_committed_without_anybody_waiting(tmp_path):
    with open_journal(tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=5) as journal:
        write_soon(journal, [observe(b"1")])
        deadline = time.monotonic() + 60
        while journal.size == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert journal.size == 1


def stalled(path, monkey_pages=4, **options):
    """A journal whose disk is full, and a way to free space."""
    connections = []

    def connect(file):
        connections.append(connect_writer(file))
        return connections[-1]

    writer = open_writer(path, connect=connect)
    pages = connections[0].execute("PRAGMA page_count").fetchone()[0]
    connections[0].execute(f"PRAGMA max_page_count = {pages}").fetchone()
    journal = Journal(writer, JournalOptions(checkpoint_interval_s=3600, **options))
    return journal, lambda: journal.call(lambda _: connections[0].execute("PRAGMA max_page_count = 100000").fetchone())


def test_a_full_disk_fails_those_who_wait_and_goes_on_when_there_is_room(tmp_path):
    journal, make_room = stalled(tmp_path / "a.journal")
    with journal:
        with pytest.raises(JournalFull):
            journal.append([observe(b"x" * 100_000)])
        assert journal.size == 0
        make_room()
        assert journal.append([observe(b"x" * 100_000)]) == 1


@pytest.mark.exhaustive
def test_what_nobody_waits_for_is_kept_over_a_full_disk(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    journal, make_room = stalled(tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=1)
    with journal:
        write_soon(journal, [observe(b"x" * 100_000)])
        time.sleep(0.05)
        assert journal.size == 0
        make_room()
        deadline = time.monotonic() + 60
        while journal.size == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [hop.size for hop in journal.hops()] == [100_000]


def test_the_queue_is_bounded(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    journal, make_room = stalled(
        tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=1, max_queue_bytes=250_000
    )
    with journal:
        told = []
        for i in range(3):
            journal.commit([observe(b"%d" % i * 100_000)], told.append)
        assert told == [None, None], "the third is told when there is room"
        make_room()
        journal.flush()
        assert told == [None, None, None]


def test_a_rush_is_committed_in_groups_of_bounded_size(tmp_path):
    message_bytes = MAX_GROUP_BYTES // 10
    with open_journal(tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=2000) as journal:
        for i in range(50):
            write_soon(journal, [observe(b"%02d" % i * (message_bytes // 2))])
        assert journal.flush() == 50, "flush waits for all that was queued before it, however many groups it is"
        groups = [commit.body_bytes for commit in journal.reader.commit_rows()]
        assert [hop.raw[:2] for hop in journal.hops()] == [b"%02d" % i for i in range(50)]
    assert len(groups) >= 5
    assert max(groups) <= MAX_GROUP_BYTES


@pytest.mark.exhaustive
def test_a_job_does_not_wait_for_room_on_the_disk(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    journal, make_room = stalled(tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=1)
    with journal:
        for i in range(30):
            write_soon(journal, [observe(b"%02d" % i * (MAX_GROUP_BYTES // 20))])
        with pytest.raises(JournalFull, match="bytes wait for it"):
            journal.flush()
        make_room()
        deadline = time.monotonic() + 60
        while journal.size < 30 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [hop.raw[:2] for hop in journal.hops()] == [b"%02d" % i for i in range(30)]


# -- commit: the call of drivers


class Told(queue.Queue):
    """Callbacks in order; `next` waits for one."""

    def next(self):
        return self.get(timeout=30)


def test_commit_tells_when_the_hops_can_be_read_by_others(tmp_path):
    told = Told()
    with open_journal(tmp_path / "a.journal") as journal:
        for text in (b"1", b"2"):
            journal.commit([observe(text)], lambda error: told.put((error, threading.get_ident(), journal.size)))
        first, second = told.next(), told.next()
        assert (first[0], second[0]) == (None, None)
        assert threading.get_ident() not in (first[1], second[1]), "the writer's thread tells"
        assert second[2] == 2
        assert [hop.raw for hop in journal.hops()] == [b"1", b"2"]


def test_relaxed_commit_tells_at_once_while_there_is_room(tmp_path):
    told = []
    with open_journal(tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=2000) as journal:
        journal.commit([observe(b"1")], told.append)
        assert told == [None]
        assert journal.size == 0
        assert journal.flush() == 1


def test_relaxed_commit_at_the_queues_bound_tells_when_it_is_written(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    journal, make_room = stalled(
        tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=1, max_queue_bytes=250_000
    )
    told = Told()
    with journal:
        for number in range(4):
            journal.commit([observe(b"%d" % number * 100_000)], lambda error, n=number: told.put((n, error)))
        assert [told.get_nowait(), told.get_nowait()] == [(0, None), (1, None)]
        assert told.empty()
        make_room()
        assert {told.next(), told.next()} == {(2, None), (3, None)}
        assert [hop.raw[:1] for hop in journal.hops()] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_commit_waits_for_a_full_disk_and_says_so_once_at_each_end(tmp_path, caplog, monkeypatch, durability):
    monkeypatch.setattr("dovetail.journal.journal._RETRY_S", 0.01)
    journal, make_room = stalled(tmp_path / "a.journal", durability=durability, relaxed_flush_ms=1)
    told, tries = Told(), Told()
    commit = JournalWriter.commit
    monkeypatch.setattr(JournalWriter, "commit", lambda self, batch: (tries.put(1), commit(self, batch))[1])
    with journal:
        assert journal.stalled is None
        journal.commit([observe(b"x" * 100_000)], told.put)
        for _ in range(3):
            tries.next()
        assert isinstance(journal.stalled, JournalFull)
        assert told.empty() == (durability == "full")
        make_room()
        assert told.next() is None
        journal.flush()
        assert journal.stalled is None
        assert [hop.size for hop in journal.hops()] == [100_000]
        assert journal.wait_times.sum_s > journal.commit_times.sum_s, "what was tried in vain was waited for too"
    assert [(record.levelname, record.getMessage().partition(": ")[2][:8]) for record in caplog.records] == [
        ("WARNING", "waiting "),
        ("WARNING", "writing "),
    ]


def test_commit_waits_while_another_process_holds_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.journal.journal._RETRY_S", 0.01)
    told, tries = Told(), Told()
    with open_journal(tmp_path / "a.journal", checkpoint_interval_s=3600) as journal:
        journal.call(lambda writer: writer._connection.execute("PRAGMA busy_timeout = 0").fetchone())
        commit = JournalWriter.commit
        monkeypatch.setattr(JournalWriter, "commit", lambda self, batch: (tries.put(1), commit(self, batch))[1])
        other = connect_writer(journal.path)
        other.execute("BEGIN IMMEDIATE")
        journal.commit([observe(b"1")], told.put)
        for _ in range(3):
            tries.next()
        assert isinstance(journal.stalled, JournalLocked)
        other.execute("ROLLBACK")
        other.close()
        assert told.next() is None
        assert journal.size == 1


def test_closing_on_a_full_disk_tells_who_waits(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)
    told = Told()
    journal, _ = stalled(tmp_path / "a.journal")
    journal.commit([observe(b"x" * 100_000)], told.put)
    journal.close()
    assert isinstance(told.next(), JournalFull)
    journal.commit([observe(b"1")], told.put)
    assert "is closed" in str(told.next())


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_failure_of_the_disk_is_told_once_and_to_all_who_wait(tmp_path, caplog, durability):
    caplog.set_level(logging.CRITICAL)
    disk = Disk()
    disk.failure = apsw.SQLITE_IOERR_WRITE
    writer = open_writer(tmp_path / "a.journal", connect=disk.connect)
    journal = Journal(writer, JournalOptions(durability=durability, relaxed_flush_ms=1, checkpoint_interval_s=3600))
    failed, told = Told(), Told()
    journal.on_failure = failed.put
    with journal:
        disk.fail_at = len(disk.log)
        journal.commit([observe(b"lost")], told.put)
        error = failed.next()
        assert isinstance(error, JournalError)
        assert told.next() is (error if durability == "full" else None)
        journal.commit([observe(b"refused")], told.put)
        assert told.next() is error
    assert failed.empty()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_file_that_is_removed_or_replaced_ends_the_journal(tmp_path, caplog, monkeypatch, how):
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr("dovetail.journal.checkpointer.WATCH_S", 0.01)
    path = tmp_path / "a.journal"
    failed, told = Told(), Told()
    with open_journal(path, checkpoint_interval_s=3600) as journal:
        journal.on_failure = failed.put
        journal.append([observe(b"1")])
        if how == "removed":
            path.unlink()
        else:
            shutil.copy(path, tmp_path / "other")
            (tmp_path / "other").replace(path)
        error = failed.next()
        assert str(error) == f"{path} was removed or replaced while it was being written"
        journal.commit([observe(b"2")], told.put)
        assert told.next() is error


def test_after_a_failure_of_the_disk_everybody_is_refused_and_the_loss_is_told_once(tmp_path, caplog):
    disk = Disk()
    disk.failure = apsw.SQLITE_IOERR_WRITE
    writer = open_writer(tmp_path / "a.journal", connect=disk.connect)
    journal = Journal(writer, JournalOptions(durability="relaxed", relaxed_flush_ms=1, checkpoint_interval_s=3600))
    with journal:
        assert journal.append([observe(b"kept")]) == 1
        disk.fail_at = len(disk.log)
        write_soon(journal, [observe(b"lost")])
        deadline = time.monotonic() + 60
        while writer.broken is None and time.monotonic() < deadline:
            time.sleep(0.01)
        told = []
        journal.commit([observe(b"refused")], told.append)
        assert told == [writer.broken]
        with pytest.raises(JournalError, match=r"a\.journal"):
            journal.append([observe(b"refused")])
    assert len([record for record in caplog.records if "1 appends not written" in record.getMessage()]) == 1
    with open_journal(tmp_path / "a.journal") as journal:
        assert [hop.raw for hop in journal.hops()][:1] == [b"kept"]


def test_what_was_queued_while_the_disk_failed_is_told_with_the_rest(tmp_path, caplog, monkeypatch):
    disk = Disk()
    disk.failure = apsw.SQLITE_IOERR_WRITE
    writer = open_writer(tmp_path / "a.journal", connect=disk.connect)
    journal = Journal(writer, JournalOptions(durability="relaxed", relaxed_flush_ms=1, checkpoint_interval_s=3600))
    commit, began, may_fail, errors = JournalWriter.commit, threading.Event(), threading.Event(), []

    def commit_later(self, observations):
        began.set()
        assert may_fail.wait(60)
        return commit(self, observations)

    def wait():
        with pytest.raises(JournalError) as caught:
            journal.append([observe(b"waits for it")])
        errors.append(caught.value)

    late = threading.Thread(target=wait)
    with journal:
        assert journal.append([observe(b"kept")]) == 1
        monkeypatch.setattr(JournalWriter, "commit", commit_later)
        disk.fail_at = len(disk.log)
        write_soon(journal, [observe(b"lost")])
        assert began.wait(60)
        write_soon(journal, [observe(b"meanwhile")])
        late.start()
        may_fail.set()
        late.join(60)
    assert errors == [writer.broken]
    told = [record.getMessage() for record in caplog.records if "appends not written" in record.getMessage()]
    assert len(told) == 1
    assert "2 appends not written" in told[0]


def test_closing_on_a_full_disk_ends_and_says_what_was_not_written(tmp_path, caplog):
    journal, _ = stalled(tmp_path / "a.journal", durability="relaxed", relaxed_flush_ms=1)
    for i in range(30):
        write_soon(journal, [observe(b"%02d" % i * (MAX_GROUP_BYTES // 20))])
    journal.close()
    told = [record.args[1] for record in caplog.records if "could not be written at closing" in record.msg]
    assert sum(told) == 30


def test_a_single_append_larger_than_the_bound_still_passes(tmp_path):
    with open_journal(tmp_path / "a.journal", max_queue_bytes=1000) as journal:
        assert journal.append([observe(b"x" * 100_000)]) == 1


def test_appends_wait_for_room_in_the_queue(tmp_path):
    with open_journal(tmp_path / "a.journal", max_queue_bytes=2000) as journal:
        threads = [
            threading.Thread(target=lambda n=n: [journal.append([observe(b"%d %d" % (n, i) * 100)]) for i in range(20)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert journal.size == 80


def test_checkpoints_come_by_themselves_and_at_closing(tmp_path):
    with open_journal(tmp_path / "a.journal", checkpoint_interval_s=0.02) as journal:
        journal.append([observe(b"%d" % i) for i in range(600)])
        deadline = time.monotonic() + 60
        while journal.reader.latest_checkpoint() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert journal.reader.latest_checkpoint().size == 600
        journal.append([observe(b"more")])
        assert journal.checkpoint().size == 601
        journal.append([observe(b"and more")])
    verdict = verify_journal(tmp_path / "a.journal")
    assert verdict.is_intact
    assert verdict.committed == verdict.hops == 602


def test_a_reopened_journal_goes_on_where_it_was(tmp_path):
    for round_ in range(3):
        with open_journal(tmp_path / "a.journal", checkpoint_interval_s=0.01) as journal:
            journal.append([observe(b"%d %d" % (round_, i)) for i in range(300)])
            assert journal.size == 300 * (round_ + 1)
            journal.checkpoint()
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_a_closed_journal_refuses(tmp_path):
    journal = open_journal(tmp_path / "a.journal")
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.append([observe(b"1")])
    told = []
    journal.commit([observe(b"1")], told.append)
    assert "closed" in str(told[0])
    with pytest.raises(JournalError, match="closed"):
        journal.flush()


def test_a_checkpoint_reads_no_hop_back(tmp_path, monkeypatch):
    with open_journal(tmp_path / "a.journal", checkpoint_interval_s=3600) as journal:
        for number in range(3):
            journal.append([observe(b"%d %d" % (number, i)) for i in range(700)])
        monkeypatch.setattr("dovetail.journal.reader.JournalReader.commit_rows", None)
        assert journal.checkpoint().size == 2100
    monkeypatch.undo()
    assert verify_journal(tmp_path / "a.journal").committed == 2100
