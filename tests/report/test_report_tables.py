from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.model.errors import PipelineError
from dovetail.report.tables import SCHEMAS, SILVER, Tables
from report.sample_tables import small_world


def test_columns_are_those_that_the_audit_documents() -> None:
    schemas = pytest.importorskip("dovetail.audit.schemas", reason="the audit's schemas need pyspark")
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    for name, schema in SCHEMAS.items():
        table = schemas.BY_NAME[name]
        assert (name in SILVER) == (table.layer == "silver"), name
        for field in schema:
            documented = pandas_types.to_arrow_type(table.schema[field.name].dataType, timezone="UTC")
            assert field.type == documented, f"{name}.{field.name}: {documented}"


def test_a_directory_without_an_audit_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"holds no audit: run `dovetail audit run LAKE --out"):
        Tables.open(tmp_path)
    with pytest.raises(PipelineError, match="is not a directory"):
        Tables.open(tmp_path / "nowhere")


def test_a_damaged_run_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    (tmp_path / "_state").mkdir()
    (tmp_path / "_state" / "run.json").write_text("{")
    with pytest.raises(PipelineError, match=r"run\.json"):
        Tables.open(tmp_path)


def test_a_table_that_is_not_there_is_empty(empty_tables: Tables) -> None:
    assert empty_tables.read("coverage").num_rows == 0
    assert empty_tables.read("hops", ("at",)).schema.names == ["at"]
    assert empty_tables.count("hops") == 0


def test_only_complete_batches_of_silver_tables_count(tmp_path: Path) -> None:
    tables = Tables.open(small_world().write(tmp_path / "out"))
    before = tables.count("hops")
    unfinished = tables.root / "hops" / "batch=000000001"
    unfinished.mkdir()
    row = {**dict.fromkeys(SCHEMAS["hops"].names), "server": "pcp://broker/server", "seq": 0}
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMAS["hops"]), unfinished / "part.parquet")
    assert tables.count("hops") == before
    (tables.root / "_state" / "batches" / "000000001.json").write_text("{}")
    assert tables.count("hops") == before + 1


def test_other_columns_and_units_of_time_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    (tmp_path / "skew").mkdir()
    (tmp_path / "gaps").mkdir()
    nanoseconds = pa.table({"since": pa.array([1_000_000_000], pa.timestamp("ns", tz="UTC")), "newer": ["column"]})
    for column in SCHEMAS["gaps"]:
        if column.name not in nanoseconds.schema.names:
            nanoseconds = nanoseconds.append_column(column.name, pa.nulls(1, column.type))
    pq.write_table(nanoseconds, tmp_path / "gaps" / "part.parquet")
    read = Tables.open(tmp_path).read("gaps", ("since", "scope"))
    assert read.schema.field("since").type == pa.timestamp("us", tz="UTC")
    assert read["since"].cast(pa.int64()).to_pylist() == [1_000_000]


def test_a_table_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    pq.write_table(pa.table({"check": ["x"]}), tmp_path / "findings" / "part.parquet")
    with pytest.raises(PipelineError, match="lacks the column 'severity'"):
        Tables.open(tmp_path).read("findings")


@pytest.mark.parametrize("damage", ["cut", "cut short", "no parquet", "empty", "gone"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, damage: str) -> None:
    (tmp_path / "findings").mkdir()
    path = tmp_path / "findings" / "part.parquet"
    pq.write_table(SCHEMAS["findings"].empty_table(), path)
    whole = path.read_bytes()
    left = {"cut": whole[:-1], "cut short": whole[:6], "no parquet": b"no parquet at all", "empty": b""}
    path.unlink()
    if damage == "gone":  # after it was listed
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.write_bytes(left[damage])
    tables = Tables.open(tmp_path)
    for ask in (tables.read, tables.count):
        with pytest.raises(PipelineError, match=r"findings cannot be read: \S") as raised:
            ask("findings")
        assert "\n" not in str(raised.value)


def test_a_file_that_is_damaged_inside_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    path = tmp_path / "findings" / "part.parquet"
    names = SCHEMAS["findings"].names
    rows = [dict.fromkeys(names) | {"check": f"check {number}"} for number in range(1000)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["findings"]), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(PipelineError, match="findings cannot be read"):
        Tables.open(tmp_path).read("findings")
