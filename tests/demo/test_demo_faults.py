import json

from demo.demo_tables import fault
from dovetail.demo.faults import Kind, Ledger, Sent


def test_faults_are_listed_by_kind_whenever_they_were_injected():
    ledger = Ledger()
    for kind in (Kind.REMOVED_FILE, Kind.EXPIRED, Kind.LOST_RESPONSE):
        ledger.note(fault(kind))
    assert [each.kind for each in ledger.in_order()] == [Kind.EXPIRED, Kind.LOST_RESPONSE, Kind.REMOVED_FILE]


def test_the_ledger_is_written_for_people(tmp_path):
    ledger = Ledger(sent=Sent(pcp={"id": 3}, won=["aa"]), faults=[fault(Kind.EXPIRED, messages=("bb",))])
    ledger.save(tmp_path / "faults.json")
    written = json.loads((tmp_path / "faults.json").read_text())
    assert written["faults"][0]["kind"] == "expired"
    assert written["sent"]["pcp"] == {"id": 3}
