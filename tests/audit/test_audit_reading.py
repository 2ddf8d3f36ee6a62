"""Looking into tables without Spark: filters, stories and alerts over small Parquet files."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.audit.alerts import Alerts
from dovetail.audit.message_trace import find_address
from dovetail.audit.reading import count_rows, equals, has_prefix, open_table, scan, table_names
from dovetail.cli.main import main
from dovetail.model.address import Address, parse_prefix, won_uri
from dovetail.model.errors import PipelineError

T0 = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)


def write_table(out, name, rows):
    (out / "_state").mkdir(parents=True, exist_ok=True)
    (out / name).mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), out / name / "part.parquet")


@pytest.fixture
def out(tmp_path):
    rows = [
        {"message": bytes([first, 1]), "n": number, "at": T0} for number, first in enumerate((0x00, 0x7F, 0xFF, 0xFF))
    ]
    write_table(tmp_path, "hops", rows)
    return tmp_path


def test_rows_come_as_plain_values(out):
    row = next(scan(out, "hops"))
    assert row == {"message": "0001", "n": 0, "at": "2026-11-15T12:00:00.000000Z"}


@pytest.mark.parametrize(
    ("prefix", "numbers"), [(b"", [0, 1, 2, 3]), (b"\x00", [0]), (b"\x7f\x01", [1]), (b"\xff", [2, 3]), (b"\x10", [])]
)
def test_a_prefix_finds_all_that_begin_with_it(out, prefix, numbers):
    assert [row["n"] for row in scan(out, "hops", has_prefix("message", prefix))] == numbers


def test_a_message_is_found_by_any_beginning_of_its_address(tmp_path):
    known = [Address(bytes([0xAB, second]) + bytes(30)) for second in (0x10, 0x1F, 0x20)]
    write_table(tmp_path, "hops", [{"message": address} for address in known])
    for address in known:
        whole, uri = address.hex(), won_uri(address)
        for text in (
            *(whole[:length] for length in range(4, 65)),
            *(uri[:length] for length in range(12, len(uri) + 1)),
        ):
            assert find_address(tmp_path, parse_prefix(text)) == address
    for text in ("ab1", "AB1", "ab", "", "wm:/Qm"):
        with pytest.raises(
            PipelineError, match=f"several messages begin with {text.lower() if ':' not in text else text}"
        ):
            find_address(tmp_path, parse_prefix(text))
    with pytest.raises(PipelineError, match="no message begins with ab3"):
        find_address(tmp_path, parse_prefix("ab3"))


def test_a_limit_and_conditions_by_type(out):
    assert len(list(scan(out, "hops", limit=2))) == 2
    assert [row["n"] for row in scan(out, "hops", equals(out, "hops", {"message": "ff", "n": "3"}))] == [3]


def test_a_table_that_is_cut_says_so(out, capsys):
    assert main(["audit", "show", "hops", "--out", str(out), "--limit", "3"]) == 0
    assert capsys.readouterr().err == "3 of 4 rows; --limit 0 prints all\n"
    for limit in ("0", "4"):
        assert main(["audit", "show", "hops", "--out", str(out), "--limit", limit]) == 0
        assert capsys.readouterr().err == ""


def test_what_is_not_there_is_named(out, tmp_path):
    assert (table_names(out), count_rows(out, "hops")) == (["hops"], 4)
    with pytest.raises(PipelineError, match="there is no table 'nothing'; there are hops"):
        open_table(out, "nothing")
    with pytest.raises(PipelineError, match="no column 'x'"):
        equals(out, "hops", {"x": "1"})
    with pytest.raises(PipelineError, match="holds no audit"):
        table_names(tmp_path / "elsewhere")


def test_a_batch_that_was_not_finished_does_not_count(out):
    for number in (0, 1):
        (out / "links" / f"batch={number:09d}").mkdir(parents=True)
        rows = pa.Table.from_pylist([{"n": number}])
        pq.write_table(rows, out / "links" / f"batch={number:09d}" / "part.parquet")
    (out / "_state" / "batches").mkdir()
    with pytest.raises(PipelineError, match="'links' has no files yet"):
        open_table(out, "links")
    (out / "_state" / "batches" / "000000000.json").touch()
    assert [row["n"] for row in scan(out, "links")] == [0]
    (out / "_state" / "batches" / "000000001.json").touch()
    assert count_rows(out, "links") == 2


def finding(check, severity="error", **more):
    row = {"check": check, "severity": severity, "server": "s", "message": None, "seq": 1, "detail": "d"}
    return row | more


def test_each_finding_is_told_once_and_again_when_it_comes_back(tmp_path):
    told = []
    alerts = Alerts(tmp_path, told.append)
    broken = finding("integrity.altered_row")
    write_table(tmp_path, "findings", [broken, finding("delivery.rejected", "note")])
    assert (alerts.update(), alerts.update()) == (1, 0)
    write_table(tmp_path, "findings", [broken, finding("fork.shared_id", message=b"x")])
    assert Alerts(tmp_path, told.append).update() == 1
    write_table(tmp_path, "findings", [finding("fork.shared_id", message=b"x")])
    assert alerts.update() == 0
    write_table(tmp_path, "findings", [broken])
    assert alerts.update() == 1
    assert [item["check"] for item in told] == ["integrity.altered_row", "fork.shared_id", "integrity.altered_row"]


def chain(message: bytes, state: str, begun: dt.datetime):
    row = {"fabric": "won", "message": message, "type": "ConnectMessage", "sender": "alice", "state": state}
    return row | {"begun": begun}


def test_a_chain_that_waits_is_told_when_its_time_is_over_though_nothing_new_came(tmp_path):
    told = []
    alerts = Alerts(tmp_path, told.append, overdue_us=30_000_000)
    write_table(tmp_path, "findings", [finding("delivery.rejected", "note")])
    begun = {b"a": T0, b"b": T0 + dt.timedelta(seconds=20), b"c": T0}
    states = {b"a": "awaiting_recipient", b"b": "awaiting_sender", b"c": "complete"}
    write_table(tmp_path, "chains", [chain(name, states[name], begun[name]) for name in begun])
    (tmp_path / "_state" / "run.json").touch()
    assert alerts.update(T0 + dt.timedelta(seconds=29)) == 0
    assert alerts.update(T0 + dt.timedelta(seconds=31)) == 1
    assert alerts.update(T0 + dt.timedelta(seconds=32)) == 0
    assert Alerts(tmp_path, told.append, overdue_us=30_000_000).update(T0 + dt.timedelta(seconds=60)) == 1
    assert [(item["check"], item["message"]) for item in told] == [
        ("chain.incomplete", b"a".hex()),
        ("chain.incomplete", b"b".hex()),
    ]


def test_the_finding_of_the_tables_is_the_one_that_was_told(tmp_path):
    told = []
    alerts = Alerts(tmp_path, told.append, overdue_us=0)
    write_table(tmp_path, "findings", [finding("delivery.rejected", "note")])
    write_table(tmp_path, "chains", [chain(b"a", "awaiting_sender", T0)])
    (tmp_path / "_state" / "run.json").touch()
    assert alerts.update(T0 + dt.timedelta(seconds=1)) == 1
    detail = "awaiting_sender ConnectMessage from alice"
    same = finding("chain.incomplete", "warning", server=None, message=b"a", seq=None, detail=detail)
    write_table(tmp_path, "findings", [same])
    assert alerts.update(T0 + dt.timedelta(seconds=2)) == 0
    assert told[0]["detail"] == detail


def test_a_file_that_was_cut_is_one_line(out, capsys):
    path = out / "hops" / "part.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["audit", "show", "hops", "--out", str(out)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "hops cannot be read: " in line


def test_a_file_that_is_damaged_inside_is_one_line(out):
    path = out / "hops" / "part.parquet"
    pq.write_table(pa.table({"text": [f"{number}" * 9 for number in range(5000)]}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(PipelineError, match="hops cannot be read"):
        list(scan(out, "hops"))
