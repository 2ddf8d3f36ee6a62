"""The core of the audit's work as a DuckDB script: hash, work, references, and links whose parent nobody has.

It makes tables in memory, decodes no other field, checks no tree and no signature.
"""

from __future__ import annotations

import time
from pathlib import Path

SCRIPT = (
    # raw[14:17] are the high bytes of the time, which stand first under the work's hash
    """
CREATE TABLE decoded AS SELECT message, message[1:8] AS key,
    from_hex(sha256(raw)) = message AS address_valid,
    sha256(raw[14:17] || raw[1:13] || raw[18:]) < '{target}' AS work_valid,
    list_transform(
        range(('0x' || hex(raw[20:20]))::INT & 7), lambda i: raw[21 + 10 * i : 28 + 10 * i]
    ) AS parents
FROM read_parquet('{files}', hive_partitioning = false)
""",
    "CREATE TABLE links AS SELECT message AS child, unnest(parents) AS parent FROM decoded",
    "CREATE TABLE gaps AS SELECT * FROM links ANTI JOIN decoded ON links.parent = decoded.key",
)


def run_duckdb(lake: Path, threads: int, target: int) -> tuple[float, float, dict[str, int]]:
    """Seconds, seconds of processor time, and what it found."""
    import duckdb

    connection = duckdb.connect(config={"threads": threads})
    begun, cpu = time.perf_counter(), time.process_time()
    for statement in SCRIPT:
        connection.execute(statement.format(files=lake / "fabric=swarm/*/*.parquet", target=f"{target:064x}"))
    seconds, used = time.perf_counter() - begun, time.process_time() - cpu
    counts = {
        "messages": "decoded",
        "valid": "decoded WHERE address_valid",
        "worked": "decoded WHERE work_valid",
        "links": "links",
        "gaps": "gaps",
    }
    found = {name: connection.execute(f"SELECT count(*) FROM {rows}").fetchone()[0] for name, rows in counts.items()}
    connection.close()
    return seconds, used, found
