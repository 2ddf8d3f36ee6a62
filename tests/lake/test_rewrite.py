"""Planning a compaction, and rewriting files."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import (
    BROKER,
    COMPACTOR,
    EPOCH_MS,
    PEERS,
    SECOND,
    T0_US,
    A,
    B,
    pcp_frame,
    quiet_pcp,
    see,
    signer_of,
    swarm_message,
    won_world,
    write_lake,
)
from dovetail.lake import rewrite as rewriting
from dovetail.lake.compact_plan import CompactionTask, plan_groups
from dovetail.lake.index import BLOCK_LEVEL, FileIndex
from dovetail.lake.manifest import Manifest, SealedFile
from dovetail.lake.retained import UNSIGNED, sign_retained
from dovetail.lake.rewrite import NEVER_US, Rewriter, Rewritten
from dovetail.lake.store import SCRATCH, LocalStore
from dovetail.model.address import address_of
from dovetail.model.fabric import Agreement
from dovetail.model.hop import Reason, Stage
from dovetail.tlog.checkpoint import parse_checkpoint
from dovetail.tlog.tree import fold_perfect, verify_consistency
from lake.lakes import files_in, manifests_of

HOUR = 3600 * SECOND
DAY = 24 * HOUR
FOREVER = NEVER_US
MB = 1 << 20


def sealed(root: Path, *parts, server: str = BROKER) -> tuple[Path, list[Manifest]]:
    lake = write_lake(root, *({server: part} for part in parts))
    return lake, manifests_of(lake, server)


def plan(manifests, before_us=FOREVER, target_bytes=128 * MB):
    return plan_groups(manifests, before_us=before_us, target_bytes=target_bytes)


def table_of(lake: Path, path: str) -> pa.Table:
    return pq.read_table(lake / path, partitioning=None)


def test_files_are_joined_to_the_largest_subtrees(tmp_path):
    _, manifests = sealed(tmp_path, *(quiet_pcp(count, T0_US + day) for day, count in enumerate((3, 1, 5))))
    (group,) = plan(manifests)
    assert [file.rows for manifest in manifests for file in manifest.files] == [4, 2, 2, 8, 2]
    assert [(t.inputs[0].first_seq, sum(file.rows for file in t.inputs)) for t in group.tasks] == [(0, 16), (16, 2)]
    assert [task.is_merge for task in group.tasks] == [True, False]


def test_a_small_target_keeps_files_apart_but_never_cuts_one(tmp_path):
    _, manifests = sealed(tmp_path, quiet_pcp(4), quiet_pcp(4))
    (group,) = plan(manifests, target_bytes=1)
    assert [len(task.inputs) for task in group.tasks] == [1, 1]


def test_days_keys_and_what_is_not_before_the_date_stay_apart(tmp_path):
    _, manifests = sealed(
        tmp_path, quiet_pcp(2), quiet_pcp(2, T0_US + HOUR), quiet_pcp(2, T0_US + DAY), quiet_pcp(2, T0_US + 2 * DAY)
    )
    groups = plan(manifests, before_us=T0_US + DAY + HOUR)
    assert [[m.first_seq for m in group.manifests] for group in groups] == [[0, 4], [8]]
    assert plan(manifests, before_us=T0_US) == []


def test_every_earlier_checkpoint_is_kept_with_a_proof_also_by_a_second_compaction(tmp_path):
    parts = [quiet_pcp(count, T0_US + number) for number, count in enumerate((3, 1, 5, 2, 7, 1))]
    _, manifests = sealed(tmp_path, *parts)
    first = plan(manifests[:3])[0]
    merged = first.replace_with([file for manifest in manifests[:3] for file in manifest.files])
    (second,) = plan([msgspec.structs.replace(merged, number=6), *manifests[3:]])
    whole = second.replace_with([file for manifest in manifests for file in manifest.files])
    assert (merged.replaces, whole.replaces, whole.end) == ([0, 1, 2], list(range(7)), manifests[-1].end)
    assert [parse_checkpoint(item.note).size for item in whole.earlier] == [m.end for m in manifests[:-1]]
    roots = {m.end: m.signed_checkpoint().root for m in manifests}
    for item in whole.earlier:
        signed = parse_checkpoint(item.note)
        assert item.end in roots
        proof = [bytes.fromhex(step) for step in item.proof]
        verify_consistency(signed.size, signed.root, item.end, roots[item.end], proof)


def test_the_proof_also_reaches_over_what_lies_before_the_group(tmp_path):
    parts = [quiet_pcp(3, T0_US), quiet_pcp(2, T0_US + DAY), quiet_pcp(1, T0_US + DAY + HOUR)]
    _, manifests = sealed(tmp_path, *parts)
    _, group = plan(manifests)
    (item,) = group.replace_with([file for m in manifests[1:] for file in m.files]).earlier
    roots = {m.end: m.signed_checkpoint().root for m in manifests}
    verify_consistency(10, roots[10], 12, roots[12], [bytes.fromhex(step) for step in item.proof])


def rewrite(lake: Path, manifests, before_us: int, **options) -> list[tuple[CompactionTask, Rewritten]]:
    (group,) = plan(manifests)
    rewriter = Rewriter(store=LocalStore(lake), before_us=before_us, **options)
    return [(task, rewriter.rewrite(task)) for task in group.tasks]


def mixed_pcp():
    """Expired, live, endless, refused, truncated and unreadable bytes."""
    short = pcp_frame(1, [B], expires_us=T0_US + HOUR)
    long = pcp_frame(2, [B], expires_us=T0_US + DAY)
    denied = pcp_frame(3, [B], expires_us=T0_US + HOUR)
    cut = see(T0_US + 5, Stage.REJECTED, pcp_frame(4, [B], expires_us=T0_US + HOUR), A, reason=Reason.TOO_LARGE)
    return [
        see(T0_US, Stage.ACCEPTED, short, A),
        see(T0_US + 1, Stage.DELIVERED, short, B),
        see(T0_US + 2, Stage.ACCEPTED, long, A),
        see(T0_US + 3, Stage.REJECTED, denied, A, reason=Reason.UNAUTHORIZED),
        type(cut)(
            at_us=cut.at_us,
            stage=cut.stage,
            message=cut.message,
            counterparts=cut.counterparts,
            reason=cut.reason,
            raw=cut.raw[:-3],
            size=cut.size,
        ),
        see(T0_US + 6, Stage.REJECTED, b"\x01garbage", A, reason=Reason.MALFORMED),
        see(T0_US + 7, Stage.ACCEPTED, short, A, address=address_of(b"other")),
        see(T0_US + 8, Stage.REDELIVERED, short, B),
    ]


def test_only_bytes_that_are_expired_read_and_believed_go(tmp_path):
    lake, manifests = sealed(tmp_path, mixed_pcp())
    ((task, done),) = rewrite(lake, manifests, T0_US + 2 * HOUR)
    assert done.error is None
    old, new = table_of(lake, task.inputs[0].path).to_pylist(), table_of(lake, done.file.path).to_pylist()
    gone = [row["seq"] for row, now in zip(old, new, strict=True) if row["raw"] is not None and now["raw"] is None]
    assert gone == [0, 3]
    assert [{**row, "raw": None} for row in old] == [{**row, "raw": None} for row in new]
    assert (done.removed, done.removed_bytes) == (2, len(old[0]["raw"]) + len(old[3]["raw"]))
    assert done.file.bytes_until_us == T0_US + DAY
    kept = table_of(lake, done.file.retained.path).to_pylist()
    assert [row["message"] for row in kept] == [old[0]["message"], old[3]["message"]]
    assert [row["expires_us"] for row in kept] == [T0_US + HOUR] * 2
    assert {row["sender"] for row in kept} == {A}


@pytest.mark.parametrize("before_us", [T0_US + HOUR, T0_US])
def test_nothing_that_lives_at_the_date_goes_and_nothing_is_written(tmp_path, before_us):
    lake, manifests = sealed(tmp_path, mixed_pcp())
    before = files_in(lake)
    ((task, done),) = rewrite(lake, manifests, before_us)
    assert done.file.path == task.inputs[0].path
    assert (done.removed, done.is_new, done.file.bytes_until_us) == (0, False, T0_US + HOUR)
    assert files_in(lake) == before


def test_a_second_rewriting_keeps_what_the_first_kept(tmp_path, monkeypatch):
    lake, manifests = sealed(tmp_path, mixed_pcp())
    ((_, done),) = rewrite(lake, manifests, T0_US + 2 * HOUR)
    (group,) = plan(manifests)
    again = msgspec.structs.replace(group.replace_with([done.file]), number=1)
    ((later, done_again),) = rewrite(lake, [again], T0_US + 2 * DAY)
    assert (done_again.removed, done_again.file.bytes_until_us) == (1, NEVER_US)
    assert later.inputs == [done.file]
    assert table_of(lake, done_again.file.retained.path).num_rows == 3
    monkeypatch.setattr(rewriting, "READ_ROWS", 1)
    ((_, done_again),) = rewrite(lake, [again], T0_US + 2 * DAY)
    kept = pq.read_metadata(lake / done_again.file.retained.path)
    assert (kept.num_rows, kept.num_row_groups) == (3, 3), "its row groups stay small, however often it is rewritten"


def test_swarm_bytes_go_only_where_the_agreement_is_known(tmp_path):
    rng = random.Random(3)
    seen = [
        see(T0_US + n, Stage.CREATED, swarm_message(rng, T0_US, [bytes([n]) * 8], ttl=ttl))
        for n, ttl in enumerate((1, 600))
    ]
    lake, manifests = sealed(tmp_path, seen, server=PEERS[0])
    ((_, unknown),) = rewrite(lake, manifests, T0_US + DAY)
    assert (unknown.removed, unknown.file.bytes_until_us) == (0, 0)
    agreements = {"test": Agreement(epoch_ms=EPOCH_MS, work_target=1)}
    ((_, done),) = rewrite(lake, manifests, T0_US + HOUR, agreements=agreements)
    (kept,) = table_of(lake, done.file.retained.path).to_pylist()
    assert (done.removed, kept["work_valid"]) == (1, False)
    assert kept["links"][0]["parent"] == bytes(8)
    assert done.file.bytes_until_us == kept["created_us"] + 600 * EPOCH_MS * 1000


def test_won_messages_do_not_expire(tmp_path):
    world = won_world(random.Random(1), 4)
    server, seen = next(iter(world.items()))
    lake, manifests = sealed(tmp_path, seen[:7], seen[7:], server=server)
    for _, done in rewrite(lake, manifests, NEVER_US):
        assert (done.removed, done.file.bytes_until_us) == (0, NEVER_US)


def test_joined_rows_keep_their_order_and_a_row_group(tmp_path):
    lake, manifests = sealed(tmp_path, quiet_pcp(3), quiet_pcp(1, T0_US + HOUR), quiet_pcp(4, T0_US + 2 * HOUR))
    ((task, done),) = rewrite(lake, manifests, 0)
    rows = table_of(lake, done.file.path)
    assert rows.column("seq").to_pylist() == list(range(16))
    assert pq.ParquetFile(lake / done.file.path).num_row_groups == 1
    roots = [bytes.fromhex(file.root) for m in manifests for file in m.files]
    assert (
        task.root
        == done.file.root
        == fold_perfect([fold_perfect([roots[0], fold_perfect(roots[1:3])]), roots[3]]).hex()
    )
    assert done.file.sha256 != manifests[0].files[0].sha256


@pytest.mark.parametrize("column", ["raw", "counterpart", "leaf", "digest", "seq"])
def test_rows_that_were_altered_are_not_rewritten(tmp_path, column):
    lake, manifests = sealed(tmp_path, mixed_pcp())
    path = lake / manifests[0].files[0].path
    rows = table_of(lake, manifests[0].files[0].path).to_pylist()
    new = {"raw": b"X", "counterpart": "pcp://mallory/agent", "leaf": b"", "digest": bytes(32), "seq": 7}
    rows[0][column] = new[column]
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    before = files_in(lake)
    ((_, done),) = rewrite(lake, manifests, T0_US + 2 * HOUR)
    assert "sealed" in done.error
    assert files_in(lake) == before


def test_retained_fields_that_were_altered_are_not_carried_on(tmp_path):
    lake, manifests = sealed(tmp_path, mixed_pcp())
    ((_, done),) = rewrite(lake, manifests, T0_US + 2 * HOUR)
    again = msgspec.structs.replace(plan(manifests)[0].replace_with([done.file]), number=1)
    path = lake / done.file.retained.path
    altered = [row | {"sender": "pcp://mallory/agent"} for row in table_of(lake, done.file.retained.path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(altered, schema=pq.read_schema(path)), path)
    ((_, done_again),) = rewrite(lake, [again], T0_US + 2 * DAY)
    assert done_again.error == f"{done.file.retained.path}: it was altered"


def test_fields_that_were_signed_are_carried_on_with_the_same_key_alone(tmp_path):
    lake, manifests = sealed(tmp_path, mixed_pcp())
    ((_, done),) = rewrite(lake, manifests, T0_US + 2 * HOUR, verifier=COMPACTOR.verifier)

    def carried(retained, **options) -> str | None:
        file = msgspec.structs.replace(done.file, retained=retained)
        again = msgspec.structs.replace(plan(manifests)[0].replace_with([file]), number=1)
        ((_, done_again),) = rewrite(lake, [again], T0_US + 2 * DAY, **options)
        return done_again.error

    signed = sign_retained(done.file.retained, COMPACTOR)
    assert carried(signed, verifier=COMPACTOR.verifier) is None
    assert "no key is given" in carried(signed)
    for retained in (done.file.retained, sign_retained(done.file.retained, signer_of(BROKER))):
        assert UNSIGNED in carried(retained, verifier=COMPACTOR.verifier)
    assert carried(done.file.retained) is None


@pytest.mark.parametrize("damage", ["missing", "cut", "short"])
def test_a_file_that_is_not_whole_gives_an_error_and_leaves_nothing(tmp_path, damage):
    lake, manifests = sealed(tmp_path, quiet_pcp(2), quiet_pcp(2))
    path = lake / manifests[0].files[0].path
    match damage:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:100])
        case "short":
            pq.write_table(table_of(lake, manifests[0].files[0].path).slice(0, 1), path)
    before = files_in(lake)
    ((_, done),) = rewrite(lake, manifests, T0_US + 2 * DAY)
    assert done.error
    assert files_in(lake) == before
    assert not list((lake / SCRATCH).iterdir())


@pytest.mark.parametrize("count", [3, 130])
def test_a_rewritten_file_has_an_index_that_leads_to_its_root(tmp_path, count):
    lake, manifests = sealed(tmp_path, quiet_pcp(count), quiet_pcp(count, T0_US + SECOND))
    tasks = [task for group in plan(manifests) for task in group.tasks if task.is_merge]
    done = Rewriter(store=LocalStore(lake), before_us=0).rewrite(max(tasks, key=lambda task: task.bytes))
    file: SealedFile = done.file
    index = FileIndex.open(LocalStore(lake), BROKER, file)
    messages = table_of(lake, file.path).column("message").to_pylist()
    for message in set(messages):
        rows = [row for first, rows in index.runs_of(message) for row in range(first, first + rows)]
        assert rows == [row for row, other in enumerate(messages) if other == message]
    assert len(index.block_roots()) == file.rows >> BLOCK_LEVEL
    if index.block_roots():
        assert fold_perfect(index.block_roots()).hex() == file.root
