"""Journals that lost their end, or are old copies: each keeps all acknowledged hops, or is refused and named."""

import random
import shutil
import sqlite3

import pytest

from dovetail.journal import high_water
from dovetail.journal.continuity import Known
from dovetail.journal.high_water import SLOT_BYTES, MarkFile, mark_path, read_mark
from dovetail.journal.journal import Journal
from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.errors import JournalDamaged, JournalError, JournalRolledBack
from dovetail.tlog.keys import Signer
from journal.worlds import SERVER, SIGNER, START_US, observe, open_writer, random_observations

FILES = ("", "-wal", ".mark")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What a killed server leaves: the database, SQLite's log with signed and acknowledged hops, the mark."""
    folder = tmp_path_factory.mktemp("killed")
    rng = random.Random(5)
    with open_writer(tmp_path_factory.mktemp("live") / "a.journal") as journal:
        for step in range(12):
            journal.append(random_observations(rng, START_US + step * 10**6, 6))
            if step % 4 == 3:
                journal.checkpoint()
            if step == 4:
                journal.index()
        for suffix in FILES:
            shutil.copy(f"{journal.path}{suffix}", folder / f"a.journal{suffix}")
        hops = list(journal.hops())
    return folder, hops


def copy(killed, folder):
    shutil.copytree(killed[0], folder)
    return folder / "a.journal"


def outcome(path, hops):
    """`whole` if all acknowledged hops are there and the server continues, else `refused`; anything else fails."""
    try:
        findings = verify_journal(path).findings
    except JournalError as error:
        findings = [error]
    wal = path.with_name("a.journal-wal").read_bytes()
    try:
        with open_writer(path) as journal:
            assert list(journal.hops()) == hops
            journal.append([observe(b"next")])
            journal.checkpoint()
    except JournalError:
        assert findings, "a server is refused, and verify says intact"
        assert path.with_name("a.journal-wal").read_bytes() == wal, "what was cut off was thrown away"
        with pytest.raises(JournalError):
            Journal.open(path, server=SERVER, signer=SIGNER)
        with pytest.raises(JournalError):
            seal_journal(path, LocalStore(path.parent / "lake"))
        return "refused"
    assert not findings
    assert verify_journal(path).is_intact
    return "whole"


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.soak)])
def test_a_flipped_bit_in_the_log_loses_nothing_unnoticed(killed, tmp_path, count):
    rng = random.Random(count)
    outcomes = []
    for number in range(count):
        path = copy(killed, tmp_path / str(number))
        wal = bytearray(path.with_name("a.journal-wal").read_bytes())
        wal[rng.randrange(len(wal))] ^= 1 << rng.randrange(8)
        path.with_name("a.journal-wal").write_bytes(wal)
        outcomes.append(outcome(path, killed[1]))
    assert outcomes.count("refused") > count // 2


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.soak)])
def test_a_log_that_was_cut_loses_nothing_unnoticed(killed, tmp_path, count):
    rng = random.Random(count)
    outcomes = []
    for number in range(count):
        path = copy(killed, tmp_path / str(number))
        wal = path.with_name("a.journal-wal").read_bytes()
        path.with_name("a.journal-wal").write_bytes(wal[: rng.randrange(len(wal))])
        outcomes.append(outcome(path, killed[1]))
    assert outcomes.count("refused") > count // 2


def test_an_untouched_log_is_recovered_whole(killed, tmp_path):
    assert outcome(copy(killed, tmp_path / "a"), killed[1]) == "whole"


def test_a_torn_mark_is_passed_over_and_a_lost_one_refused(killed, tmp_path):
    for number, slots in enumerate(([0], [0, 1], [0, 2], [0, 1, 2])):
        path = copy(killed, tmp_path / str(number))
        mark = bytearray(mark_path(path).read_bytes())
        for slot in slots:
            mark[slot * SLOT_BYTES + 40] ^= 1
        mark_path(path).write_bytes(mark)
        assert outcome(path, killed[1]) == ("whole" if len(slots) < 3 else "refused")


def test_a_copy_without_its_mark_is_read_but_not_written(killed, tmp_path):
    path = copy(killed, tmp_path / "copy")
    mark_path(path).unlink()
    assert verify_journal(path).is_intact
    with pytest.raises(JournalRolledBack, match="comes without its high-water mark"):
        open_writer(path)


def test_a_journal_of_an_earlier_version_gets_a_mark(tmp_path):
    path = tmp_path / "a.journal"
    with open_writer(path) as journal:
        journal.append([observe(b"old")])
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM identity WHERE name = 'high_water'")
    connection.close()
    mark_path(path).unlink()
    with open_writer(path):
        pass
    assert read_mark(path, SIGNER.verifier).size == 1
    mark_path(path).unlink()
    with pytest.raises(JournalRolledBack):
        open_writer(path)


