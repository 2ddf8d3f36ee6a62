"""An incremental run computes only what new segments affect, and the tables equal those of one run over everything."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.testing import assertDataFrameEqual

from audit.audit_worlds import (
    ALICE,
    ALICE_CHAT,
    BROKER,
    EPOCH_MS,
    KEYS,
    NODE_A,
    NODE_B,
    PEERS,
    SECOND,
    SETTINGS,
    T0_US,
    A,
    B,
    pcp_frame,
    pcp_world,
    quiet_pcp,
    see,
    swarm_message,
    won_create,
    won_response,
    won_text,
    won_world,
    write_lake,
)
from audit.test_audit_runs import touch_always
from dovetail.audit import schemas, warehouse
from dovetail.audit.fabrics import AUDITS
from dovetail.audit.refresh import Refresh
from dovetail.audit.run import Audit
from dovetail.audit.tables import open_tables, read_runs
from dovetail.audit.transforms.holdings import collect_holdings, holdings
from dovetail.model.address import address_of
from dovetail.model.hop import Reason, Stage
from dovetail.won import compose as c
from report.agreement import assert_pages_agree

LATER = 100 * SECOND
T0 = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)


def world(number: int):
    """Some traffic; each number has its own messages. No swarm: the clocks of its peers are re-estimated."""
    rng, start = random.Random(number), T0_US + number * LATER
    return {
        **pcp_world(rng, 6, first=1 + 1000 * number, start_us=start),
        **won_world(rng, 6, start, creates=number == 0),
    }


def run(spark, root: Path, out: str, **options) -> Path:
    audit = Audit(spark=spark, lake=root / "lake", tables=root / out, settings=SETTINGS, **options)
    audit.run()
    return root / out


ANSWERS = [table.name for table in schemas.TABLES if table.layer != "log"]


def rows_of(out: Path, table: str) -> list[str]:
    rows = open_tables(out).read(table).to_pylist()
    return sorted(repr(sorted((name, value) for name, value in row.items() if name != "run")) for row in rows)


def assert_equal(out: Path, whole: Path) -> None:
    for table in ANSWERS:
        assert rows_of(out, table) == rows_of(whole, table), table


def files_of(out: Path, table: str) -> set[str]:
    return set(DeltaTable(out / table, version=open_tables(out).run.versions[table]).file_uris())


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("local_rows", [0, 1_000_000], ids=["spark", "here"])
def test_a_second_run_replaces_what_has_changed_and_keeps_the_rest(spark, tmp_path, monkeypatch, local_rows):
    monkeypatch.setattr(warehouse, "LOCAL_ROWS", local_rows)
    monkeypatch.setattr(warehouse, "REWRITE_ROWS", local_rows)
    write_lake(tmp_path, world(0))
    out = run(spark, tmp_path, "out", whole_below=0)
    before = {table: files_of(out, table) for table in ("hops", "links", "deliveries")}
    write_lake(tmp_path, world(1))
    run(spark, tmp_path, "out", whole_below=0)
    assert all(before[table] < files_of(out, table) for table in ("hops", "links")), "silver is only appended to"
    assert_each_address_once(out, 2)
    whole = run(spark, tmp_path, "whole")
    assert_equal(out, whole)
    assert rows_of_run(out, 1) != rows_of(whole, "deliveries"), "the first run can still be opened"


def rows_of_run(out: Path, number: int) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in open_tables(out, number).read("deliveries").to_pylist())


def assert_each_address_once(out: Path, runs: int) -> None:
    """Bytes are decoded once, and signatures verified once, whatever the number of runs."""
    assert len(read_runs(out)) == runs
    for table, column in (("decoded", "digest"), ("verdicts", "message")):
        rows = DeltaTable(out / table).to_pyarrow_table()
        assert len(rows) == len(rows[column].unique()), table
        assert len(rows["run"].unique()) == runs, f"each run had new rows of {table}"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_increment_without_a_file_that_is_touched_all_the_time_is_one_of_a_lake_without_it(
    spark, tmp_path, monkeypatch
):
    write_lake(tmp_path, world(0))
    out = run(spark, tmp_path, "out", whole_below=0)
    lake = tmp_path / "lake"
    old = set(lake.rglob("fabric=pcp/*/*.parquet"))
    write_lake(tmp_path, world(1))
    path = min(set(lake.rglob("fabric=pcp/*/*.parquet")) - old)
    with monkeypatch.context() as hostile:
        touch_always(hostile, path)
        run(spark, tmp_path, "out", whole_below=0)
    path.rename(tmp_path / "hidden")
    without = run(spark, tmp_path, "without")
    for table in sorted(set(ANSWERS) - {"integrity", "findings"}):
        assert rows_of(out, table) == rows_of(without, table), table
    for table in ("integrity", "findings"):
        told = [[row for row in open_tables(each).scan(table) if row["server"] != BROKER] for each in (out, without)]
        assert sorted(map(repr, told[0])) == sorted(map(repr, told[1])), table
    (tmp_path / "hidden").rename(path)
    run(spark, tmp_path, "out", whole_below=0)
    assert_equal(out, run(spark, tmp_path, "whole"))


def broker_steps() -> list[list]:
    """An answer, a request and the other half of a cycle arrive late, and a third message with one id."""

    def frames(at: int, *numbers: tuple[int, int | None, list[str]]) -> list:
        each = [pcp_frame(number, targets, reply_to=reply_to) for number, reply_to, targets in numbers]
        return [see(at + i, Stage.ACCEPTED, raw, A) for i, raw in enumerate(each)]

    first = frames(T0_US, (1, None, [B]), (7, None, [B]), (7, None, [A]), (30, 50, [A]), (20, 21, [B]))
    late = [(2, 1, [A]), (7, None, [A, B]), (50, None, [B]), (21, 20, [A])]
    return [first, frames(T0_US + LATER, *late), frames(T0_US + 2 * LATER, (7, None, [B, A]))]


def node_steps() -> tuple[list[list], list[list]]:
    """From the node of alice and that of bob: what completes, contradicts or explains what came before it."""
    ms = T0_US // 1000
    create, again = won_create(ALICE, ALICE_CHAT, ms), won_create(ALICE, ALICE_CHAT, ms + 9)
    logs = [
        c.respond(
            create,
            success=True,
            signer=NODE_A,
            key=KEYS[NODE_A],
            timestamp_ms=ms + step,
            atom=ALICE,
            previous=(again.uri,),
        )
        for step in (1, 2, 3)
    ]
    half, twice, orphan, unseen = (won_text(text, ms) for text in ("half", "twice", "orphan", "unseen"))
    firsts = [won_response(message, NODE_A, ms + 1, first=True) for message in (half, orphan)]
    second = won_response(half, NODE_B, ms + 2, first=False)
    others = [won_response(twice, NODE_A, ms + step, first=True) for step in (1, 2, 3)]

    def made(at: int, *messages) -> list:
        return [see(at, Stage.CREATED, message.raw, address=message.address) for message in messages]

    def taken(at: int, *messages) -> list:
        return [see(at, Stage.ACCEPTED, message.raw, ALICE, address=message.address) for message in messages]

    one, two, three = (T0_US + step * LATER for step in range(3))
    sent = see(two, Stage.FORWARDED, b"", NODE_B, address=unseen.address, keep=False)
    at_a = [
        [*taken(one, half, twice), *made(one + 1, *firsts, *others[:2], logs[0])],
        [*taken(two, orphan, unseen, create), sent, *made(two + 1, others[2], logs[1]), *taken(two + 2, second)],
        [*taken(three, again), *made(three + 1, logs[2])],
    ]
    return at_a, [taken(one, half), made(two, second), taken(three, won_text("later", ms))]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_comes_late_gives_what_it_would_have_given_at_once(spark, tmp_path, monkeypatch):
    rng = random.Random(5)
    parent = swarm_message(rng, T0_US, [])
    child = swarm_message(rng, T0_US + SECOND, [bytes(address_of(parent))])
    in_swarm = [
        [see(T0_US + SECOND, Stage.CREATED, child)],
        [see(T0_US + LATER, Stage.ACCEPTED, parent, "udp://x")],
        [],
    ]
    at_a, at_b = node_steps()
    at_broker = broker_steps()
    found, states = [], []
    for step in range(3):
        world = {BROKER: at_broker[step], NODE_A: at_a[step], NODE_B: at_b[step], PEERS[0]: in_swarm[step]}
        write_lake(tmp_path, world)
        with monkeypatch.context() as patch:
            if step:
                patch.setattr(Refresh, "whole", lambda self: pytest.fail("nothing that all rows share has changed"))
            out = run(spark, tmp_path, "out", whole_below=0)
        forks = open_tables(out).read("forks").to_pylist()
        found.append(sorted((fork["kind"], len(fork["evidence"])) for fork in forks))
        states.append(sorted(row["state"] for row in open_tables(out).read("chains").to_pylist()))
    assert_each_address_once(out, 3)
    whole = run(spark, tmp_path, "whole")
    assert_equal(out, whole)
    assert_pages_agree(out)
    two, three = ("conflicting_response", 2), ("conflicting_response", 3)
    assert found == [
        [two, ("shared_id", 2)],
        [two, three, ("cycle", 2), ("forked_log", 2), ("shared_id", 3)],
        [three, three, ("cycle", 2), ("forked_log", 3), ("shared_id", 4), ("two_creates", 2)],
    ]
    assert states[0].count("orphan_response") == 4
    assert states[1].count("orphan_response") == 0
    assert not open_tables(out).read("gaps").filter(pc.field("fabric") == "swarm").num_rows
    lost = open_tables(out).read("deliveries").filter(pc.field("outcome") == "lost")
    assert lost["type"].to_pylist() == ["ConnectionMessage"], "loss_timeout was over with the third step"


@pytest.mark.timeout(900)
def test_time_alone_ends_what_is_under_way(spark, tmp_path, monkeypatch):
    """There are no new hops of messages whose lifetime ends between two runs: their outcomes stay."""
    rng = random.Random(6)
    elsewhere = "swarm://elsewhere/" + "0" * 40
    brief, lasting = (swarm_message(rng, T0_US, [], ttl=ttl) for ttl in (1, 600))
    referring = swarm_message(rng, T0_US + SECOND, [bytes(address_of(brief))], ttl=600)
    silent = [pcp_frame(number, [B], expires_us=T0_US + LATER // 2) for number in (1, 2)]
    unseen, other, last = (won_text(text, T0_US // 1000) for text in ("unseen", "other", "last"))
    write_lake(
        tmp_path,
        {
            BROKER: [
                *(see(T0_US, Stage.ACCEPTED, raw, A) for raw in silent),
                see(T0_US + 1, Stage.DELIVERED, silent[1], B, keep=False),
            ],
            PEERS[0]: [see(T0_US, Stage.CREATED, raw) for raw in (brief, lasting)],
            PEERS[1]: [see(T0_US + 1, Stage.PULLED, brief, keep=False)],
            elsewhere: [see(T0_US + SECOND, Stage.CREATED, referring)],
            NODE_A: [
                see(T0_US, Stage.ACCEPTED, unseen.raw, ALICE, address=unseen.address),
                see(T0_US + 1, Stage.FORWARDED, b"", NODE_B, address=unseen.address, keep=False),
            ],
            NODE_B: [see(T0_US, Stage.ACCEPTED, other.raw, ALICE, address=other.address)],
        },
    )
    out = run(spark, tmp_path, "out", whole_below=0)
    waiting = [*IN_SWARM, *[("swarm", "in_flight")] * 2, *[("won", "in_flight")] * 2]
    assert outcomes_of(out) == [("pcp", "handed_over"), ("pcp", "in_flight"), *waiting]
    assert open_tables(out).read("gaps")["unexpired"].to_pylist() == [True]

    write_lake(tmp_path, {BROKER: [see(T0_US + EPOCH_MS * 2000, Stage.ACCEPTED, pcp_frame(3, [B]), A)]})
    with monkeypatch.context() as patch:
        patch.setattr(Refresh, "whole", lambda self: pytest.fail("nothing that all rows share has changed"))
        run(spark, tmp_path, "out", whole_below=0)
    ended = [("pcp", "handed_over"), ("pcp", "in_flight"), ("pcp", "no_outcome")]
    ended += [*IN_SWARM, ("swarm", "in_flight"), ("swarm", "unreported")]
    assert outcomes_of(out) == [*ended, *[("won", "in_flight")] * 2], "the next node's journal does not go that far"
    assert open_tables(out).read("gaps")["unexpired"].to_pylist() == [False]

    later = swarm_message(rng, T0_US, [], ttl=600)
    late = see(T0_US + EPOCH_MS * 1900, Stage.ACCEPTED, last.raw, ALICE, address=last.address)
    write_lake(tmp_path, {NODE_B: [late], PEERS[1]: [see(late.at_us, Stage.REJECTED, later, reason=Reason.TRUNCATED)]})
    with monkeypatch.context() as patch:
        patch.setattr(Refresh, "whole", lambda self: pytest.fail("nothing that all rows share has changed"))
        run(spark, tmp_path, "out", whole_below=0)
    outcomes = outcomes_of(out)
    assert ("won", "lost") in outcomes, "it is lost before the audit's time moves"
    whole = run(spark, tmp_path, "whole")
    assert_equal(out, whole)


def test_a_lake_of_one_fabric_whose_servers_send_each_other_nothing(spark, tmp_path):
    tmp_path = tmp_path / "odd {a,b} *?"  # no path is a pattern
    tmp_path.mkdir()
    write_lake(tmp_path, {BROKER: quiet_pcp(2)})
    out = run(spark, tmp_path, "out", whole_below=0)
    whole = jobs_of(spark)
    write_lake(tmp_path, {BROKER: quiet_pcp(1, T0_US + LATER, 50)})
    run(spark, tmp_path, "out", whole_below=0)
    assert outcomes_of(out) == [("pcp", "handed_over")] * 3
    assert open_tables(out).count("skew") == 0
    assert jobs_of(spark) - whole <= 13, "what has no rows is not planned, and what has some is planned once"
    again = jobs_of(spark)
    run(spark, tmp_path, "out", whole_below=0)
    assert jobs_of(spark) == again, "nothing is new"


def jobs_of(spark) -> int:
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


IN_SWARM = [("swarm", "delivered")] * 3


def outcomes_of(out: Path) -> list[tuple[str, str]]:
    rows = open_tables(out).read("deliveries").to_pylist()
    return sorted((row["fabric"], row["outcome"]) for row in rows)


def test_a_column_for_each_peer_gives_what_collecting_gives(spark):
    hops = [
        ("swarm://s/a", "created", 5, b"1", None),
        ("swarm://s/b", "accepted", 5, b"1", None),
        ("swarm://s/b", "accepted", 3, b"1", None),
        ("swarm://s/b", "rejected", 9, b"1", "too_large"),
        ("swarm://s/a", "rejected", 4, b"2", "truncated"),
        ("swarm://s/a", "rejected", 4, b"2", None),
        ("swarm://s/a", "forwarded", 1, b"3", None),
        ("swarm://s/b", "rejected", -7, b"4", "lifetime_over"),
    ]
    rows = [
        ("swarm", server, seq, T0 + dt.timedelta(microseconds=us), stage, message * 32, None, reason, 1, False, True, 1)
        for seq, (server, stage, us, message, reason) in enumerate(hops)
    ]
    known = [
        {"fabric": "swarm", "message": m * 32, "key": m * 8, "created": T0, "work_valid": m == b"1"}
        for m in (b"1", b"5")
    ]
    names = schemas.MESSAGES.schema.names
    messages = spark.createDataFrame([tuple(row.get(name) for name in names) for row in known], schemas.MESSAGES.schema)
    seen = spark.createDataFrame(rows, schemas.HOPS.schema)
    columns = holdings(seen, messages, audits=AUDITS, servers={"swarm": ["swarm://s/a", "swarm://s/b"]})
    assertDataFrameEqual(columns, collect_holdings(seen, messages, audits=AUDITS), ignoreNullable=True)
    assert columns.count() == 4
