"""How other engines open exactly the versions of one run: text to paste, for `audit tables --sql`."""

from __future__ import annotations

from typing import Any

from dovetail.audit.delta import spark_uri, store_options, table_uri
from dovetail.audit.schemas import BY_NAME
from dovetail.audit.table import Table
from dovetail.audit.tables import Tables


def recipes(tables: Tables) -> str:
    """All engines in turn."""
    head = f"run {tables.run.number} of {tables.root}: the code below reads exactly its tables, also after later runs\n"
    parts = [head, "# DuckDB (over Arrow, no extension)", duckdb(tables), "# Polars", polars(tables)]
    parts += ["-- Spark SQL (with Delta Lake)", spark(tables), "-- Trino (Delta Lake connector)", trino(tables)]
    return "\n".join(parts) + "\n"


def duckdb(tables: Tables) -> str:
    """Python: a connection with a view for each table."""
    lines = ["import duckdb", "from deltalake import DeltaTable", "", "db = duckdb.connect()"]
    for table, uri, version in _versions(tables):
        source = f"DeltaTable({uri!r}, version={version}{_options(tables)}).to_pyarrow_dataset()"
        lines.append(f'db.register("{_raw(table)}", {source})')
        if table.sums:
            lines.append(f'db.execute("""{_view(table, _raw(table))}""")')
    return "\n".join(lines) + "\n"


def polars(tables: Tables) -> str:
    """Python: a lazy frame for each table."""
    lines = ["import polars as pl", "", "tables = {}"]
    for table, uri, version in _versions(tables):
        line = f'tables["{table.name}"] = pl.scan_delta({uri!r}, version={version}{_options(tables)})'
        if table.sums:
            keys, sums = list(table.key), list(table.sums)
            line += f'.group_by({keys!r}).agg(pl.col({sums!r}).sum()).filter(pl.col("{sums[0]}") > 0)'
        lines.append(line)
    return "\n".join(lines) + "\n"


def spark(tables: Tables) -> str:
    """SQL: a temporary view for each table."""
    lines = []
    for table, uri, version in _versions(tables):
        source = f"delta.`{spark_uri(uri)}` VERSION AS OF {version}"
        if table.sums:
            lines.append(_view(table, source).replace("CREATE VIEW", "CREATE OR REPLACE TEMPORARY VIEW") + ";")
        else:
            lines.append(f"CREATE OR REPLACE TEMPORARY VIEW {table.name} AS SELECT * FROM {source};")  # noqa: S608 - our names
    return "\n".join(lines) + "\n"


def spark_frame(session: Any, tables: Tables, name: str) -> Any:
    """One table as a frame of a Spark session that has Delta Lake."""
    table, version = BY_NAME[name], tables.run.versions.get(name)
    reader = session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    rows = reader.load(spark_uri(table_uri(tables.root, name)))
    if not table.sums:
        return rows
    summed = rows.groupBy(*table.key).sum(*table.sums).where(f"`sum({table.sums[0]})` > 0")
    return summed.selectExpr(*table.key, *(f"`sum({column})` AS {column}" for column in table.sums))


def trino(tables: Tables) -> str:
    """SQL: the tables are registered once; each query then names the version."""
    lines = []
    for table, uri, version in _versions(tables):
        register = f"schema_name => 'dovetail', table_name => '{table.name}', table_location => '{_located(uri)}'"
        lines.append(f"CALL delta.system.register_table({register});")
        lines.append(f"SELECT * FROM delta.dovetail.{table.name} FOR VERSION AS OF {version};")  # noqa: S608
    return "\n".join(lines) + "\n"


def _versions(tables: Tables) -> list[tuple[Table, str, int]]:
    versions = tables.run.versions
    return [(BY_NAME[name], table_uri(tables.root, name), versions[name]) for name in tables.names if name in versions]


def _options(tables: Tables) -> str:
    options = store_options(tables.root)
    return f", storage_options={options!r}" if options else ""


def _raw(table: Table) -> str:
    return f"{table.name}_parts" if table.sums else table.name


def _view(table: Table, source: str) -> str:
    keys = ", ".join(table.key)
    sums = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in table.sums)
    having = f"HAVING sum({table.sums[0]}) > 0"
    return f"CREATE VIEW {table.name} AS SELECT {keys}, {sums} FROM {source} GROUP BY {keys} {having}"  # noqa: S608 - our own names


def _located(uri: str) -> str:
    return uri if "://" in uri else f"local://{uri}"
