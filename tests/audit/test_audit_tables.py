"""Reading tables without Spark: filters, traces and alerts over small Parquet files."""

from __future__ import annotations

import datetime as dt

import pytest

from dovetail.audit.alerts import Alerts
from dovetail.audit.message_trace import find_address
from dovetail.audit.tables import lies_in, open_tables
from dovetail.cli.main import main
from dovetail.model.address import Address, parse_name, parse_prefix, won_uri
from dovetail.model.errors import PipelineError, UsageError
from tables_on_disk import write_tables

T0 = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)


def write_table(out, name, rows):
    return write_tables(out, {name: rows})


@pytest.fixture
def out(tmp_path):
    rows = [
        {"message": bytes([first, 1]), "seq": number, "at": T0} for number, first in enumerate((0x00, 0x7F, 0xFF, 0xFF))
    ]
    return write_table(tmp_path, "hops", rows)


def test_rows_come_as_plain_values(out):
    row = next(open_tables(out).scan("hops"))
    said = {name: value for name, value in row.items() if value is not None}
    assert said == {"message": "0001", "seq": 0, "at": "2026-11-15T12:00:00.000000Z"}


@pytest.mark.parametrize(
    ("prefix", "numbers"), [(b"", [0, 1, 2, 3]), (b"\x00", [0]), (b"\x7f\x01", [1]), (b"\xff", [2, 3]), (b"\x10", [])]
)
def test_a_prefix_finds_all_that_begin_with_it(out, prefix, numbers):
    assert [
        row["seq"] for row in open_tables(out).scan("hops", lies_in("message", parse_prefix(prefix.hex())))
    ] == numbers


def test_a_message_is_found_by_any_beginning_of_its_address(tmp_path):
    known = [Address(bytes([0xAB, second]) + bytes(30)) for second in (0x10, 0x1F, 0x20)]
    write_table(tmp_path, "hops", [{"message": address} for address in known])
    for address in known:
        whole, uri = address.hex(), won_uri(address)
        for text in (
            *(whole[:length] for length in range(4, 65)),
            *(uri[:length] for length in range(12, len(uri) + 1)),
        ):
            assert find_address(open_tables(tmp_path), parse_name(text)) == address
    for text in ("ab1", "AB1", "ab", "", "wm:/Qm"):
        with pytest.raises(
            PipelineError, match=f"several messages begin with {text.lower() if ':' not in text else text}"
        ):
            find_address(open_tables(tmp_path), parse_name(text))
    with pytest.raises(PipelineError, match="no message begins with ab3"):
        find_address(open_tables(tmp_path), parse_name("ab3"))


UUID = "0b1f6e2c-7d4a-4d3e-9c55-1f2e3d4c5b6a"


def test_a_message_is_found_by_its_own_id(tmp_path):
    known, twin, other = (Address(bytes([number]) * 32) for number in (0xA1, 0xA2, 0xA3))
    messages = [
        {"message": known, "id": UUID.upper()},
        {"message": other, "id": "0b1f6e2c-0000-4d3e-9c55-1f2e3d4c5b6a"},
    ]
    write_tables(tmp_path, {"hops": [{"message": each["message"]} for each in messages], "messages": messages})
    tables = open_tables(tmp_path)
    for text in (UUID, UUID.upper(), UUID[:14], UUID[:10]):
        assert find_address(tables, parse_name(text)) == known
        rows = tables.scan("hops", tables.equals("hops", {"message": text}))
        assert [row["message"] for row in rows] == [known.hex()]
    for text, said in (
        (UUID[:9], f"several messages have an id that begins with {UUID[:9]}: {known.hex()[:20]}, {other.hex()[:20]}"),
        (UUID[:8], f"several messages begin with {UUID[:8]}: {known.hex()[:20]}, {other.hex()[:20]}"),
        ("ffffffff-", "no message has an id that begins with ffffffff-"),
        ("ffffffff", "no message begins with ffffffff"),
    ):
        with pytest.raises(PipelineError, match=said):
            find_address(tables, parse_name(text))
    write_tables(tmp_path, {"hops": [], "messages": [*messages, {"message": twin, "id": UUID}]})
    with pytest.raises(PipelineError, match=f"several messages have an id that begins with {UUID}"):
        find_address(open_tables(tmp_path), parse_name(UUID))


def test_a_limit_and_conditions_by_type(out):
    tables = open_tables(out)
    assert len(list(tables.scan("hops", limit=2))) == 2
    found = tables.scan("hops", tables.equals("hops", {"message": "ff", "seq": "3"}))
    assert [row["seq"] for row in found] == [3]


