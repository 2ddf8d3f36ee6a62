"""The comparison reads the tables: what is absent is not found, what no fault explains is a false alarm."""

import pytest

from demo.demo_tables import address, fault, write_tables
from dovetail.demo.comparison import MAY_TRIP, compare
from dovetail.demo.evidence import FINDERS, Tables
from dovetail.demo.faults import Kind, Ledger, Sent

LATE = address("late")


def expired(**more):
    return fault(Kind.EXPIRED, messages=(LATE.hex(),), recipient="pcp://a/agent", **more)


def delivery(message, outcome, reason=None, recipient="pcp://a/agent", fabric="pcp"):
    return {"fabric": fabric, "message": message, "recipient": recipient, "outcome": outcome, "reason": reason}


def finding(check, message=None, *, severity="warning", server=None, detail=""):
    return {"check": check, "severity": severity, "server": server, "message": message, "detail": detail}


def compared(path, ledger, **rows):
    return compare(ledger, Tables(write_tables(path / "tables", **rows)))


def test_every_kind_of_fault_has_a_way_to_be_found_and_checks_it_may_trip():
    assert set(FINDERS) == set(MAY_TRIP) == set(Kind)


def test_a_fault_that_the_tables_show_is_found_and_explains_its_alarms(tmp_path):
    comparison = compared(
        tmp_path,
        Ledger(faults=[expired()]),
        deliveries=[delivery(LATE, "expired", "lifetime_over")],
        findings=[finding("delivery.expired", LATE), finding("chain.failed", LATE)],
    )
    assert comparison.is_fine
    assert comparison.verdict == "found 1 of 1, 0 false alarms"
    assert (comparison.lines[0].found, comparison.lines[0].row[:12]) == ("deliveries", LATE.hex()[:12])


@pytest.mark.parametrize(
    "row",
    [
        delivery(LATE, "delivered"),
        delivery(LATE, "expired", "redelivery_overflow"),
        delivery(address("other"), "expired", "lifetime_over"),
        delivery(LATE, "expired", "lifetime_over", recipient="pcp://b/agent"),
    ],
)
def test_a_fault_that_the_tables_do_not_show_is_not_found(tmp_path, row):
    comparison = compared(tmp_path, Ledger(faults=[expired()]), deliveries=[row])
    assert comparison.verdict == "found 0 of 1, 0 false alarms"
    assert not comparison.is_fine
    assert comparison.lines[0].found is None


@pytest.mark.parametrize(
    "alarm",
    [
        finding("delivery.expired", address("other")),
        finding("delivery.lost", LATE, severity="error"),
        finding("integrity.altered_row", severity="error", server="pcp://broker/server"),
    ],
)
def test_an_alarm_that_no_fault_explains_is_false(tmp_path, alarm):
    comparison = compared(
        tmp_path,
        Ledger(faults=[expired()]),
        deliveries=[delivery(LATE, "expired", "lifetime_over")],
        findings=[alarm],
    )
    assert comparison.verdict == "found 1 of 1, 1 false alarm"
    assert not comparison.is_fine


@pytest.mark.parametrize(
    "check", ["delivery.expired", "delivery.overdue", "delivery.no_outcome", "delivery.unreported"]
)
def test_a_message_whose_delivery_was_altered_may_look_as_if_it_never_arrived(tmp_path, check):
    changed = fault(Kind.CHANGED_BYTE, server="pcp://broker/server", file="f", seq=7, tampered=(LATE.hex(),))
    comparison = compared(tmp_path, Ledger(faults=[changed]), findings=[finding(check, LATE)])
    assert comparison.false_alarms == []


def test_a_note_is_no_alarm(tmp_path):
    note = finding("delivery.rejected", address("other"), severity="note")
    assert compared(tmp_path, Ledger(), findings=[note]).is_fine


