"""Sealing and purging: files that are subtrees, manifests that announce them, rival sealings, expired bytes."""

import datetime as dt
import multiprocessing
import random
import shutil
import sqlite3

import pyarrow.parquet as pq
import pytest

from dovetail.journal.high_water import mark_path
from dovetail.journal.purge import purge_step
from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from dovetail.lake.layout import manifest_key, server_slug
from dovetail.lake.rollup import read_manifest
from dovetail.lake.rows import LAKE_SCHEMA
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.errors import JournalDamaged, JournalLocked, JournalRolledBack
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.tlog.checkpoint import verify_checkpoint
from dovetail.tlog.leaf import NO_DIGEST, encode_entry
from dovetail.tlog.tree import Frontier, hash_leaf
from journal.worlds import SERVER, SIGNER, START_US, expiring, observe, open_writer, random_observations
from lake.lakes import manifest_files, manifests_of
from tlog.trees import root_of

DAY_US = 86_400_000_000


def fill(path, seed=1, steps=10, start_us=START_US):
    rng = random.Random(seed)
    with open_writer(path) as journal:
        for step in range(steps):
            journal.append(random_observations(rng, start_us + step * 10**6, 5))
        journal.checkpoint()


def rows_of(lake, file):
    table = pq.ParquetFile(lake / file.path).read()
    assert table.schema.equals(LAKE_SCHEMA)
    return table.to_pylist()


def hops_of_lake(lake):
    """Hops as stored in the lake; checks each file's own claims on the way."""
    hops = []
    tree = Frontier()
    for manifest in manifests_of(lake):
        for file in manifest.files:
            leaves = []
            for row in rows_of(lake, file):
                at_us = round((row["at"] - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1))
                hop = Hop(
                    server=row["server"],
                    seq=row["seq"],
                    at_us=at_us,
                    fabric="pcp",
                    stage=Stage(row["stage"]),
                    message=row["message"],
                    counterpart=row["counterpart"],
                    reason=Reason(row["reason"]) if row["reason"] else None,
                    raw=row["raw"],
                    size=row["size"],
                )
                assert f"date={row['at'].date().isoformat()}" in file.path
                leaves.append(hash_leaf(encode_entry(hop, row["digest"] or NO_DIGEST)))
                assert row["leaf"] == leaves[-1][:8]
                hops.append(hop)
            assert len(leaves) == file.rows
            assert root_of(leaves).hex() == file.root
            assert file.first_seq % file.rows == 0
            assert (lake / file.path).stat().st_size == file.bytes
            tree.append(bytes.fromhex(file.root), file.level)
        signed = verify_checkpoint(manifest.checkpoint, [SIGNER.verifier])
        assert (signed.size, signed.root) == (tree.size, tree.root())
    return hops


def test_the_lake_holds_every_hop_once_in_files_that_are_subtrees(tmp_path):
    fill(tmp_path / "a.journal")
    seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"))
    with JournalReader.open(tmp_path / "a.journal") as reader:
        assert hops_of_lake(tmp_path / "lake") == list(reader.hops())


def test_sealing_again_adds_only_what_is_new(tmp_path):
    lake = tmp_path / "lake"
    for round_ in range(5):
        fill(tmp_path / "a.journal", seed=round_, steps=round_ + 1, start_us=START_US + round_ * 10**8)
        assert seal_journal(tmp_path / "a.journal", LocalStore(lake)) is not None
        assert seal_journal(tmp_path / "a.journal", LocalStore(lake)) is None
    with JournalReader.open(tmp_path / "a.journal") as reader:
        assert hops_of_lake(lake) == list(reader.hops())
    assert len(manifest_files(lake)) == 5


def test_nothing_is_sealed_beyond_the_last_checkpoint(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"1"), observe(b"2"), observe(b"3")])
        assert seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake")) is None
        journal.checkpoint()
        journal.append([observe(b"4")])
        assert seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake")).end == 3