def test_a_table_that_is_cut_says_so(out, capsys):
    assert main(["audit", "show", "hops", "--tables", str(out), "--limit", "3"]) == 0
    assert capsys.readouterr().err == "3 of 4 rows; --limit 0 prints all\n"
    for limit in ("0", "4"):
        assert main(["audit", "show", "hops", "--tables", str(out), "--limit", limit]) == 0
        assert capsys.readouterr().err == ""


def test_what_is_not_there_is_named(out, tmp_path):
    tables = open_tables(out)
    assert (tables.names, tables.count("hops")) == (["runs", "hops"], 4)
    with pytest.raises(PipelineError, match="there is no table 'nothing'; there are runs, hops"):
        tables.dataset("nothing")
    with pytest.raises(UsageError, match="no column 'x'"):
        tables.equals("hops", {"x": "1"})
    with pytest.raises(UsageError, match="seq: invalid literal"):
        tables.equals("hops", {"seq": "soon"})
    with pytest.raises(UsageError, match="message: 'zz' is neither hex, a UUID nor"):
        tables.equals("hops", {"message": "zz"})
    with pytest.raises(PipelineError, match="holds no audit: run `dovetail audit run LAKE --tables"):
        open_tables(tmp_path / "elsewhere")
    assert tables.read("coverage", ("peer",)).schema.names == ["peer"], "a table that no run made is empty"


def test_a_run_is_read_as_it_was_left_whatever_came_after(out):
    first = open_tables(out)
    write_table(out, "hops", [{"message": b"new", "seq": 9}])
    assert (first.count("hops"), open_tables(out).count("hops")) == (4, 1)
    assert (open_tables(out, 1).count("hops"), open_tables(out, 2).run.number) == (4, 2)
    with pytest.raises(PipelineError, match="has no run 7; there are 2, 1"):
        open_tables(out, 7)


def test_partial_sums_are_added_up_by_readers(tmp_path):
    rows = [{"fabric": "pcp", "type": "a", "up_to_ms": 1, "deliveries": count} for count in (5, -2, 4)]
    gone = [{"fabric": "pcp", "type": None, "up_to_ms": 2, "deliveries": count} for count in (3, -3)]
    tables = open_tables(write_table(tmp_path, "latency", [*rows, *gone]))
    assert tables.read("latency").to_pylist() == [{"fabric": "pcp", "type": "a", "up_to_ms": 1, "deliveries": 7}]
    assert (tables.count("latency"), [row["deliveries"] for row in tables.scan("latency")]) == (1, [7])


def test_tables_of_an_earlier_version_are_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "_state" / "batches").mkdir(parents=True)
    assert main(["audit", "tables", "--tables", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "tables of an earlier version" in line
    assert "give a new directory" in line


def test_the_old_name_of_the_option_still_works_and_says_so(out, capsys):
    assert main(["audit", "show", "hops", "--out", str(out), "--limit", "0"]) == 0
    assert "--out is called --tables now" in capsys.readouterr().err
    assert main(["audit", "show", "hops"]) == 2


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
    assert alerts.update(T0 + dt.timedelta(seconds=1)) == 1
    detail = "awaiting_sender ConnectMessage from alice"
    same = finding("chain.incomplete", "warning", server=None, message=b"a", seq=None, detail=detail)
    write_table(tmp_path, "findings", [same])
    assert alerts.update(T0 + dt.timedelta(seconds=2)) == 0
    assert told[0]["detail"] == detail


def only_file(out):
    (path,) = (out / "hops").glob("*.parquet")
    return path


def test_a_file_that_was_cut_is_one_line(out, capsys):
    path = only_file(out)
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["audit", "show", "hops", "--tables", str(out)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "hops cannot be read: " in line


@pytest.mark.parametrize("damage", ["no parquet", "empty", "gone"])
def test_a_file_that_cannot_be_read_is_one_line(out, damage):
    path = only_file(out)
    tables = open_tables(out)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else b"no parquet at all")
    for ask in (tables.read, tables.count, lambda name: list(tables.scan(name))):
        with pytest.raises(PipelineError, match=r"hops cannot be read: \S") as raised:
            ask("hops")
        assert "\n" not in str(raised.value)


def test_a_log_that_is_damaged_is_one_line(out):
    for name in ("hops", "runs"):
        (out / name / "_delta_log" / "00000000000000000000.json").write_text("{")
        with pytest.raises(PipelineError, match=f"{name} cannot be read") as raised:
            open_tables(out).read("hops")
        assert "\n" not in str(raised.value)
