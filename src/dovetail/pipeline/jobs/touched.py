"""What new batches touch: the addresses, and all that silver has about them, gathered from everything before.

Touched are the messages that new batches speak about, those whose lifetime ended since the run before, and messages of
won that are under way, since patience may be over.

The old part of silver is large and read by columns here, filtered by sets of addresses that every task holds. It is
read twice: first only the addresses, to see in which files something is touched, then those files. What is left after
that is as little as what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by
from pyspark.sql.types import StructType

from dovetail.pipeline import schemas
from dovetail.pipeline.jobs.batch import DECODED_TABLE
from dovetail.pipeline.schemas import BINARY, STRING, Table
from dovetail.pipeline.store import RunRecord, Store
from dovetail.pipeline.transforms.sightings import SIGHTINGS, key_of_address

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
PAST_HOPS = state_table("past_hops", schemas.HOPS)
TOUCHED_HOPS = state_table("touched_hops", schemas.HOPS)
TOUCHED_MESSAGES = state_table("touched_messages", schemas.MESSAGES)
REFERRING = state_table("referring", schemas.LINKS)
TOUCHED_LINKS = state_table("touched_links", schemas.LINKS)
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
    count = store.write_state(TOUCHED, _addresses(spark, store, previous, record, new))
    if count > MAX_TOUCHED:
        return None
    touched = store.read_written(spark, TOUCHED)
    past = among(_hit(spark, store, schemas.HOPS, old, touched, _ADDRESS), touched)
    past_rows = store.write_state(PAST_HOPS, past)
    past_hops = store.read_written(spark, PAST_HOPS)
    fabrics = [row["fabric"] for row in past_hops.select("fabric").distinct().collect()] if past_rows else []
    rows = store.write_state(TOUCHED_HOPS, store.read_batches(spark, schemas.HOPS, new).unionByName(past_hops))

    current = store.read_batches(spark, schemas.MESSAGES, [], with_current=True)
    parts = [store.read_batches(spark, schemas.MESSAGES, new), among(current, touched)]
    if fabrics:
        parts.append(among(_hit(spark, store, schemas.MESSAGES, old, touched, _ADDRESS), touched))
    store.write_state(TOUCHED_MESSAGES, reduce(DataFrame.unionByName, parts))
    rows += _gather_links(spark, store, touched, old, new)
    rows += _gather_near(spark, store, touched)
    return Touched(spark, store, old, new, rows, fabrics)


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
        ended = (F.unix_micros("expires") > previous.as_of_us) & (F.unix_micros("expires") <= record.as_of_us)
        parts.append(store.read_gold(spark, SIGHTINGS).where(ended).select(*_ADDRESS))
        waiting = "fabric = 'won' AND outcome NOT IN ('delivered', 'lost')"
        parts.append(store.read_gold(spark, schemas.DELIVERIES).where(waiting).select(*_ADDRESS))
    return reduce(DataFrame.unionByName, parts).distinct()


def _hit(
    spark: SparkSession, store: Store, table: Table, batches: Sequence[int], wanted: DataFrame, on: Sequence[str]
) -> DataFrame:
    """The files of these batches that have some of the wanted rows, with all of their rows."""
    narrow = store.read_batches(spark, table, batches, with_path=True).select("path", *on)
    hit = among(narrow, wanted, on).select("path").distinct().collect()
    return store.read_paths(spark, table, [row["path"] for row in hit])


def _gather_links(spark: SparkSession, store: Store, touched: DataFrame, old: Sequence[int], new: Sequence[int]) -> int:
    """All links of every message that is touched, refers to one that is, or stands in a gap that may end."""
    keys = _keys(spark, store, touched).select("fabric", F.col("key").alias("parent"))
    on = ("fabric", "parent")
    fresh = store.read_batches(spark, schemas.LINKS, new)
    referring = among(_hit(spark, store, schemas.LINKS, old, keys, on), keys, on).unionByName(among(fresh, keys, on))
    store.write_state(REFERRING, referring)
    waiting = store.read_gold(spark, schemas.GAPS).where("unexpired")
    children = (
        store.read_written(spark, REFERRING)
        .select("fabric", "child")
        .unionByName(waiting.select("fabric", "child"))
        .unionByName(touched.select("fabric", F.col("message").alias("child")))
        .distinct()
    )
    on = ("fabric", "child")
    before = among(_hit(spark, store, schemas.LINKS, old, children, on), children, on)
    return store.write_state(TOUCHED_LINKS, before.unionByName(among(fresh, children, on)))


def _gather_near(spark: SparkSession, store: Store, touched: DataFrame) -> int:
    """What was known of the touched messages, of those that share a key with one, and of both ends of their links."""
    links, before = store.read_written(spark, TOUCHED_LINKS), store.read_gold(spark, SIGHTINGS).drop("file")
    children = links.select("fabric", F.col("child").alias("message")).distinct()
    keys = (
        links.select("fabric", F.col("parent").alias("key"))
        .unionByName(_keys(spark, store, touched))
        .unionByName(_keys_of_addresses(children))
        .distinct()
    )
    on = ("fabric", "key")
    # the address of a pcp message does not tell its key
    others = among(before.where("fabric = 'pcp'"), children.where("fabric = 'pcp'"))
    return store.write_state(NEAR, among(before, keys, on).unionByName(among(others, keys, on, "left_anti")))


def _keys(spark: SparkSession, store: Store, touched: DataFrame) -> DataFrame:
    """How links name the touched messages."""
    known = store.read_written(spark, TOUCHED_MESSAGES).select("fabric", "key")
    return known.unionByName(_keys_of_addresses(touched)).distinct()


def _keys_of_addresses(rows: DataFrame) -> DataFrame:
    return rows.where("fabric != 'pcp'").select("fabric", key_of_address().alias("key"))
