"""A journal that lost hops is rebuilt from the lake and from what is left of it; hops that no one has are named."""

import random
import shutil
import sqlite3

import pytest

from dovetail.journal.continuity import Known
from dovetail.journal.high_water import mark_path
from dovetail.journal.reader import JournalReader
from dovetail.journal.recovery import BYTES_A_STEP, recover_journal
from dovetail.journal.verify import verify_journal
from dovetail.lake.reader import open_server
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.errors import JournalDamaged, JournalError, JournalLocked, JournalRolledBack
from dovetail.model.hop import Reason, Stage
from journal.worlds import SIGNER, START_US, observe, open_writer, random_observations

NOW_US = START_US + 10**12


class Site:
    """A journal whose first hops are sealed, and an early copy of it."""

    def __init__(self, folder):
        self.path, self.early = folder / "a.journal", folder / "early.journal"
        self.lake = LocalStore(folder / "lake")
        rng = random.Random(3)
        with open_writer(self.path) as journal:
            self._grow(journal, rng, 4)
        shutil.copy(self.path, self.early)
        with open_writer(self.path) as journal:
            self._grow(journal, rng, 4)
        self.sealed = seal_journal(self.path, self.lake).end

    @staticmethod
    def _grow(journal, rng, steps):
        for step in range(steps):
            journal.append(random_observations(rng, START_US + step * 10**6, 5))
        journal.checkpoint()

    def hops(self):
        with JournalReader.open(self.path) as reader:
            return list(reader.hops())

    def put_back(self):
        shutil.copy(self.early, self.path)

    def recover(self, **options):
        source = open_server(self.lake, SIGNER.verifier)
        return recover_journal(self.path, signer=SIGNER, now_us=NOW_US, elsewhere=source, **options)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_what_is_sealed_comes_back_hop_by_hop_and_byte_by_byte(site):
    before = site.hops()
    site.put_back()
    with pytest.raises(JournalRolledBack):
        open_writer(site.path)
    recovery = site.recover()
    assert (recovery.is_done, recovery.lost, recovery.hops) == (True, 0, len(before))
    assert recovery.restored > 0
    assert site.hops() == before
    assert recovery.kept_as.exists()
    assert verify_journal(site.path).is_intact
    with open_writer(site.path) as journal:
        journal.append([observe(b"on we go")])
        journal.checkpoint()
    seal_journal(site.path, site.lake)


def test_a_journal_whose_size_cannot_be_read_is_rebuilt(site):
    before = site.hops()
    with sqlite3.connect(site.path) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'commits'")
        [(page_bytes,)] = connection.execute("PRAGMA page_size")
    connection.close()
    data = bytearray(site.path.read_bytes())
    data[(root - 1) * page_bytes : root * page_bytes] = bytes(page_bytes)
    site.path.write_bytes(data)
    with pytest.raises(JournalError):
        open_writer(site.path)
    assert site.recover().lost == 0
    assert site.hops() == before


def test_a_checkpoint_that_cannot_be_read_is_named_with_its_journal(site):
    with sqlite3.connect(site.path) as connection:
        connection.execute("UPDATE checkpoints SET note = 'rubbish'")
    connection.close()
    with pytest.raises(JournalDamaged, match=r"a\.journal: checkpoint: "):
        open_writer(site.path)
    before = site.hops()
    assert site.recover().lost == 0
    assert site.hops() == before


def test_a_whole_journal_is_left_alone(site):
    content = site.path.read_bytes()
    assert site.recover().kept_as is None
    assert site.path.read_bytes() == content


def test_hops_behind_the_lake_come_from_the_journal_itself(site):
    with open_writer(site.path) as journal:
        journal.append([observe(b"not sealed yet", Stage.ACCEPTED, "pcp://x/agent")])
        journal.checkpoint()
    before = site.hops()
    mark_path(site.path).unlink()  # as in a restored copy
    assert not site.recover().is_done, "nobody can tell that nothing is missing"
    assert site.recover(accepts_loss=True).hops == len(before)
    assert site.hops()[: len(before)] == before


def test_a_journal_that_is_gone_comes_back_from_the_lake(site):
    before = site.hops()
    site.path.unlink()
    assert site.recover().is_done
    assert site.hops() == before


@pytest.mark.parametrize("is_sealed", [True, False])
def test_large_messages_are_not_gathered_into_one_row(tmp_path, is_sealed):
    """A message may have 64 MiB, and SQLite stores no row of a gigabyte."""
    path, lake, size = tmp_path / "a.journal", LocalStore(tmp_path / "lake"), 4 << 20
    with open_writer(path) as journal:
        for number in range(6):
            journal.append([observe(bytes([number]) * size)])
        journal.checkpoint()
    with JournalReader.open(path) as reader:
        before = list(reader.hops())
    if is_sealed:
        seal_journal(path, lake)
        path.unlink()
    mark_path(path).unlink()
    source = open_server(lake, SIGNER.verifier) if is_sealed else None
    recover_journal(path, signer=SIGNER, now_us=NOW_US, elsewhere=source, accepts_loss=True)
    with JournalReader.open(path) as reader:
        assert list(reader.hops())[: len(before)] == before
        assert reader.one("SELECT max(length(rows)) FROM messages")[0] < BYTES_A_STEP + 2 * size


def test_a_damaged_journal_is_rebuilt(site):
    before = site.hops()
    data = bytearray(site.path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8192] = bytes(8192)
    site.path.write_bytes(data)
    assert site.recover().is_done
    assert site.hops() == before
    assert verify_journal(site.path).is_intact


def test_what_nobody_has_is_lost_only_with_the_operators_word_and_noted(site):
    with open_writer(site.path) as journal:
        journal.append([observe(b"lost"), observe(b"lost too")])
        journal.checkpoint()
        end = journal.size
    site.put_back()
    content = site.path.read_bytes()
    refused = site.recover()
    assert (refused.is_done, refused.lost, refused.signed_end - refused.hops) == (False, 2, 2)
    assert site.path.read_bytes() == content, "nothing was changed"
    with pytest.raises(JournalRolledBack):
        open_writer(site.path)
    assert site.recover(accepts_loss=True).is_done
    note = site.hops()[-1]
    assert (note.stage, note.reason) == (Stage.NOTED, Reason.HOPS_LOST)
    assert note.counterpart == f"hops {end - 2} to {end - 1}"
    assert verify_journal(site.path).is_intact
    with open_writer(site.path):
        pass


def test_a_history_that_others_do_not_know_is_never_put_in_place(site):
    other = Known("a witness", 3, bytes(32))
    site.put_back()
    with pytest.raises(JournalRolledBack, match="has other hops among its first 3 than a witness knows"):
        site.recover(known=[other], accepts_loss=True)
    with pytest.raises(JournalRolledBack):
        open_writer(site.path)


def test_a_running_server_is_not_disturbed(site):
    with open_writer(site.path), pytest.raises(JournalLocked):
        site.recover()


def test_a_crash_on_the_way_leaves_a_journal_that_is_refused_or_whole(site, monkeypatch):
    before = site.hops()
    site.put_back()
    rename = type(site.path).rename
    for fail_at in range(3):
        calls = []

        def renaming(path, target, fail_at=fail_at, calls=calls):
            if len(calls) == fail_at:
                raise KeyboardInterrupt
            calls.append(path)
            return rename(path, target)

        monkeypatch.setattr(type(site.path), "rename", renaming)
        try:
            site.recover()
        except KeyboardInterrupt:
            monkeypatch.undo()
            with pytest.raises(JournalRolledBack):
                open_writer(site.path)
            continue
        monkeypatch.undo()
    site.recover()
    assert site.hops() == before