def test_pcp_messages_are_known_by_their_ids(tmp_path):
    dead = fault(Kind.DEAD_AGENT, ids=("id-1", "id-2"), recipient="pcp://drone/drone")
    known = [{"fabric": "pcp", "message": address(text), "id": f"id-{text}"} for text in "12"]
    rows = [delivery(address(text), "undeliverable", "no_recipient", "pcp://drone/drone") for text in "12"]
    assert compared(tmp_path / "all", Ledger(faults=[dead]), messages=known, deliveries=rows).is_fine
    assert compared(tmp_path / "one", Ledger(faults=[dead]), messages=known, deliveries=rows[:1]).found == 0


def test_what_was_sent_in_good_order_must_have_arrived(tmp_path):
    ledger = Ledger(sent=Sent(pcp={"one": 1, "all": 2}, won=[address("w").hex()], swarm=[address("s").hex()]))
    tables = {
        "messages": [{"fabric": "pcp", "message": address(text), "id": text} for text in ("one", "all")],
        "chains": [{"message": address("w"), "kind": "connection", "state": "complete", "only_at": []}],
        "coverage": [{"scope": "peer", "peer": f"swarm://x/{n}", "holders": 1, "lacking": 0} for n in "12"],
        "deliveries": [
            delivery(address("one"), "delivered"),
            delivery(address("all"), "delivered"),
            delivery(address("all"), "delivered", recipient="pcp://b/agent"),
            *(delivery(address("s"), "delivered", None, f"swarm://x/{n}", "swarm") for n in "12"),
        ],
    }
    fine = compared(tmp_path / "fine", ledger, **tables)
    assert (fine.sent, fine.arrived, fine.is_fine) == (4, 4, True)
    tables["chains"][0]["state"] = "awaiting_recipient"
    tables["deliveries"] = [
        row for row in tables["deliveries"] if row["recipient"] not in ("pcp://b/agent", "swarm://x/2")
    ]
    bad = compared(tmp_path / "bad", ledger, **tables)
    assert (bad.arrived, bad.is_fine) == (1, False)
    assert [alarm.split(":")[0].split()[0] for alarm in bad.false_alarms] == ["pcp", "won", "swarm"]


def test_hops_that_were_removed_excuse_their_own_messages_only(tmp_path):
    lost = fault(
        Kind.REMOVED_FILE, fabric="swarm", server="swarm://x/1", file="f.parquet", seq=0, tampered=(address("s").hex(),)
    )
    broken = {"check": "integrity.missing_file", "file": "f.parquet", "seq": 0, "detail": "gone"}
    tables = {
        "integrity": [{"server": "swarm://x/1", "verdict": "broken", "breaks": [broken]}],
        "findings": [
            finding("integrity.missing_file", server="swarm://x/1", severity="error", detail="f.parquet: gone"),
            finding(
                "gap.server",
                address("c"),
                server="swarm://x/1",
                detail=f"lacks {address('s').hex()[:16]}, which 2 have",
            ),
        ],
    }
    assert compared(tmp_path / "own", Ledger(faults=[lost]), **tables).is_fine
    tables["findings"] += [
        finding(
            "gap.server", address("c"), server="swarm://x/2", detail=f"lacks {address('s').hex()[:16]}, which 2 have"
        ),
        finding(
            "gap.server", address("c"), server="swarm://x/1", detail=f"lacks {address('t').hex()[:16]}, which 2 have"
        ),
        finding("integrity.missing_file", server="swarm://x/1", severity="error", detail="g.parquet: gone"),
    ]
    assert len(compared(tmp_path / "more", Ledger(faults=[lost]), **tables).false_alarms) == 3


def test_an_altered_row_was_all_that_said_that_its_message_arrived(tmp_path):
    altered = fault(Kind.CHANGED_BYTE, server="pcp://broker/server", file="f", seq=3, tampered=(LATE.hex(),))
    one = {"check": "integrity.altered_row", "file": "f", "seq": 3, "detail": ""}
    rows = [{"server": "pcp://broker/server", "verdict": "broken", "breaks": [one]}]
    alarms = [finding("delivery.expired", LATE), finding("delivery.expired", address("other"))]
    assert compared(tmp_path / "own", Ledger(faults=[altered]), integrity=rows, findings=alarms[:1]).is_fine
    assert not compared(tmp_path / "other", Ledger(faults=[altered]), integrity=rows, findings=alarms).is_fine
