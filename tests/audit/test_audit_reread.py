"""What was damaged, forged or distrusted in one run and is not in the next leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.audit_worlds import (
    ALICE,
    ALICE_CHAT,
    BROKER,
    COMPACTOR,
    NODE_A,
    SECOND,
    SETTINGS,
    T0_US,
    append_and_seal,
    quiet_pcp,
    see,
    signer_of,
    won_text,
)
from audit.test_audit_increments import assert_equal
from audit.test_audit_tampering import largest_file, manifest_files, rewrite, set_cell
from dovetail.audit.failures import LeftOut
from dovetail.audit.ingest_log import CHANGING, UNCOMMITTED, BatchFacts, FileFact, joined
from dovetail.audit.reread import (
    Listing,
    Plan,
    changed_files,
    disturbed_files,
    list_lake,
    plan_reading,
)
from dovetail.audit.run import Audit
from dovetail.audit.sources import announced_files, check_retained
from dovetail.audit.tables import open_tables, read_runs
from dovetail.lake.compact import Compaction
from dovetail.lake.layout import manifest_key, retained_key, server_slug
from dovetail.lake.manifest import encode_manifest
from dovetail.lake.store import LocalStore
from dovetail.model.hop import Stage
from dovetail.model.times import to_datetime
from dovetail.tlog.keys import Signer
from dovetail.won import compose as c
from dovetail.won.signing import SigningKey
from lake.hostile_lakes import HONEST, continued, write_honest
from lake.lakes import manifests_of
from lake.test_hostile_lakes import judge_here, learn_here

pytestmark = pytest.mark.timeout(900)

THREE = (*HONEST, "pcp://third.example/server")
MALLORY = bytes([99]) * 32
TRUSTED = [signer_of(server).verifier for server in HONEST]
WITH_COMPACTOR = [*TRUSTED, COMPACTOR.verifier]
WRONG = [Signer(BROKER, signer_of(NODE_A).private_key).verifier, *TRUSTED[1:]]


def plan(lake: Path, before: BatchFacts, trusted=(), *, is_judged_alike=True, **options):
    store = LocalStore(lake)
    return plan_reading(store, before, list_lake(store), trusted, is_judged_alike=is_judged_alike, **options)


def plant(lake: Path, server: str, data: bytes | None = None) -> Path:
    """A manifest behind that of a server: these bytes, or one that is signed with another key."""
    (own,) = manifests_of(lake, server)
    path = lake / manifest_key(server, 1)
    signer = Signer(server, Ed25519PrivateKey.from_private_bytes(MALLORY))
    path.write_bytes(data or encode_manifest(continued(own, signer, 1)))
    return path


def alter(lake: Path, server: str = BROKER) -> tuple[Path, bytes]:
    """Alter a row of a server; returns its file and what was in it."""
    path = lake / largest_file(lake, server).path
    data = path.read_bytes()
    rewrite(path, lambda rows: set_cell(rows, 2, counterpart="pcp://mallory/agent"))
    return path, data


def compact(lake: Path) -> None:
    before = to_datetime(T0_US + 10 * 86_400 * SECOND)
    Compaction(store=LocalStore(lake), before=before, grace_s=0, signer=COMPACTOR).run()


def test_a_lake_that_did_not_change_is_not_read(tmp_path):
    lake = write_honest(tmp_path)
    facts = learn_here(lake)
    for trusted in ((), TRUSTED):
        for is_judged_alike in (True, False):
            assert plan(lake, learn_here(lake), trusted, is_judged_alike=is_judged_alike) == (
                facts,
                [],
                False,
                False,
                False,
            )


def test_a_file_that_is_still_unreadable_is_not_read_again(tmp_path):
    lake = write_honest(tmp_path)
    (lake / largest_file(lake, BROKER).path).write_bytes(b"PAR1 no more")
    facts = learn_here(lake)
    assert any(fact.part is None for fact in facts.files)
    assert not plan(lake, facts).is_due


def test_a_file_that_was_left_out_is_read_by_every_later_run_unless_it_is_left_out_again(tmp_path):
    lake = write_honest(tmp_path)
    facts = learn_here(lake)
    first, *others = facts.files
    unread = FileFact(path=first.path, server=first.server, is_whole=False, error=CHANGING, tag=first.tag)
    facts = BatchFacts(manifests=facts.manifests, files=[unread, *others])
    found = plan(lake, facts)
    assert (found.known.files, found.new, found.is_due, found.is_anew) == (others, [], True, False)
    for left_out in (LeftOut(frozenset([first.path])), LeftOut(slugs=frozenset([server_slug(first.server)]))):
        assert plan(lake, facts, left_out=left_out) == (facts, [], False, False, False)
    nothing = BatchFacts(manifests=[], files=[])
    (key, _) = paths = sorted(fact.path for fact in facts.manifests)
    assert [fact.path for fact in plan(lake, nothing).new] == paths
    assert [fact.path for fact in plan(lake, nothing, left_out=LeftOut(only=frozenset([key]))).new] == [key]
    (lake / first.path).unlink()
    assert not plan(lake, facts).is_due


def changed_since(lake: Path, before: Listing, now: Listing | None = None) -> set[str]:
    """The files that changed while a run read all files of the lake; if it failed, the same are found."""
    facts = learn_here(lake)
    everything = Plan(BatchFacts(manifests=[], files=[]), facts.manifests, is_due=True, is_anew=False)
    now = now or list_lake(LocalStore(lake))
    found = changed_files(everything, facts, before, now)
    assert disturbed_files(everything, before, now) == found
    return found


def test_a_file_that_is_another_object_after_it_was_read_has_changed(tmp_path):
    lake = write_honest(tmp_path)
    store = LocalStore(lake)
    before = list_lake(store)
    assert changed_since(lake, before) == set()
    path = largest_file(lake, BROKER).path
    touched = before.files | {path: before.files[path]._replace(modified_s=0)}
    assert changed_since(lake, before, Listing({}, touched)) == {path}, "the same bytes were put there again"
    gone = {key: entry for key, entry in before.files.items() if key != path}
    assert changed_since(lake, before, Listing({}, gone)) == {path}
    untagged = {key: entry._replace(tag="") for key, entry in before.files.items()}
    assert changed_since(lake, before, Listing({}, untagged)) == set(), "an odd name can make a listing have no tags"
    (lake / path).touch()
    assert changed_since(lake, before) == {path}


def test_a_believed_manifest_that_is_gone_is_remembered(tmp_path):
    lake = write_honest(tmp_path)
    facts = learn_here(lake)
    for path in manifest_files(lake, BROKER):
        path.unlink()
    assert plan(lake, facts) == (facts, [], False, False, False)


def test_a_manifest_that_takes_the_place_of_a_forged_one_is_learnt(tmp_path):
    lake = write_honest(tmp_path)
    forged = plant(lake, BROKER)
    facts = learn_here(lake)
    forged.unlink()
    append_and_seal(tmp_path, lake, BROKER, quiet_pcp(8, T0_US + 1000 * SECOND, 900))
    found = plan(lake, facts)
    assert [fact.path for fact in found.new] == [manifest_key(BROKER, 1)]
    assert (found.is_due, found.is_anew) == (True, False)


def test_a_second_key_for_the_first_hops_leaves_no_trace_once_it_is_gone(tmp_path):
    """While it is there nobody can tell whose key it is: it is neither forged nor believed."""
    lake = write_honest(tmp_path)
    (own,) = manifests_of(lake, BROKER)
    path = lake / manifest_key(BROKER, 1)
    other = Signer(BROKER, Ed25519PrivateKey.from_private_bytes(MALLORY))
    path.write_bytes(encode_manifest(continued(None, other, 1, like=own)))
    facts = learn_here(lake)
    assert judge_here(lake)[BROKER].verdict == "broken"
    path.unlink()
    found = plan(lake, facts)
    assert (len(found.known.manifests), found.is_anew) == (len(facts.manifests) - 1, False)
    (first,) = manifest_files(lake, BROKER)
    first.unlink()
    assert manifest_key(BROKER, 0) in {fact.path for fact in plan(lake, facts).known.manifests}, "its files were read"


def edit(path: Path, **changes: object) -> bytes:
    """Change what a manifest says about its first file, which no signature covers; returns what was there."""
    before = path.read_bytes()
    record = json.loads(before)
    record["files"][0].update(changes)
    path.write_text(json.dumps(record))
    return before


def test_what_a_manifest_said_falsely_leaves_no_trace_once_it_is_corrected(tmp_path):
    lake = write_honest(tmp_path)
    (path,) = manifest_files(lake, BROKER)
    sealed = edit(path, first_at_us=1)
    facts = learn_here(lake)
    edit(path, first_at_us=2)
    assert plan(lake, facts).known == facts, "it is not what the rows say"
    path.write_bytes(sealed)
    found = plan(lake, facts)
    assert ([fact.path for fact in found.new], found.is_due, found.is_anew) == ([manifest_key(BROKER, 0)], True, False)
    good = learn_here(lake)
    edit(path, first_at_us=1)
    assert plan(lake, good).known == good, "it was true before"
    assert not plan(lake, learn_here(lake)).is_due


def test_retained_fields_that_nobody_signed_leave_no_trace_once_they_are_not_announced(tmp_path):
    lake = write_honest(tmp_path)
    (path,) = manifest_files(lake, BROKER)
    kept = {"path": retained_key(largest_file(lake, BROKER).path), "rows": 1, "bytes": 9, "sha256": "0" * 64}
    sealed = edit(path, kept=kept)
    facts = learn_here(lake)
    files = check_retained(LocalStore(lake), announced_files(facts.manifests), facts.files, TRUSTED)
    facts = BatchFacts(manifests=facts.manifests, files=files)
    assert not plan(lake, facts, TRUSTED).is_due
    path.write_bytes(sealed)
    assert plan(lake, facts, TRUSTED).is_anew
    assert not plan(lake, learn_here(lake), TRUSTED).is_due


def test_a_compaction_that_is_gone_leaves_no_trace_while_all_that_it_replaced_is_there(tmp_path):
    """Anybody can write one over what is there, without any key, and it may even be true."""
    lake = write_honest(tmp_path)
    (own,) = manifests_of(lake, BROKER)
    path = lake / manifest_key(BROKER, 5)
    path.write_bytes(encode_manifest(msgspec.structs.replace(own, number=5, replaces=[0])))
    facts = learn_here(lake)
    assert not plan(lake, facts).is_due
    data = path.read_bytes()
    path.unlink()
    found = plan(lake, facts)
    assert found.is_anew
    assert found.is_reread
    assert path.name not in {Path(fact.path).name for fact in found.new}
    waits = plan(lake, facts, may_reread=lambda: False)
    assert (waits.known, waits.is_due) == (facts, False)
    (original,) = manifest_files(lake, BROKER)
    original.unlink()
    assert not plan(lake, facts).is_anew, "now it is evidence"
    path.write_bytes(data)
    assert not plan(lake, facts).is_anew


def test_rows_that_were_altered_are_read_again_once_they_are_restored(tmp_path):
    lake = write_honest(tmp_path)
    path, data = alter(lake)
    facts = learn_here(lake)
    assert not plan(lake, facts).is_due
    path.write_bytes(path.read_bytes() + b"x")
    assert not plan(lake, facts).is_anew, "it is not what was sealed"
    path.write_bytes(data)
    assert plan(lake, facts).is_anew
    restored = learn_here(lake)
    alter(lake)
    assert not plan(lake, restored).is_anew, "what was read is what was sealed"


def test_rows_that_were_altered_are_read_again_from_a_compaction(tmp_path):
    lake = write_honest(tmp_path)
    path, data = alter(lake)
    facts = learn_here(lake)
    path.write_bytes(data)
    good = learn_here(lake)
    append_and_seal(tmp_path, lake, BROKER, quiet_pcp(8, T0_US + 1000 * SECOND, 900))
    compact(lake)
    assert plan(lake, facts).is_anew
    assert not plan(lake, good).is_anew


def test_what_is_restored_again_and_again_has_to_wait(tmp_path):
    lake = write_honest(tmp_path)
    path, data = alter(lake)
    facts = learn_here(lake)
    path.write_bytes(data)
    waits = plan(lake, facts, may_reread=lambda: False)
    assert (waits.known, waits.is_due, waits.is_anew, waits.is_reread) == (facts, False, False, False)
    assert plan(lake, facts).is_reread
    append_and_seal(tmp_path, lake, BROKER, quiet_pcp(8, T0_US + 1000 * SECOND, 900))
    compact(lake)
    waits = plan(lake, facts, may_reread=lambda: False)
    assert (waits.is_due, waits.is_anew) == (True, False)
    facts = joined(waits.known, BatchFacts(manifests=waits.new, files=learn_here(lake).files))
    assert not plan(lake, facts, may_reread=lambda: False).is_due
    assert plan(lake, facts).is_reread, "it is not forgotten meanwhile"
    assert not plan(lake, learn_here(lake)).is_due, "it is read once"


def test_retained_fields_that_were_lost_are_read_once_they_are_restored(tmp_path):
    lake = write_honest(tmp_path)
    compact(lake)
    kept = lake / largest_file(lake, BROKER).retained.path
    data = kept.read_bytes()
    for harm in (kept.unlink, lambda: kept.write_bytes(data[:-1])):
        harm()
        facts = learn_here(lake)
        files = check_retained(LocalStore(lake), announced_files(facts.manifests), facts.files, WITH_COMPACTOR)
        facts = BatchFacts(manifests=facts.manifests, files=files)
        found = plan(lake, facts, WITH_COMPACTOR)
        assert (found.known, found.is_due, found.is_anew) == (facts, False, False)
        kept.write_bytes(data)
        assert plan(lake, facts, WITH_COMPACTOR).is_anew
        assert not plan(lake, facts, TRUSTED).is_anew


def test_who_may_sign_retained_fields_decides_what_is_read(tmp_path):
    lake = write_honest(tmp_path)
    compact(lake)
    for before, now, is_anew in (
        (TRUSTED, WITH_COMPACTOR, True),
        (WITH_COMPACTOR, TRUSTED, True),
        (WITH_COMPACTOR, WITH_COMPACTOR, False),
        (TRUSTED, TRUSTED, False),
    ):
        facts = learn_here(lake)
        files = check_retained(LocalStore(lake), announced_files(facts.manifests), facts.files, before)
        facts = BatchFacts(manifests=facts.manifests, files=files)
        found = plan(lake, facts, now, is_judged_alike=before == now)
        assert found.is_anew == is_anew


@pytest.mark.parametrize("is_judged_alike", [True, False])
def test_other_keys_decide_what_is_read(tmp_path, is_judged_alike):
    lake = write_honest(tmp_path)
    facts = learn_here(lake)
    assert plan(lake, facts, WRONG, is_judged_alike=is_judged_alike).is_anew is not is_judged_alike
    unread = [FileFact(path=fact.path, server=fact.server, is_whole=False, error=UNCOMMITTED) for fact in facts.files]
    found = plan(lake, BatchFacts(manifests=facts.manifests, files=unread), TRUSTED, is_judged_alike=is_judged_alike)
    assert (found.is_due, found.is_anew) == (not is_judged_alike, False)


def audit(spark, lake: Path, out: Path, trusted=()) -> Path:
    Audit(spark=spark, lake=lake, tables=out, settings=dataclasses.replace(SETTINGS, trusted=trusted)).run()
    return out


def test_what_is_restored_or_removed_leaves_no_trace(spark, tmp_path):
    lake = write_honest(tmp_path, THREE)
    out = tmp_path / "out"
    forged = c.respond(
        won_text("x", T0_US // 1000),
        success=True,
        signer=NODE_A,
        key=SigningKey(MALLORY),
        timestamp_ms=T0_US // 1000,
        connection=f"{ALICE}/c/one",
        sender_socket=ALICE_CHAT,
        recipient_socket=ALICE_CHAT,
    )
    append_and_seal(tmp_path, lake, NODE_A, [see(T0_US, Stage.ACCEPTED, forged.raw, ALICE, address=forged.address)])
    hidden = lake / largest_file(lake, THREE[0]).path
    hidden.rename(tmp_path / "hidden")
    (cut,) = manifest_files(lake, THREE[1])
    text = cut.read_bytes()
    cut.write_bytes(text[:50])
    planted = [plant(lake, THREE[2], b"{}"), plant(lake, NODE_A)]
    audit(spark, lake, out)
    signatures = {row["signer"]: row["signature"] for row in open_tables(out).scan("messages") if row["signer"]}
    assert signatures == {NODE_A: "unknown_key"}, "nobody believes the key of a forged manifest"
    assert {row["verdict"] for row in open_tables(out).scan("integrity") if row["server"]} == {"broken", "incomplete"}
    (tmp_path / "hidden").rename(hidden)
    cut.write_bytes(text)
    for path in planted:
        path.unlink()
    audit(spark, lake, out)
    assert [row["breaks"] for row in open_tables(out).scan("integrity")] == [[]] * 4
    assert open_tables(out).count("hops") == 16 * len(THREE) + 1
    assert set(open_tables(out).read("hops")["run"].to_pylist()) == {1, 2}, "what was read is not read again"


def test_files_that_alternate_make_few_runs_a_day_read_everything(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.audit.run.MAX_REREADS", 1)
    lake = write_honest(tmp_path)
    out = tmp_path / "out"
    broker, second = (lake / largest_file(lake, server).path for server in HONEST)
    sealed, other = broker.read_bytes(), second.read_bytes()
    alter(lake, HONEST[1])
    hostile = second.read_bytes()
    for turn in range(4):  # one of the two files is always altered, and the other one restored
        audit(spark, lake, out)
        if turn % 2:
            broker.write_bytes(sealed)
            second.write_bytes(hostile)
        else:
            alter(lake)
            second.write_bytes(other)
    audit(spark, lake, out)
    assert sum(run.is_reread for run in read_runs(out)) == 1
    assert {row["verdict"] for row in open_tables(out).scan("integrity") if row["server"] in HONEST} == {"broken"}
    broker.write_bytes(sealed)
    second.write_bytes(other)
    monkeypatch.setattr("dovetail.audit.run.REREADS_S", 0)  # a day later
    audit(spark, lake, out)
    assert {row["verdict"] for row in open_tables(out).scan("integrity")} == {"proven"}
    assert_equal(out, audit(spark, lake, tmp_path / "anew"))


@pytest.mark.soak
def test_rows_that_nobody_believes_any_more_leave_the_tables(spark, tmp_path):
    lake = write_honest(tmp_path)
    out = tmp_path / "out"
    path, data = alter(lake)
    audit(spark, lake, out)
    path.write_bytes(data)
    audit(spark, lake, out)
    assert_equal(out, audit(spark, lake, tmp_path / "restored"))
    alter(lake)
    shutil.rmtree(out)
    audit(spark, lake, out)
    path.write_bytes(data)
    append_and_seal(tmp_path, lake, BROKER, quiet_pcp(8, T0_US + 1000 * SECOND, 900))
    compact(lake)
    audit(spark, lake, out)
    assert_equal(out, audit(spark, lake, tmp_path / "compacted"))
    for number, trusted in enumerate((WRONG, TRUSTED)):
        audit(spark, lake, out, trusted)
        assert_equal(out, audit(spark, lake, tmp_path / f"trusted-{number}", trusted))
    assert {row["verdict"] for row in open_tables(out).scan("integrity")} == {"proven"}
