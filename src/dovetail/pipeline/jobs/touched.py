"""What new batches touch: the addresses, and all that silver has about them, gathered from everything before.

Touched are the messages that new batches speak about, those whose lifetime ended since the run before, and messages of
won that are under way, since patience may be over.

The old part of silver is large. Its files are looked through by columns: first only the addresses, to see which files
hold a touched one, then those files. What is left after that is as little as what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by
from pyspark.sql.types import StructType

from dovetail.pipeline import schemas
from dovetail.pipeline.jobs.batch import DECODED_TABLE
from dovetail.pipeline.schemas import BINARY, STRING, Table
from dovetail.pipeline.session import tune
from dovetail.pipeline.store import RunRecord, Store
from dovetail.pipeline.tablefiles import count_rows, read_table, scan_here
from dovetail.pipeline.transforms.sightings import SIGHTINGS, key_of_address

MAX_HERE = 50_000_000
"""Files of up to so many rows are looked through in this process, which is quicker than to plan and compile a job."""

MAX_TOUCHED = 2_000_000
"""So many addresses a task can well hold; where more are touched everything is made anew."""

_ADDRESS = ("fabric", "message")


def state_table(name: str, of: Table) -> Table:
    """Some rows of a table, kept while a run lasts."""
    return Table(f"_state/{name}", "silver", "What this run has to look at.", of.key, of.schema)


TOUCHED = Table(
    "_state/touched",
    "silver",
    "Addresses that this run has to look at.",
    _ADDRESS,
    StructType().add("fabric", STRING).add("message", BINARY),
)
OTHERS = Table("_state/others", "silver", "Addresses that time touches.", _ADDRESS, TOUCHED.schema)
PAST_HOPS = state_table("past_hops", schemas.HOPS)
TOUCHED_HOPS = state_table("touched_hops", schemas.HOPS)
PAST_MESSAGES = state_table("past_messages", schemas.MESSAGES)
TOUCHED_MESSAGES = state_table("touched_messages", schemas.MESSAGES)
REFERRING = state_table("referring", schemas.LINKS)
PAST_LINKS = state_table("past_links", schemas.LINKS)
TOUCHED_LINKS = state_table("touched_links", schemas.LINKS)
BY_KEY = state_table("by_key", SIGHTINGS)
BY_ADDRESS = state_table("by_address", SIGHTINGS)
NEAR = state_table("near", SIGHTINGS)


@dataclass(frozen=True, slots=True)
class Touched:
    """What is touched; the gathered tables are read with `Store.read_written`."""

    spark: SparkSession
    store: Store
    old: Sequence[int]
    new: Sequence[int]
    rows: int
    """Of hops and links that are touched, and messages near them."""
    past_fabrics: Sequence[str]
    """Fabrics of which touched messages were known before."""


def gather(spark: SparkSession, store: Store, previous: RunRecord, record: RunRecord) -> Touched | None:
    """Everything that is touched, or None where that is too much."""
    old, new = previous.batches, sorted(set(record.batches) - set(previous.batches))
    fresh = sum(count_rows(store.batch_path(schemas.HOPS, batch)) for batch in new)
    if fresh > MAX_TOUCHED:
        return None
    tune(spark, fresh)
    if store.write_state(TOUCHED, _addresses(spark, store, previous, record, new)) > MAX_TOUCHED:
        return None
    search = _Search(spark, store, fresh)
    touched = store.read_written(spark, TOUCHED)
    past_rows = search.take(PAST_HOPS, store.batch_files(schemas.HOPS, old), touched)
    past = store.read_written(spark, PAST_HOPS)
    fabrics = [row["fabric"] for row in past.select("fabric").distinct().collect()] if past_rows else []
    rows = store.write_state(TOUCHED_HOPS, store.read_batches(spark, schemas.HOPS, new).unionByName(past))
    search.take(PAST_MESSAGES, store.batch_files(schemas.MESSAGES, old if fabrics else [], with_current=True), touched)
    messages = store.read_batches(spark, schemas.MESSAGES, new).unionByName(store.read_written(spark, PAST_MESSAGES))
    store.write_state(TOUCHED_MESSAGES, messages)
    rows += _gather_links(search, touched, old, new)
    rows += _gather_near(search, touched)
    return Touched(spark, store, old, new, rows, fabrics)


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for rows in the files of large tables: in this process, or on Spark if they are very many."""

    spark: SparkSession
    store: Store
    fresh: int

    def take(self, into: Table, files: Sequence[Path], wanted: DataFrame, on: Sequence[str] = _ADDRESS) -> int:
        """Keep the rows of these files whose columns are among those of `wanted`; how many there are."""
        if sum(pq.read_metadata(file).num_rows for file in files) > MAX_HERE:
            tune(self.spark, MAX_HERE)
            count = self.store.write_state(into, among(read_table(self.spark, into, files), wanted, on))
            tune(self.spark, self.fresh)
            return count
        values = wanted.select(*on).distinct().toArrow()
        fabrics = values["fabric"].unique().to_pylist()
        each = [
            (pc.field("fabric") == fabric)
            & pc.field(on[1]).isin(values.filter(pc.field("fabric") == fabric)[on[1]].combine_chunks())
            for fabric in fabrics
        ]
        if not each:
            return self.store.write_rows(into, [])
        return self.store.write_rows(into, scan_here(into, files, reduce(or_, each), on))