def test_a_file_has_hops_of_one_date(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        midnight = (START_US // DAY_US + 1) * DAY_US
        journal.append([observe(b"%d" % i, at_us=midnight - 5 + i) for i in range(11)])
        journal.append([observe(b"later", at_us=midnight + 3 * DAY_US)])
        journal.checkpoint()
    manifest = seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"))
    assert [file.rows for file in manifest.files] == [4, 1, 1, 2, 2, 1, 1]
    assert len(hops_of_lake(tmp_path / "lake")) == 12


def test_files_stay_near_the_target_size(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        for i in range(64):
            journal.append([observe(random.Random(i).randbytes(10_000))])
        journal.checkpoint()
    manifest = seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"), target_bytes=100_000)
    assert [file.rows for file in manifest.files] == [8] * 8
    assert all(file.bytes < 120_000 for file in manifest.files)


def test_a_tampered_journal_is_not_sealed(tmp_path):
    fill(tmp_path / "a.journal")
    connection = sqlite3.connect(tmp_path / "a.journal")
    with connection:
        connection.execute("UPDATE names SET name = name || 'x' WHERE id = 3")
    connection.close()
    with pytest.raises(JournalDamaged, match="not those that were signed"):
        seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"))
    assert manifest_files(tmp_path / "lake") == []


def test_manifests_that_are_not_whole_are_refused(tmp_path):
    fill(tmp_path / "a.journal")
    seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"))
    (path,) = manifest_files(tmp_path / "lake")
    data = path.read_bytes()
    for bad in (
        data[:-20],
        b"{}",
        data.replace(b'"rows": 32', b'"rows": 31'),
        data.replace(b'"format": 3', b'"format": 9'),
    ):
        path.write_bytes(bad)
        with pytest.raises(JournalDamaged, match=path.name):
            read_manifest(LocalStore(tmp_path / "lake"), str(path.relative_to(tmp_path / "lake")))


def test_of_two_sealings_that_begin_together_one_succeeds(tmp_path):
    fill(tmp_path / "a.journal")
    lake = LocalStore(tmp_path / "lake")

    def seal_first(done, total):
        if not manifest_files(lake.root):
            assert seal_journal(tmp_path / "a.journal", lake) is not None

    with pytest.raises(JournalLocked, match="another process sealed them meanwhile"):
        seal_journal(tmp_path / "a.journal", lake, progress=seal_first)
    assert len(manifest_files(lake.root)) == 1
    with JournalReader.open(tmp_path / "a.journal") as reader:
        assert hops_of_lake(lake.root) == list(reader.hops())


class Meeting(LocalStore):
    """A store in which writers wait for each other before they create a manifest."""

    barrier = None

    def create(self, key, data):
        self.barrier.wait(60)
        return super().create(key, data)


def seal_at_once(path, lake, barrier, results):
    Meeting.barrier = barrier
    try:
        results.put(seal_journal(path, Meeting(lake)) is not None)
    except JournalLocked:
        results.put(False)


@pytest.mark.system
def test_of_two_sealing_processes_one_succeeds(tmp_path):
    context = multiprocessing.get_context("spawn")
    for number in range(3):
        fill(tmp_path / "a.journal", seed=number, steps=3, start_us=START_US + number * 10**8)
        barrier, results = context.Barrier(2), context.Queue()
        given = (tmp_path / "a.journal", tmp_path / "lake", barrier, results)
        processes = [context.Process(target=seal_at_once, args=given) for _ in range(2)]
        for process in processes:
            process.start()
        assert sorted(results.get(timeout=60) for _ in processes) == [False, True]
        for process in processes:
            process.join(60)
    with JournalReader.open(tmp_path / "a.journal") as reader:
        assert hops_of_lake(tmp_path / "lake") == list(reader.hops())
    assert [manifest.number for manifest in manifests_of(tmp_path / "lake")] == [0, 1, 2]


def test_a_number_that_something_else_took_is_left_out(tmp_path):
    fill(tmp_path / "a.journal")
    taken = tmp_path / "lake" / manifest_key(SERVER, 0)
    taken.parent.mkdir(parents=True)
    taken.symlink_to(tmp_path / "elsewhere")
    assert seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake")).number == 1
    assert not (tmp_path / "elsewhere").exists()


def test_an_old_copy_of_a_journal_is_not_sealed(tmp_path):
    path, lake = tmp_path / "a.journal", LocalStore(tmp_path / "lake")
    fill(path, steps=3)
    shutil.copy(path, tmp_path / "copy.journal")
    shutil.copy(mark_path(path), mark_path(tmp_path / "copy.journal"))
    seal_journal(path, lake)
    fill(path, seed=2, steps=2, start_us=START_US + 10**9)
    end = seal_journal(path, lake).end
    with pytest.raises(
        JournalRolledBack, match=f"the lake .* knows of {end}: its end was cut off or it is an old copy"
    ):
        seal_journal(tmp_path / "copy.journal", lake)
    # the copy continues on its own, past what was sealed from the other
    fill(tmp_path / "copy.journal", seed=3, steps=9, start_us=START_US + 10**9)
    with pytest.raises(JournalRolledBack, match=f"has other hops among its first {end} than the lake"):
        seal_journal(tmp_path / "copy.journal", lake)
    assert len(manifest_files(lake.root)) == 2


def test_another_history_of_the_same_length_is_noticed(tmp_path):
    for name, text in (("a", b"one"), ("b", b"other")):
        with open_writer(tmp_path / f"{name}.journal") as journal:
            journal.append([observe(text)])
            journal.checkpoint()
    seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"))
    with pytest.raises(JournalRolledBack, match="has other hops among its first 1 than the lake"):
        seal_journal(tmp_path / "b.journal", LocalStore(tmp_path / "lake"))


def test_names_of_files_carry_server_and_range(tmp_path):
    fill(tmp_path / "a.journal")
    manifest = seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"))
    assert server_slug(SERVER).startswith("broker.example-server-")
    assert server_slug(SERVER) in manifest.files[0].path
    assert server_slug("pcp://a/b") != server_slug("pcp://a-b/") != server_slug("pcp://a/b/")


def test_expired_bytes_go_and_everything_still_verifies(tmp_path):
    short, long = expiring(b"short", START_US + 10), expiring(b"long", START_US + 10**9)
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"short", Stage.ACCEPTED, "pcp://a/agent", expires_us=START_US + 10)])
        journal.append([observe(b"long", expires_us=START_US + 10**9), observe(b"forever")])
        assert purge_step(journal, now_us=START_US + 100) == 0, "bytes above the last checkpoint must stay"
        before = journal.checkpoint()
        path_before = tmp_path / "before.note"
        path_before.write_text(before.note)
        assert purge_step(journal, now_us=START_US + 9) == 0, "nothing unexpired is ever purged"
        assert purge_step(journal, now_us=START_US + 100, below_seq=0) == 0, "nothing unsealed is purged"
        assert purge_step(journal, now_us=START_US + 100) == 1
        assert purge_step(journal, now_us=START_US + 100) == 0
        assert journal.reader.raw(address_of(short)) is None
        assert journal.reader.raw(address_of(long)) == long
        assert [hop.stage for hop in journal.reader.hops_of(address_of(short))] == [Stage.ACCEPTED, Stage.PURGED]
        journal.append([observe(short)])
        assert journal.reader.raw(address_of(short)) is None, "purged bytes do not come back"
        journal.checkpoint()
    verdict = verify_journal(tmp_path / "a.journal", since=before)
    assert verdict.findings == []
    assert short not in (tmp_path / "a.journal").read_bytes()
    seal_journal(tmp_path / "a.journal", LocalStore(tmp_path / "lake"))
    assert [hop.raw for hop in hops_of_lake(tmp_path / "lake")] == [None, long, b"forever", None, None]


def test_bytes_that_came_after_the_index_was_made_are_purged_too(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(expiring(b"m", START_US + 10), Stage.PULLED, raw=None)])
        journal.index()
        journal.append([observe(b"m", expires_us=START_US + 10)])
        journal.checkpoint()
        assert purge_step(journal, now_us=START_US + 100) == 1
        journal.checkpoint()
    assert verify_journal(tmp_path / "a.journal").findings == []