def test_a_server_does_not_begin_anew_where_its_journal_is_gone(killed, tmp_path):
    path = copy(killed, tmp_path / "copy")
    for suffix in ("", "-wal"):
        path.with_name(f"a.journal{suffix}").unlink()
    with pytest.raises(JournalRolledBack, match=f"is gone or empty, and had {len(killed[1])} hops"):
        open_writer(path)
    assert not path.exists()


def test_another_history_of_the_same_length_is_refused(tmp_path):
    for name, text in (("a", b"one"), ("b", b"other")):
        with open_writer(tmp_path / f"{name}.journal") as journal:
            journal.append([observe(text)])
            journal.checkpoint()
    shutil.copy(tmp_path / "a.journal", tmp_path / "b.journal")
    with pytest.raises(JournalRolledBack, match="has other hops among its first 1"):
        open_writer(tmp_path / "b.journal")
    assert not verify_journal(tmp_path / "b.journal").is_intact


def test_what_others_know_counts_where_the_mark_was_put_back_too(killed, tmp_path):
    path = tmp_path / "a.journal"
    with open_writer(path) as journal:
        journal.append([observe(b"one")])
        journal.checkpoint()
    for suffix in ("", ".mark"):
        shutil.copy(f"{path}{suffix}", tmp_path / f"backup{suffix}")
    with open_writer(path) as journal:
        journal.append([observe(b"two")])
        known = Known.of("a witness", journal.checkpoint().checkpoint)
    for suffix in ("", ".mark"):
        shutil.copy(tmp_path / f"backup{suffix}", f"{path}{suffix}")
    assert verify_journal(path).is_intact, "nothing beside the journal tells"
    assert not verify_journal(path, known=[known]).is_intact
    with pytest.raises(JournalRolledBack, match="has 1 hops, and a witness knows of 2"):
        open_writer(path, known=[known])
    with open_writer(path) as journal:
        journal.append([observe(b"other")])
        journal.checkpoint()
    with pytest.raises(JournalRolledBack, match="has other hops among its first 2 than a witness knows"):
        open_writer(path, known=[known])


def test_a_checkpoint_that_the_log_lost_is_signed_again_where_the_hops_are_the_same(tmp_path):
    path = tmp_path / "a.journal"
    with open_writer(path) as journal:
        journal.append([observe(b"one")])
        journal.checkpoint()
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "DELETE FROM checkpoints; DELETE FROM blocks; UPDATE progress SET value = 0 WHERE name = 'checkpoints'"
        )
    connection.close()
    with open_writer(path) as journal:
        journal.checkpoint()
    assert verify_journal(path).is_intact


def test_with_relaxed_durability_what_only_was_written_counts_until_the_machine_starts_anew(tmp_path, monkeypatch):
    path = tmp_path / "a.journal"
    with open_writer(path, durability="relaxed") as journal:
        journal.append([observe(b"one")])
        journal.checkpoint()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", tmp_path / f"early{suffix}")
        journal.append([observe(b"two")])
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"early{suffix}", f"{path}{suffix}")
    with pytest.raises(JournalRolledBack):
        open_writer(path)
    monkeypatch.setattr(high_water, "boot_id", lambda: b"after power cut.")
    with open_writer(path) as journal:
        assert journal.size == 1
    assert read_mark(path, SIGNER.verifier).size == 1


def test_hops_behind_the_checkpoint_that_cannot_be_read_are_not_written_over(tmp_path):
    path = tmp_path / "a.journal"
    with open_writer(path) as journal:
        journal.append([observe(b"one"), observe(b"two")])
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM messages")
    connection.close()
    mark_path(path).unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM identity WHERE name = 'high_water'")
    connection.close()
    with pytest.raises(JournalDamaged):
        open_writer(path)


def test_a_disk_that_does_not_take_the_mark_has_failed_and_a_full_one_has_not(tmp_path, monkeypatch):
    for number, is_failed in ((5, True), (28, False)):
        with open_writer(tmp_path / f"{number}.journal") as journal:

            def pwrite(*_, number=number):
                raise OSError(number, "injected")

            monkeypatch.setattr(high_water.os, "pwrite", pwrite)
            journal.append([observe(b"one")])
            monkeypatch.undo()
            assert (journal.broken is not None) is is_failed
        with JournalReader.open(tmp_path / f"{number}.journal") as reader:
            assert reader.size == 1, "what was committed before stays"


def test_a_mark_of_another_journal_says_nothing(tmp_path):
    mark = MarkFile.open(tmp_path / "a.journal", SIGNER.verifier)
    mark.note(7, 0, 0, 0, 0, is_synced=True)
    mark.sync()
    mark.close()
    other = Signer("pcp://other/server", SIGNER.private_key)
    assert read_mark(tmp_path / "a.journal", SIGNER.verifier).size == 7
    assert read_mark(tmp_path / "a.journal", other.verifier) is None
