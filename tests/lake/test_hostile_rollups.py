"""Planted roll-ups: they hide nothing from any reader, are named, and are gone without a trace once removed."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from audit.audit_worlds import SECOND, T0_US, append_and_seal, quiet_pcp, signer_of
from dovetail.lake.head import read_head, read_heads
from dovetail.lake.known import known_to_lake
from dovetail.lake.layout import server_slug
from dovetail.lake.reader import open_lake, open_server
from dovetail.lake.retain import sweep
from dovetail.lake.rollup import find_false, read_log
from dovetail.lake.seal import seal_journal
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import LocalStore, Store
from dovetail.model.address import address_of
from dovetail.receipt.build import build_receipt
from lake.hostile_lakes import CULPRIT, HONEST, ROLLUPS, write_honest
from lake.memory_store import MemoryStore
from lake.test_hostile_lakes import judge_here

pytestmark = pytest.mark.exhaustive

SEALINGS = 7
VERIFIER = signer_of(CULPRIT).verifier
JOURNAL = f"{address_of(CULPRIT.encode()).hex()[:8]}.journal"


@pytest.fixture(scope="module", autouse=True)
def _narrow():
    """Roll-ups of four numbers, so that few sealings make one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dovetail.lake.rollup.FAN", 4)
        patch.setattr("dovetail.lake.rollup.MAX_ROLLUP_BYTES", 1 << 20)
        yield


def new_hops(number: int) -> list:
    return quiet_pcp(2, T0_US + number * 100 * SECOND, 5000 + 10 * number)


@pytest.fixture(scope="module")
def template(tmp_path_factory, _narrow) -> Path:
    """A lake of honest servers and of one whose roll-ups are hostile, and its journal."""
    root = tmp_path_factory.mktemp("template")
    lake = write_honest(root)
    for number in range(SEALINGS):
        append_and_seal(root, lake, CULPRIT, new_hops(number))
    assert [each.first for each in read_log(LocalStore(lake), server_slug(CULPRIT)).rollups] == [0]
    return root


def in_memory(lake: Path) -> MemoryStore:
    """The same lake in a store whose listing has the MD5 of each object."""
    made = MemoryStore()
    for entry in LocalStore(lake).list():
        made.create(entry.key, LocalStore(lake).get(entry.key))
    return made


@pytest.fixture(params=["directory", "object store"])
def store(request, template, tmp_path) -> Store:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return LocalStore(tmp_path / "lake") if request.param == "directory" else in_memory(tmp_path / "lake")


def plant(store: Store, name: str) -> set[str]:
    """Plant what a case says, in place of what is there."""
    objects = ROLLUPS[name](list(snapshot(store, CULPRIT).manifests()))
    store.delete(objects)
    assert all(store.create(key, data) for key, data in objects.items())
    return set(objects)


def answers(store: Store) -> dict:
    """What every reader says of the lake."""
    found = snapshot(store)
    (culprit,) = (source for source in open_lake(store) if source.server == CULPRIT)
    newest = culprit.hops_between(culprit.size - 1, culprit.size)[0].hop
    at_newest = open_lake(store, (newest.at_us, newest.at_us + 1))
    return {
        "snapshot": (found.servers, found.damages, found.unreadable, found.next_numbers),
        "heads": [(head.manifest, head.next_number, head.ignored) for head in read_heads(store)],
        "head": [(head.end, head.next_number) for head in [read_head(store, VERIFIER)]],
        "known": known_to_lake(store, VERIFIER),
        "recovery": open_server(store, VERIFIER).size,
        "newest": newest,
        "receipt": build_receipt(at_newest, newest.message).data,
    }


def test_there_are_cases_of_every_kind():
    assert len(ROLLUPS) > 30


@pytest.mark.parametrize("name", sorted(ROLLUPS))
def test_a_planted_roll_up_hides_nothing_and_is_named(name, store, tmp_path):
    expected = answers(store)
    assert list(find_false(store)) == []
    verdicts = judge_here(store.root) if isinstance(store, LocalStore) else None
    planted = plant(store, name)
    assert answers(store) == expected
    assert {key for key, _ in find_false(store)} == planted
    if verdicts is not None:
        assert judge_here(store.root) == verdicts
    objects = {entry.key for entry in store.list()}
    sweep(store, grace_s=0, orphan_age_s=0)
    assert {entry.key for entry in store.list()} == objects, "nothing that is needed is deleted"

    # sealing goes on, also past the numbers of the planted one
    end = read_head(store, VERIFIER).end
    for number in range(SEALINGS, SEALINGS + 5):
        append_and_seal(tmp_path, tmp_path / "elsewhere", CULPRIT, new_hops(number))
        sealed = seal_journal(tmp_path / JOURNAL, store)
        assert (sealed.number, sealed.first_seq) == (number, end)
        end = sealed.end
        assert open_server(store, VERIFIER).size == end
    store.delete(planted)
    assert open_server(store, VERIFIER).size == end
    assert list(find_false(store)) == []
    assert set(snapshot(store).check().servers) == {*HONEST, CULPRIT}


def test_a_false_roll_up_is_logged(template, caplog):
    store = in_memory(template / "lake")
    for name, read in (("altered-times", snapshot), ("far-9-level-1", read_heads)):
        (key,) = plant(store, name)
        with caplog.at_level(logging.ERROR, "dovetail.lake"):
            read(store)
        assert any(key in record.getMessage() for record in caplog.records)
        caplog.clear()
