from __future__ import annotations

import base64

import pyarrow as pa

from dovetail.audit.tables import Tables
from dovetail.report.evidence import HopSeen, read_hops, read_messages
from dovetail.report.findings import MAX_HOPS_PER_TRACE, addresses_of, encode_findings, order_findings
from dovetail.report.text import name_address
from report.sample_tables import after
from tables_on_disk import SCHEMAS


def rows(*given: dict[str, object]) -> pa.Table:
    full = [{**dict.fromkeys(SCHEMAS["findings"].names), "check": "c", "severity": "error", **row} for row in given]
    return pa.Table.from_pylist(full, schema=SCHEMAS["findings"])


def test_the_worst_come_first_and_the_limit_cuts_the_least() -> None:
    table = rows({"severity": "note"}, {"severity": "error", "detail": "b"}, {"severity": "warning"})
    assert order_findings(table)["severity"].to_pylist() == ["error", "warning", "note"]
    assert order_findings(table, 1)["detail"].to_pylist() == ["b"]


def servers_of(hops, message):
    return {hop.server for hop in hops.get(message, [])}


def test_what_is_encoded_can_be_read_back(tables: Tables) -> None:
    table = order_findings(tables.read("findings"))
    addresses = addresses_of(table)
    hops = read_hops(tables, addresses)
    found = encode_findings(table, read_messages(tables, addresses), hops, total=table.num_rows)
    columns = found["findings"]
    for index, row in enumerate(table.to_pylist()):
        assert found["checks"][columns["check"][index]] == [row["check"], row["severity"]]
        assert found["texts"][columns["detail"][index]] == row["detail"]
        place = columns["message"][index]
        address = None if place < 0 else base64.b64decode(found["addresses"][place] + "=")
        assert address == row["message"]
        if address is not None:
            assert found["names_of"].get(place, address.hex()) == name_address(address, row["fabric"] or "")
        server = columns["server"][index]
        where = None if server < 0 else found["texts"][server]
        assert where == row["server"] if row["server"] else where in {None, *servers_of(hops, row["message"])}
        assert columns["seq"][index] == row["seq"]
        assert found["epoch"] + columns["at"][index] == int(row["at"].timestamp() * 1e6)
    assert any(name.startswith("wm:/Qm") for name in found["names_of"].values())
    assert len(found["texts"]) == len(set(found["texts"]))
    assert len(found["hops"]["of"]) > 0


def test_nothing_found_is_encoded_too() -> None:
    found = encode_findings(rows(), {}, {}, total=0)
    assert found["total"] == 0
    assert found["addresses"] == []


def test_a_message_with_very_many_hops_says_how_many_are_left_out() -> None:
    message = b"m" * 32
    hops = {message: [HopSeen("s", seq, seq, "accepted", None, None) for seq in range(MAX_HOPS_PER_TRACE + 5)]}
    found = encode_findings(rows({"message": message, "at": after(0)}), {}, hops, total=1)
    assert len(found["hops"]["of"]) == MAX_HOPS_PER_TRACE
    assert found["hops"]["cut"] == [[0, MAX_HOPS_PER_TRACE + 5]]


def test_texts_of_peers_are_made_visible_and_cut() -> None:
    found = encode_findings(rows({"detail": "a\u202eb", "server": "y" * 10_240}), {}, {}, total=1)
    assert "a\\u202eb" in found["texts"]
    assert max(map(len, found["texts"])) < 400
