"""The core of the audit's work as a DuckDB script: hash, work, fields, references, and links to missing parents.

It makes the same three tables as `audit_spark.run_core`, same columns and rows, as Parquet with the same codec:
`decoded` (one row per distinct message), `links`, `gaps`. Of the variants tried these were the fastest:
integers by way of BIT, references by a lambda, tables kept in memory while they are written. `compare` reads both.
"""

from __future__ import annotations

import time
from pathlib import Path

from dovetail.model.fabric import Agreement
from dovetail.swarm import content as c

DECODED = (
    "fabric",
    "message",
    "key",
    "created_us",
    "expires_us",
    "size",
    "address_valid",
    "work_valid",
    "links",
    "reject",
)
LINKS = ("fabric", "child", "parent", "relation", "parent_expires", "child_created")
TABLES = {"decoded": DECODED, "links": LINKS, "gaps": LINKS}

_HASHED = """
SELECT DISTINCT message, raw[1:60] AS head, octet_length(raw) AS size,
    from_hex(sha256(raw)) = message AS address_valid,
    -- raw[14:17] are the high bytes of the time, which stand first under the work's hash
    sha256(raw[14:17] || raw[1:13] || raw[18:]) < '{target}' AS work_valid
FROM read_parquet('{files}', hive_partitioning = false)
"""
_NUMBERS = f"""
SELECT *, head[1:3]::BIT::INT AS kind, head[12:19]::BIT::UBIGINT AS times, head[20:20]::BIT::INT & 7 AS count
FROM ({_HASHED})
"""
_FIELDS = f"""
SELECT 'swarm' AS fabric, message, message[1:8] AS key,
    (((times >> 56) & 255) | (((times >> 48) & 255) << 8) | (((times >> 40) & 255) << 16)
        | (((times >> 32) & 255) << 24) | (((times >> 24) & 255) << 32) | (((times >> 16) & 255) << 40)
    )::BIGINT * 1000 AS created_us,
    created_us + greatest(1, ((times >> 8) & 255) | ((times & 255) << 8))::BIGINT * {{epoch_us}} AS expires_us,
    size, address_valid, work_valid, head, count,
    CASE WHEN size < 2 THEN 'truncated'
        WHEN size > {c.MAX_CONTENT_BYTES} THEN 'too_large'
        WHEN kind >> 16 != {c.INDICATOR} THEN 'bad_indicator'
        WHEN (kind >> 8) & 255 != {c.OPCODE_CONTENT} THEN 'unknown_opcode'
        WHEN kind & 255 != {c.VERSION} THEN 'unsupported_version'
        WHEN count > {c.MAX_REFERENCES} THEN 'bad_reference_count'
        WHEN size < {c.FIXED_BYTES} + {c.REFERENCE_BYTES} * count THEN 'truncated' END AS reject
FROM ({_NUMBERS})
"""
_DIFFERENCE = "head[29 + 10 * i : 30 + 10 * i]::BIT::INT"
_SIGNED = f"((((({_DIFFERENCE}) & 127) << 8) | (({_DIFFERENCE}) >> 8)) - ((({_DIFFERENCE}) & 128) << 8))::BIGINT"
_DECODED = f"""
SELECT * EXCLUDE (head, count, reject), list_transform(range(count), lambda i: {{{{
        parent: head[21 + 10 * i : 28 + 10 * i], relation: 'refers',
        parent_expires_us: nullif(expires_us - {_SIGNED} * {{epoch_us}}, expires_us + 32768 * {{epoch_us}})}}}}
    ) AS links, reject
FROM ({_FIELDS})
"""
SCRIPT = (
    f"CREATE TABLE decoded AS {_DECODED}",
    "COPY decoded TO '{out}/decoded.parquet' (FORMAT PARQUET, COMPRESSION ZSTD)",
    """
CREATE TABLE links AS SELECT fabric, child, link.parent, link.relation,
    make_timestamp(link.parent_expires_us) AS parent_expires, make_timestamp(created_us) AS child_created
FROM (SELECT fabric, message AS child, created_us, unnest(links) AS link FROM decoded
    WHERE reject IS NULL AND address_valid)
""",
    "COPY links TO '{out}/links.parquet' (FORMAT PARQUET, COMPRESSION ZSTD)",
    """
COPY (SELECT links.* FROM links ANTI JOIN decoded ON links.fabric = decoded.fabric AND links.parent = decoded.key)
TO '{out}/gaps.parquet' (FORMAT PARQUET, COMPRESSION ZSTD)
""",
)


def run_duckdb(lake: Path, out: Path, threads: int, agreement: Agreement) -> tuple[float, float]:
    """Returns seconds and CPU seconds; the tables are in `out`."""
    import duckdb

    out.mkdir(parents=True)
    connection = duckdb.connect(config={"threads": threads})
    given = {
        "files": lake / "fabric=swarm/*/*.parquet",
        "target": f"{agreement.work_target:064x}",
        "epoch_us": f"{agreement.epoch_ms * 1000}::BIGINT",
    }
    begun, cpu = time.perf_counter(), time.process_time()
    for statement in SCRIPT:
        connection.execute(statement.format(out=out, **given))
    seconds, used = time.perf_counter() - begun, time.process_time() - cpu
    connection.close()
    return seconds, used


def compare(ours: Path, theirs: Path) -> dict[str, int]:
    """How many rows each table has; SystemExit if the two differ in any row."""
    import duckdb

    connection = duckdb.connect()
    counts = {}
    for table, names in TABLES.items():
        columns = ", ".join(f"epoch_us({name}) AS {name}" if name in LINKS[-2:] else name for name in names)
        query = f"SELECT count(*), bit_xor(hash(rows)) FROM (SELECT {columns} FROM read_parquet('{{}}')) AS rows"
        found = [
            connection.execute(query.format(files)).fetchall()[0]
            for files in (ours / table / "*.parquet", theirs / f"{table}.parquet")
        ]
        if found[0] != found[1]:
            raise SystemExit(f"{table}: spark has {found[0]}, DuckDB {found[1]}")
        counts[table] = found[0][0]
    connection.close()
    return counts
