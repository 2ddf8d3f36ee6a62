"""A lake in every kind of store: sealed, read, compacted and swept by the same code, killed at every call."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from audit.audit_worlds import BROKER, SECOND, T0_US, quiet_pcp, signer_of
from dovetail.journal.writer import JournalWriter
from dovetail.lake import seal as seal_module
from dovetail.lake.compact import Compaction, run_in_processes
from dovetail.lake.head import read_head, read_heads
from dovetail.lake.layout import INDEXES, server_slug
from dovetail.lake.location import open_store
from dovetail.lake.reader import open_lake
from dovetail.lake.retain import announced_keys, sweep
from dovetail.lake.rollup import find_false, read_log
from dovetail.lake.seal import seal_journal
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import LocalStore, Store
from dovetail.model.errors import JournalLocked, JournalRolledBack
from dovetail.model.times import to_datetime
from dovetail.receipt.build import build_receipt
from dovetail.receipt.sources import open_sources
from dovetail.receipt.verify import verify_receipt
from lake.dying_store import die
from lake.s3_servers import fresh_store, use

BEFORE = to_datetime(T0_US + 2 * 86_400 * SECOND)


@pytest.fixture
def store(any_store) -> Store:
    return any_store


def append(path: Path, part: int = 0, count: int = 3) -> None:
    with JournalWriter.open(path, server=BROKER, signer=signer_of(BROKER)) as journal:
        for observation in quiet_pcp(count, T0_US + part * 600 * SECOND, 1 + 10 * part):
            journal.append([observation])
        journal.checkpoint()


def seal_parts(path: Path, store: Store, parts: int) -> None:
    for part in range(parts):
        append(path, part)
        assert seal_journal(path, store) is not None


def hops_in(store: Store) -> list:
    (reader,) = open_lake(store)
    return [(hop.hop.seq, hop.hop.message, hop.hop.stage) for hop in reader.hops_between(0, reader.size)]


def objects_in(store: Store) -> set[str]:
    return {entry.key for entry in store.list()}


def announced(store: Store) -> set[str]:
    """All objects that should exist."""
    return announced_keys(snapshot(store).manifests()) | {
        entry.key for entry in store.list("_manifests/") if entry.key.endswith(".json")
    }


def test_what_is_sealed_is_read_and_proven(store, tmp_path):
    path = tmp_path / "a.journal"
    seal_parts(path, store, 3)
    assert seal_journal(path, store) is None
    assert [manifest.number for manifest in snapshot(store).check().manifests()] == [0, 1, 2]
    assert read_head(store, signer_of(BROKER).verifier).end == read_heads(store)[0].end == 18 == len(hops_in(store))
    with open_sources([], str(store)) as sources, open_sources([path], None) as journals:
        (source,), (journal,) = sources, journals
        address = next(iter(source.find(b"")))
        assert source.raw(address) == journal.raw(address)
        receipt = build_receipt(sources, address)
        assert verify_receipt(receipt.data, [signer_of(BROKER).verifier])


@pytest.mark.exhaustive
def test_compacted_and_swept_it_has_the_same_hops(store, tmp_path):
    seal_parts(tmp_path / "a.journal", store, 4)
    before = hops_in(store)
    summary = Compaction(store=store, before=BEFORE, grace_s=0, run_tasks=run_in_processes).run()
    assert (summary.manifests_before, summary.manifests_after, summary.left_alone) == (4, 1, [])
    assert hops_in(store) == before
    assert objects_in(store) == announced(store)
    append(tmp_path / "a.journal", 9)
    assert seal_journal(tmp_path / "a.journal", store).number == 5


def test_copies_of_manifests_are_used_where_the_listing_proves_them(store, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.lake.rollup.FAN", 2)
    seal_parts(tmp_path / "a.journal", store, 3)
    log = read_log(store, server_slug(BROKER))
    expected = [] if isinstance(store, LocalStore) else log.keys[:2]
    assert (list(log.known), len(log.keys), list(find_false(store))) == (expected, 3, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_sealing_killed_at_any_call_leaves_the_old_or_the_new(store, tmp_path, is_after, step, monkeypatch):
    """In a directory at every call; object stores take longer."""
    monkeypatch.setattr("dovetail.lake.rollup.FAN", 2)  # so that roll-ups are interrupted too
    path = tmp_path / "a.journal"
    append(path)
    seal_journal(path, store)
    step = 1 if isinstance(store, LocalStore) else step
    for part, call in enumerate(range(1 + is_after * (step // 2), 100, step), 1):
        append(path, part)
        is_killed = die(store, lambda dying, call=call: seal_journal(path, dying), call, is_after=is_after)
        assert read_head(store, signer_of(BROKER).verifier).end in (
            (6 * part, 6 * part + 6) if is_killed else (6 * part + 6,)
        )
        seal_journal(path, store)
        assert [manifest.number for manifest in snapshot(store).check().manifests()] == list(range(part + 1))
        assert len(hops_in(store)) == 6 * part + 6
        if not is_killed:
            break
    assert call > 8
    stray = {key for key in objects_in(store) - announced(store) if not key.startswith("_rollups/")}
    assert not stray, "the same hops are sealed under the same names"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_compaction_killed_at_any_call_leaves_the_old_or_the_new(moto, tmp_path, is_after, step):
    """In an object store; `test_compact` does the same in a directory, at every call."""
    with use(moto):
        for call in range(1 + 4 * is_after, 200, step):
            store = fresh_store(f"compaction-{is_after}-{step}-{call}")
            path = tmp_path / f"{call}.journal"
            seal_parts(path, store, 2)
            is_killed = die(store, compact, call, is_after=is_after)
            assert len(hops_in(store)) == 12, "a reader has every hop once, from files that are all there"
            compact(store)
            assert [manifest.end for manifest in snapshot(store).check().manifests()] == [12]
            assert len(hops_in(store)) == 12
            sweep(store, grace_s=0, orphan_age_s=-60)
            assert objects_in(store) == announced(store)
            if not is_killed:
                break
        assert call > 15


def compact(store: Store) -> None:
    Compaction(store=store, before=BEFORE, grace_s=0).run()


def test_of_two_sealings_that_begin_together_one_succeeds(store, tmp_path, monkeypatch):
    path = tmp_path / "a.journal"
    append(path)
    barrier = threading.Barrier(2)
    commit = seal_module.commit

    def meet(*given):
        barrier.wait(60)
        return commit(*given)

    monkeypatch.setattr(seal_module, "commit", meet)
    results: list[object] = []

    def act() -> None:
        try:
            results.append(seal_journal(path, store).number)
        except JournalLocked as error:
            results.append(str(error))

    threads = [threading.Thread(target=act) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    number, refusal = sorted(map(str, results))
    assert number == "0"
    assert "another process sealed them meanwhile" in refusal
    assert len(hops_in(store)) == 6


def seal_in_process(path: Path, location: str, barrier, results) -> None:
    store = open_store(location)
    barrier.wait(60)
    try:
        results.put(seal_journal(path, store) is not None)
    except JournalLocked:
        results.put(False)


@pytest.mark.system
def test_of_two_sealing_processes_none_seals_twice(store, tmp_path):
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "a.journal"
    for number in range(2):
        append(path, number)
        barrier, results = context.Barrier(2), context.Queue()
        given = (path, str(store), barrier, results)
        processes = [context.Process(target=seal_in_process, args=given) for _ in range(2)]
        for process in processes:
            process.start()
        assert True in [results.get(timeout=60) for _ in processes]
        for process in processes:
            process.join(60)
    assert [manifest.number for manifest in snapshot(store).check().manifests()] == [0, 1]
    assert len(hops_in(store)) == 12


def test_another_history_is_never_sealed_over_this_one(store, tmp_path):
    for name, count in (("a", 3), ("b", 2)):
        append(tmp_path / f"{name}.journal", count=count)
    assert seal_journal(tmp_path / "a.journal", store) is not None
    with pytest.raises(JournalRolledBack, match="old copy"):
        seal_journal(tmp_path / "b.journal", store)
    append(tmp_path / "b.journal", 5)
    with pytest.raises(JournalRolledBack):
        seal_journal(tmp_path / "b.journal", store)
    assert len(hops_in(store)) == 6


def test_the_index_of_a_lost_index_is_written_again(store, tmp_path):
    seal_parts(tmp_path / "a.journal", store, 1)
    store.delete(entry.key for entry in list(store.list(f"{INDEXES}/")))
    append(tmp_path / "a.journal", 4)
    seal_journal(tmp_path / "a.journal", store)
    assert objects_in(store) == announced(store)
