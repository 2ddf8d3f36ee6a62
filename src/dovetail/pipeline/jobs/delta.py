"""What new batches touch, and the rows of gold that follow from it.

Touched are the messages that new batches speak about, those whose lifetime ended since the run before, and messages of
won that are under way, since patience may be over. Their rows are made from all of their hops; so are links that lead
from them or to them. Silver is read for that by columns, and filtered by a set of addresses that every task holds;
nothing but the touched part of it is moved.

Of a large table only the files that hold a touched row are replaced; small tables are written whole.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by
from pyspark.sql.types import StructType

from dovetail.pipeline import schemas
from dovetail.pipeline.jobs.batch import DECODED_TABLE
from dovetail.pipeline.schemas import BINARY, STRING, TIMESTAMP, Table
from dovetail.pipeline.store import Change, RunRecord, Store
from dovetail.pipeline.transforms.chains import FABRICS as CHAINED
from dovetail.pipeline.transforms.chains import chains
from dovetail.pipeline.transforms.coverage import message_coverage, peer_coverage
from dovetail.pipeline.transforms.deliveries import deliveries, latency
from dovetail.pipeline.transforms.edges import EDGES, edges
from dovetail.pipeline.transforms.forks import circular_replies, edge_forks, is_made_whole, shared_keys, signer_forks
from dovetail.pipeline.transforms.gaps import gaps
from dovetail.pipeline.transforms.sightings import SIGHTINGS, sightings
from dovetail.pipeline.transforms.skew import skew
from dovetail.pipeline.transforms.traffic import traffic

MAX_TOUCHED = 2_000_000
"""So many addresses a task can well hold; where more are touched everything is made anew."""

_SMALL_FILE_BYTES = 8 << 20
_MAX_SMALL_FILES = 16


def _addresses(name: str, *columns: str) -> Table:
    schema = StructType().add("fabric", STRING)
    for column in columns:
        schema = schema.add(column, BINARY)
    return Table(name, "silver", "Addresses or keys that this run has to look at.", ("fabric", *columns), schema)


TOUCHED = _addresses("_state/touched", "message")
TOUCHED_HOPS = Table("_state/touched_hops", "silver", "Their hops.", ("server", "seq"), schemas.HOPS.schema)
TOUCHED_LINKS = Table(
    "_state/touched_links", "silver", "Links from or to them.", schemas.LINKS.key, schemas.LINKS.schema
)
MINUTES = Table(
    "_state/minutes", "silver", "Minutes with new hops.", ("minute",), StructType().add("minute", TIMESTAMP)
)


@dataclass(slots=True)
class Delta:
    """What two batches of work have in common is nothing: one object per run."""

    spark: SparkSession
    store: Store
    old: list[int]
    new: list[int]
    touched: DataFrame
    has_past: bool
    """Some of the touched messages were known before."""
    changes: dict[str, Change] = field(default_factory=dict)

    @classmethod
    def find(cls, spark: SparkSession, store: Store, previous: RunRecord, record: RunRecord) -> Delta | None:
        """The touched messages, or None where they are too many."""
        old = previous.batches
        new = sorted(set(record.batches) - set(old))
        address = ("fabric", "message")
        parts = [
            store.read_batches(spark, schemas.HOPS, new).select(*address),
            store.read_batches(spark, DECODED_TABLE, new).where("reject IS NULL").select(*address),
        ]
        if record.as_of_us > previous.as_of_us:
            ended = (F.unix_micros("expires") > previous.as_of_us) & (F.unix_micros("expires") <= record.as_of_us)
            parts.append(store.read_gold(spark, SIGHTINGS).where(ended).select(*address))
            waiting = "fabric = 'won' AND outcome NOT IN ('delivered', 'lost')"
            parts.append(store.read_gold(spark, schemas.DELIVERIES).where(waiting).select(*address))
        found = parts[0]
        for part in parts[1:]:
            found = found.unionByName(part)
        touched = store.read_next(spark, store.write_gold(TOUCHED, found.distinct()))
        if touched.count() > MAX_TOUCHED:
            return None
        delta = cls(spark, store, old, new, touched, has_past=False)
        past = delta._among(store.read_batches(spark, schemas.HOPS, old), touched)
        fresh = store.read_batches(spark, schemas.HOPS, new)
        hops = store.read_next(spark, store.write_gold(TOUCHED_HOPS, fresh.unionByName(past)))
        delta.has_past = hops.count() > fresh.count()
        return delta

    def make(
        self,
        tables: dict[str, DataFrame],
        as_of: dt.datetime,
        patience_us: int,
        fabrics: Sequence[str],
        peers: Sequence[str],
        say: Callable[[str], None],
    ) -> Iterator[tuple[str, Change]]:
        """The changes, table by table. `tables` gets each new table before the next is made."""
        spark, store, servers = self.spark, self.store, tables["servers"]
        hops = store.read_next(spark, Change(TOUCHED_HOPS))
        messages = self._among(tables["messages"], self.touched)
        say("sightings")
        yield "sightings", self._replace(SIGHTINGS, sightings(hops, messages, peers=peers))
        own = self._among(tables["sightings"], self.touched)
        say("skew")
        yield "skew", store.write_gold(schemas.SKEW, skew(tables["hops"]))
        say("deliveries")
        if self._has_same_clocks(tables["skew"]):
            made = deliveries(
                hops, messages, own, servers, tables["skew"], as_of=as_of, patience_us=patience_us, fabrics=fabrics
            )
            yield "deliveries", self._replace(schemas.DELIVERIES, made)
        else:
            made = deliveries(
                tables["hops"],
                tables["messages"],
                tables["sightings"],
                servers,
                tables["skew"],
                as_of=as_of,
                patience_us=patience_us,
                fabrics=fabrics,
            )
            yield "deliveries", store.write_gold(schemas.DELIVERIES, made)
        yield "latency", store.write_gold(schemas.LATENCY, latency(tables["deliveries"]))
        chained = [fabric for fabric in CHAINED if fabric in fabrics]
        if chained and not self.touched.where(F.col("fabric").isin(*CHAINED)).isEmpty():
            say("chains")
            made = chains(tables["hops"], tables["messages"], tables["links"], fabrics=chained)
            yield "chains", store.write_gold(schemas.CHAINS, made)
        say("gaps")
        links = self._links(tables)
        known = self._known(tables["sightings"], links)
        odd = store.read_next(spark, store.write_gold(EDGES, edges(links, known, servers)))
        children = links.select("fabric", F.col("child").alias("message")).distinct()
        ends = self._among(tables["sightings"], children)
        yield "gaps", self._replace_small(schemas.GAPS, gaps(odd, ends, as_of=as_of), self._without_children(children))
        say("forks")
        yield "forks", self._make_forks(tables, odd, ends, fabrics)
        if "swarm" in fabrics:
            say("coverage")
            of_peers = peer_coverage(tables["sightings"], servers)
            made = message_coverage(own, servers, as_of=as_of).unionByName(of_peers)
            yield "coverage", self._replace(schemas.COVERAGE, made)
        say("traffic")
        yield "traffic", self._make_traffic(tables, hops)

    # rows by address

    def _among(self, rows: DataFrame, wanted: DataFrame) -> DataFrame:
        """Rows whose message is one of `wanted`; those go to the rows, not the rows to them."""
        return rows.join(F.broadcast(wanted.select("fabric", "message")), on=["fabric", "message"], how="left_semi")

    def _links(self, tables: dict[str, DataFrame]) -> DataFrame:
        """All links of every message that is touched, refers to one that is, or stands in a gap that may end."""
        keys = self._among(tables["sightings"], self.touched).select("fabric", F.col("key").alias("parent"))
        referring = tables["links"].join(F.broadcast(keys.distinct()), on=["fabric", "parent"], how="left_semi")
        waiting = self.store.read_gold(self.spark, schemas.GAPS).where("unexpired")
        children = (
            referring.select("fabric", "child")
            .unionByName(waiting.select("fabric", "child"))
            .unionByName(self.touched.select("fabric", F.col("message").alias("child")))
            .distinct()
        )
        links = tables["links"].join(F.broadcast(children), on=["fabric", "child"], how="left_semi")
        return self.store.read_next(self.spark, self.store.write_gold(TOUCHED_LINKS, links))

    def _known(self, all_sightings: DataFrame, links: DataFrame) -> DataFrame:
        """The messages that these links name."""
        named = links.select("fabric", F.col("parent").alias("key")).distinct()
        return all_sightings.join(F.broadcast(named), on=["fabric", "key"], how="left_semi")

    # tables

    def _replace(self, table: Table, made: DataFrame) -> Change:
        """Replace the rows of touched messages."""
        keys = ["fabric", "message"] if "fabric" in table.schema.names else ["message"]
        is_swarm = F.col("fabric") == "swarm"
        touched = F.broadcast((self.touched if len(keys) > 1 else self.touched.where(is_swarm)).select(*keys))
        # the few rows that are not about a message are made in every run
        is_other = F.col("message").isNull()
        stale: list[str] = []
        if self.has_past or table is schemas.COVERAGE:
            present = self.store.read_gold(self.spark, table)
            hit = present.where(is_other).select("file")
            if self.has_past:
                hit = hit.unionByName(present.join(touched, on=keys, how="left_semi").select("file"))
            stale = [row["file"] for row in hit.distinct().collect()]
        stale = sorted({*stale, *self._small_files(table)})
        kept = self.store.read_files(self.spark, table, stale).where(~is_other)
        kept = kept.join(touched, on=keys, how="left_anti")
        return self.store.write_files(table, kept.select(*table.schema.names).unionByName(made), stale)

    def _small_files(self, table: Table) -> list[str]:
        """Small files once they are many: what runs add one by one is put together now and then."""
        small = [path.name for path in self.store.gold_files(table) if path.stat().st_size < _SMALL_FILE_BYTES]
        return small if len(small) > _MAX_SMALL_FILES else []

    def _replace_small(self, table: Table, made: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> Change:
        """Write a small table whole: what stays of it, and what was made."""
        kept = keep(self.store.read_gold(self.spark, table).drop("file"))
        return self.store.write_gold(table, kept.select(*table.schema.names).unionByName(made))

    def _without_children(self, children: DataFrame) -> Callable[[DataFrame], DataFrame]:
        gone = F.broadcast(children.withColumnRenamed("message", "child"))
        return lambda rows: rows.join(gone, on=["fabric", "child"], how="left_anti")

    def _make_forks(
        self, tables: dict[str, DataFrame], odd: DataFrame, ends: DataFrame, fabrics: Sequence[str]
    ) -> Change:
        own = self._among(tables["sightings"], self.touched)
        keys = own.select("fabric", "key").distinct()
        sharing = tables["sightings"].join(F.broadcast(keys), on=["fabric", "key"], how="left_semi")
        made = shared_keys(sharing)
        if set(fabrics) - {"pcp"}:
            made = made.unionByName(edge_forks(odd, ends, tables["links"]))
        made = self._overlapping(made, how="left_semi")
        if "won" in fabrics:
            made = made.unionByName(signer_forks(tables["sightings"], tables["messages"], tables["links"]))
        if "pcp" in fabrics:
            made = made.unionByName(circular_replies(tables["sightings"], tables["links"]))
        return self._replace_small(
            schemas.FORKS, made, lambda rows: self._overlapping(rows.where(~is_made_whole()), how="left_anti")
        )

    def _overlapping(self, forks: DataFrame, how: str) -> DataFrame:
        """Forks with a touched message in evidence, or without."""
        names = ["fabric", "kind", "subject", "evidence"]
        members = forks.select(*names, F.explode("evidence").alias("message"))
        hit = self._among(members, self.touched).select(*names).distinct()
        return forks.join(hit, on=names, how=how).select(*schemas.FORKS.schema.names)

    def _make_traffic(self, tables: dict[str, DataFrame], hops: DataFrame) -> Change:
        """Minutes in which a touched message was seen: its type may be known only now."""
        minute = F.date_trunc("minute", F.col("at"))
        minutes = self.store.read_next(
            self.spark, self.store.write_gold(MINUTES, hops.select(minute.alias("minute")).distinct())
        )
        first, last = minutes.select(F.min("minute"), F.max("minute")).first() or (None, None)
        if first is None or last is None:
            return self._replace_small(
                schemas.TRAFFIC, self.spark.createDataFrame([], schemas.TRAFFIC.schema), lambda r: r
            )
        within = (F.col("at") >= F.lit(first)) & (F.col("at") < F.lit(last + dt.timedelta(minutes=1)))
        seen = (
            tables["hops"]
            .where(within)
            .withColumn("minute", minute)
            .join(F.broadcast(minutes), on="minute", how="left_semi")
            .drop("minute")
        )
        types = self._among(tables["messages"], seen.select("fabric", "message").distinct())
        gone = F.broadcast(minutes)
        return self._replace_small(
            schemas.TRAFFIC, traffic(seen, types), lambda rows: rows.join(gone, on="minute", how="left_anti")
        )

    def _has_same_clocks(self, now: DataFrame) -> bool:
        """Whether latencies are corrected as they were before."""
        offsets = ("server", "other", "offset_us")
        before = self.store.read_gold(self.spark, schemas.SKEW).select(*offsets).collect()
        return sorted(before) == sorted(now.select(*offsets).collect())
