"""Which forks are replaced after some messages were touched."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from dovetail.audit import schemas
from dovetail.audit.jobs.contradictions import has_backward_edges, replace_forks
from dovetail.audit.transforms.forks import AGAINST_TIME, CYCLE
from dovetail.pcp.fabric import SHARED_ID
from dovetail.won.fabric import CONFLICTING_RESPONSE

TOUCHED = pa.table({"fabric": ["pcp"], "message": pa.array([b"t"], pa.binary())})


def forks(*rows: tuple[str, str, bytes, list[bytes]]) -> pa.Table:
    schema = to_arrow_schema(schemas.FORKS.schema, timezone="UTC")
    named = [
        {"fabric": fabric, "kind": kind, "subject": subject, "evidence": evidence}
        for fabric, kind, subject, evidence in rows
    ]
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in named], schema)


def replaced(present: pa.Table, made: pa.Table) -> tuple[list[list[bytes]], list[list[bytes]]]:
    kept, new = replace_forks(present, made, TOUCHED)
    return kept["evidence"].to_pylist(), new["evidence"].to_pylist()


def test_a_group_that_has_grown_takes_the_place_of_the_smaller_one():
    present = forks(("pcp", SHARED_ID, b"s", [b"a", b"b"]), ("pcp", SHARED_ID, b"z", [b"y", b"z"]))
    made = forks(("pcp", SHARED_ID, b"s", [b"a", b"b", b"t"]), ("pcp", SHARED_ID, b"z", [b"y"]))
    assert replaced(present, made) == ([[b"y", b"z"]], [[b"a", b"b", b"t"]])


def test_other_groups_about_the_same_subject_are_made_again_with_it():
    present = forks(
        ("pcp", CONFLICTING_RESPONSE, b"s", [b"a", b"b"]), ("pcp", CONFLICTING_RESPONSE, b"s", [b"c", b"t"])
    )
    made = forks(("pcp", CONFLICTING_RESPONSE, b"s", [b"a", b"b"]), ("pcp", CONFLICTING_RESPONSE, b"s", [b"c", b"t"]))
    assert replaced(present, made) == ([], [[b"a", b"b"], [b"c", b"t"]])


def test_a_pair_is_replaced_by_its_own_messages_alone():
    present = forks(("pcp", CYCLE, b"s", [b"s", b"t"]), ("pcp", CYCLE, b"s", [b"s", b"u"]))
    made = forks(("pcp", AGAINST_TIME, b"t", [b"t", b"a"]), ("pcp", CYCLE, b"s", [b"s", b"v"]))
    assert replaced(present, made) == ([[b"s", b"u"]], [[b"t", b"a"]])


def test_the_same_bytes_in_another_fabric_are_another_message():
    present = forks(("swarm", CYCLE, b"s", [b"s", b"t"]))
    assert replaced(present, forks()) == ([[b"s", b"t"]], [])


def test_edges_without_both_times_are_not_backward():
    times = pa.timestamp("us")
    for parent, child, is_backward in ((2, 3, False), (3, 3, True), (None, 3, False)):
        edges = pa.table({"parent_created": pa.array([parent], times), "child_created": pa.array([child], times)})
        assert has_backward_edges(edges) is is_backward
