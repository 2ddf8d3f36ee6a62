"""Each check finds its fault, and nothing in a good journal."""

import pytest

from dovetail.model.address import address_of
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.sim.invariants import (
    GENERAL,
    check_bytes_once,
    check_journals,
    check_one_server,
    check_origin,
    check_reasons,
    check_sequence,
    check_taken_once,
    check_time,
)


def hop(seq, stage=Stage.ACCEPTED, text="m", **fields):
    fields = {"server": "swarm://test/a", "fabric": "swarm", "at_us": seq} | fields
    return Hop(seq=seq, stage=stage, message=address_of(text.encode()), **fields)


GOOD = [
    hop(0, raw=b"m", size=1, counterpart="b"),
    hop(1, Stage.DELIVERED, counterpart="c", at_us=0),
    hop(2, Stage.DELIVERED, counterpart="d"),
    hop(3, Stage.CREATED, "own"),
    hop(4, Stage.FORWARDED, "own", counterpart="b"),
    hop(5, Stage.FORWARDED, "own", counterpart="b"),
    hop(6, Stage.REJECTED, "bad", reason=Reason.MALFORMED),
    hop(7, Stage.PULLED, "missing"),
]


def test_good_journal_gives_no_finding():
    assert check_journals([GOOD, []], [*GENERAL, check_taken_once]) == []


@pytest.mark.parametrize(
    ("check", "hops", "rule", "seqs"),
    [
        (check_sequence, [hop(0), hop(2), hop(3)], "sequence", [2, 3]),
        (check_sequence, [hop(1)], "sequence", [1]),
        (check_time, [hop(0, at_us=5), hop(1, at_us=4), hop(2, at_us=5)], "time", [1]),
        (check_one_server, [hop(0), hop(1, server="swarm://test/b")], "one_server", [1]),
        (check_one_server, [hop(0), hop(1, fabric="pcp")], "one_server", [1]),
        (check_bytes_once, [hop(0, raw=b"m"), hop(1, raw=b"m")], "bytes_once", [1]),
        (check_bytes_once, [hop(0, size=9), hop(1, raw=b"m")], "bytes_once", [1]),
        (check_reasons, [hop(0, Stage.REJECTED)], "reasons", [0]),
        (check_origin, [hop(0, Stage.DELIVERED), hop(1)], "origin", [0]),
        (check_origin, [hop(0, text="other"), hop(1, Stage.FORWARDED)], "origin", [1]),
        (check_origin, [hop(0, Stage.REJECTED), hop(1, Stage.SERVED)], "origin", [1]),
        (check_taken_once, [hop(0), hop(1)], "taken_once", [1]),
        (check_taken_once, [hop(0, Stage.CREATED), hop(1)], "taken_once", [1]),
        (
            check_taken_once,
            [hop(0), hop(1, Stage.DELIVERED, counterpart="x"), hop(2, Stage.DELIVERED, counterpart="x")],
            "taken_once",
            [2],
        ),
    ],
)
def test_check_finds_its_fault_and_names_the_hop(check, hops, rule, seqs):
    findings = check(hops)
    assert [(finding.rule, finding.seq) for finding in findings] == [(rule, seq) for seq in seqs]
    assert findings == check_journals({"a": hops}, [check])


def test_general_checks_run_over_all_journals():
    bad = [hop(1, Stage.REJECTED, server="swarm://test/b")]
    findings = check_journals({"a": GOOD, "b": iter(bad)})
    assert [(finding.rule, finding.server) for finding in findings] == [
        ("sequence", "swarm://test/b"),
        ("reasons", "swarm://test/b"),
    ]