def among(rows: DataFrame, wanted: DataFrame, on: Sequence[str] = _ADDRESS, how: str = "left_semi") -> DataFrame:
    """Rows whose columns are among those of `wanted`; those go to the rows, not the rows to them."""
    return rows.join(wanted.select(*on).hint("broadcast"), on=list(on), how=how)


def _addresses(
    spark: SparkSession, store: Store, previous: RunRecord, record: RunRecord, new: Iterable[int]
) -> DataFrame:
    new = list(new)
    parts = [
        store.read_batches(spark, schemas.HOPS, new).select(*_ADDRESS),
        store.read_batches(spark, DECODED_TABLE, new).where("reject IS NULL").select(*_ADDRESS),
    ]
    if record.as_of_us > previous.as_of_us:
        before, now = (pa.scalar(us, pa.timestamp("us", "UTC")) for us in (previous.as_of_us, record.as_of_us))
        ended = (pc.field("expires") > before) & (pc.field("expires") <= now)
        waiting = (pc.field("fabric") == "won") & ~pc.field("outcome").isin(["delivered", "lost"])
        found = [
            *scan_here(SIGHTINGS, store.gold_files(SIGHTINGS), ended, ("expires",), _ADDRESS),
            *scan_here(schemas.DELIVERIES, store.gold_files(schemas.DELIVERIES), waiting, ("outcome",), _ADDRESS),
        ]
        store.write_rows(OTHERS, found)
        parts.append(store.read_written(spark, OTHERS))
    return reduce(DataFrame.unionByName, parts).distinct()


def _gather_links(search: _Search, touched: DataFrame, old: Sequence[int], new: Sequence[int]) -> int:
    """All links of every message that is touched, refers to one that is, or stands in a gap that may end."""
    spark, store = search.spark, search.store
    files, fresh = store.batch_files(schemas.LINKS, old), store.read_batches(spark, schemas.LINKS, new)
    on = ("fabric", "parent")
    keys = _keys(spark, store, touched).select("fabric", F.col("key").alias("parent"))
    search.take(REFERRING, files, keys, on)
    waiting = store.read_gold(spark, schemas.GAPS).where("unexpired")
    children = (
        store.read_written(spark, REFERRING)
        .select("fabric", "child")
        .unionByName(waiting.select("fabric", "child"))
        .unionByName(touched.select("fabric", F.col("message").alias("child")))
    )
    # all links of new batches are links of touched messages
    search.take(PAST_LINKS, files, children, ("fabric", "child"))
    return store.write_state(TOUCHED_LINKS, store.read_written(spark, PAST_LINKS).unionByName(fresh))


def _gather_near(search: _Search, touched: DataFrame) -> int:
    """What was known of the touched messages, of those that share a key with one, and of both ends of their links."""
    spark, store = search.spark, search.store
    links, files = store.read_written(spark, TOUCHED_LINKS), store.gold_files(SIGHTINGS)
    children = links.select("fabric", F.col("child").alias("message")).distinct()
    keys = (
        links.select("fabric", F.col("parent").alias("key"))
        .unionByName(_keys(spark, store, touched))
        .unionByName(_keys_of_addresses(children))
    )
    search.take(BY_KEY, files, keys, ("fabric", "key"))
    by_key = store.read_written(spark, BY_KEY)
    # the address of a pcp message does not tell its key
    search.take(BY_ADDRESS, files, children.where("fabric = 'pcp'"))
    others = store.read_written(spark, BY_ADDRESS)
    return store.write_state(NEAR, by_key.unionByName(among(others, by_key, how="left_anti")))


def _keys(spark: SparkSession, store: Store, touched: DataFrame) -> DataFrame:
    """How links name the touched messages."""
    known = store.read_written(spark, TOUCHED_MESSAGES).select("fabric", "key")
    return known.unionByName(_keys_of_addresses(touched)).distinct()


def _keys_of_addresses(rows: DataFrame) -> DataFrame:
    return rows.where("fabric != 'pcp'").select("fabric", key_of_address().alias("key"))
