"""The rows of gold that follow from what new batches touch (`touched`).

All rows about touched messages are made from all of their hops; so are links that lead from them or to them. Of a large
table only the files that hold a touched row are replaced; small tables are written whole. Sums are not made again from
all rows: what the touched messages gave before is taken from them, and what they give now is added.

What is touched is mostly as little as what is new, so that the session is tuned to it, whatever the size of the lake.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.pipeline import schemas
from dovetail.pipeline.facts import BatchFacts
from dovetail.pipeline.jobs.touched import (
    NEAR,
    PAST_HOPS,
    TOUCHED,
    TOUCHED_HOPS,
    TOUCHED_LINKS,
    TOUCHED_MESSAGES,
    Touched,
    among,
    state_table,
)
from dovetail.pipeline.schemas import Table
from dovetail.pipeline.session import SMALL_ROWS, tune
from dovetail.pipeline.store import Change
from dovetail.pipeline.tablefiles import local_rows
from dovetail.pipeline.transforms.chains import FABRICS as CHAINED
from dovetail.pipeline.transforms.chains import chains
from dovetail.pipeline.transforms.coverage import counts_of, message_coverage, peer_counts, peer_coverage
from dovetail.pipeline.transforms.deliveries import FABRICS, deliveries, latency
from dovetail.pipeline.transforms.edges import EDGES, edges
from dovetail.pipeline.transforms.forks import circular_replies, edge_forks, is_made_whole, shared_keys, signer_forks
from dovetail.pipeline.transforms.gaps import gaps
from dovetail.pipeline.transforms.sightings import SIGHTINGS, sightings
from dovetail.pipeline.transforms.skew import LEGS, fastest_legs, skew
from dovetail.pipeline.transforms.traffic import traffic

OWN = state_table("own", SIGHTINGS)
MADE_DELIVERIES = state_table("made_deliveries", schemas.DELIVERIES)
GONE_LATENCY = state_table("gone_latency", schemas.LATENCY)
MADE_COVERAGE = state_table("made_coverage", schemas.COVERAGE)

MANY_PEERS = 10
"""From so many peers on, deliveries make a lake larger than its hops do."""

_SMALL_FILE_BYTES = 8 << 20
_MAX_SMALL_FILES = 16

Tables = Callable[[str], DataFrame]
"""A whole table by name: silver, or gold as it is by now."""


@dataclass(slots=True)
class Delta:
    """One making of what has changed. `whole` reads whole tables; what is gathered of them is in `touched`."""

    touched: Touched
    whole: Tables
    servers: DataFrame
    facts: BatchFacts
    as_of: dt.datetime
    patience_us: int
    fabrics: Sequence[str]
    peers: Sequence[str]

    def make(self, say: Callable[[str], None]) -> Iterator[tuple[str, Change]]:
        """The changes, table by table; whoever asks for them keeps each one before the next is made."""
        self._fit()
        hops, messages = self._read(TOUCHED_HOPS), self._read(TOUCHED_MESSAGES)
        say("sightings")
        own = self._keep(OWN, sightings(hops, messages, peers=self.peers))
        before = among(self._read(NEAR), self._addresses())
        near = among(self._read(NEAR), self._addresses(), how="left_anti").unionByName(own)
        yield "sightings", self._replace(SIGHTINGS, OWN)
        say("skew")
        yield from self._make_skew(hops)
        say("deliveries")
        yield from self._make_deliveries(hops, messages, own)
        say("gaps")
        links = self._read(TOUCHED_LINKS)
        odd = self._keep(EDGES, edges(links, near, self.servers))
        children = links.select("fabric", "child").distinct()
        kept = among(self._present(schemas.GAPS), children, ("fabric", "child"), "left_anti")
        yield "gaps", self._write(schemas.GAPS, kept, gaps(odd, near, as_of=self.as_of))
        if "swarm" in self.fabrics:
            say("coverage")
            yield "coverage", self._make_coverage(own, before)
        say("traffic")
        yield "traffic", self._make_traffic(hops, messages, before)
        say("forks")
        made = shared_keys(among(near, own.select("fabric", "key").distinct(), ("fabric", "key")))
        if set(self.fabrics) - {"pcp"}:
            made = made.unionByName(edge_forks(odd, near, links))
        yield "forks", self._make_forks(self._overlapping(made, "left_semi"))
        yield from self._make_chains(say)

    # rows of touched messages

    def _fit(self, files: Iterable[Path] = (), rows: int = 0) -> None:
        """Tune the session to what is touched, and to these files or rows of whole tables if they are large."""
        is_large = sum(path.stat().st_size for path in files) > _SMALL_FILE_BYTES
        touched = max(self.touched.rows, self.touched.rows * len(self.peers) // MANY_PEERS)
        tune(self.touched.spark, SMALL_ROWS + 1 if is_large else max(rows, touched))

    def _read(self, table: Table) -> DataFrame:
        return self.touched.store.read_written(self.touched.spark, table)

    def _keep(self, table: Table, rows: DataFrame) -> DataFrame:
        self.touched.store.write_state(table, rows)
        return self._read(table)

    def _addresses(self) -> DataFrame:
        return self._read(TOUCHED)

    def _present(self, table: Table) -> DataFrame:
        """A table as the run before left it."""
        return self.touched.store.read_gold(self.touched.spark, table).drop("file")

    def _write(self, table: Table, *parts: DataFrame) -> Change:
        """Write a small table whole."""
        each = [part.select(*table.schema.names) for part in parts]
        return self.touched.store.write_gold(table, reduce(DataFrame.unionByName, each))

    def _sum(self, table: DataFrame, plus: DataFrame, minus: DataFrame, *sums: str) -> DataFrame:
        """A table of sums with some added and some taken away; the first of `sums` is how many there are."""
        keys = [name for name in table.columns if name not in sums]
        negated = minus.select(*keys, *((-F.col(name)).alias(name) for name in sums))
        each = reduce(DataFrame.unionByName, [table, plus.select(*table.columns), negated])
        return each.groupBy(*keys).agg(*(F.sum(name).alias(name) for name in sums)).where(F.col(sums[0]) > 0)

    # large tables

    def _stale(self, table: Table) -> list[str]:
        """Files with rows of touched messages, or about no message, since those are made in every run."""
        store, past = self.touched.store, self.touched.past_fabrics
        self._fit(store.gold_files(table))
        present, addresses = store.read_gold(self.touched.spark, table), self._addresses()
        hits = []
        if table is schemas.COVERAGE:
            hits.append(present.where("message IS NULL"))
            if "swarm" in past:
                hits.append(among(present, addresses.where("fabric = 'swarm'"), ("message",)))
        elif past:
            hits.append(among(present.where(F.col("fabric").isin(*past)), addresses))
        found = [row["file"] for hit in hits for row in hit.select("file").distinct().collect()]
        return sorted({*found, *self._small_files(table)})

    def _small_files(self, table: Table) -> list[str]:
        """Small files once they are many: what runs add one by one is put together now and then."""
        files = self.touched.store.gold_files(table)
        small = [path.name for path in files if path.stat().st_size < _SMALL_FILE_BYTES]
        return small if len(small) > _MAX_SMALL_FILES else []

    def _stale_rows(self, table: Table, stale: Sequence[str], how: str) -> DataFrame:
        """The rows of these files about touched messages, or about all others."""
        rows = self.touched.store.read_files(self.touched.spark, table, stale).where("message IS NOT NULL")
        if "fabric" in table.schema.names:
            return among(rows, self._addresses(), how=how)
        return among(rows, self._addresses().where("fabric = 'swarm'"), ("message",), how)

    def _replace(self, table: Table, made: Table, stale: Sequence[str] | None = None) -> Change:
        """Replace the rows of touched messages by what was made."""
        stale = self._stale(table) if stale is None else stale
        store = self.touched.store
        self._fit(path for path in store.gold_files(table) if path.name in stale)
        kept = self._stale_rows(table, stale, "left_anti").select(*table.schema.names)
        change = store.write_files(table, kept.unionByName(self._read(made)), stale)
        self._fit()
        return change

    # tables

    def _make_skew(self, hops: DataFrame) -> Iterator[tuple[str, Change]]:
        if set(self.fabrics) <= {"pcp"}:
            return
        fastest = local_rows(self.touched.spark, self._fastest_legs(hops), LEGS.schema)
        yield "legs", self._write(LEGS, fastest)
        yield "skew", self._write(schemas.SKEW, skew(fastest))

    def _fastest_legs(self, hops: DataFrame) -> list[tuple[str, str, int, int]]:
        """The fastest legs with those of touched messages changed; all anew if a fastest one is no longer there."""
        before, gone, now = (
            {(row["source"], row["target"]): (row["least_us"], row["legs"]) for row in legs.collect()}
            for legs in (self._present(LEGS), fastest_legs(self._read(PAST_HOPS)), fastest_legs(hops))
        )
        merged = {}
        for pair in {*before, *now}:
            least_us, legs = before.get(pair, (None, 0))
            new_us, new_legs = now.get(pair, (None, 0))
            old_us, old_legs = gone.get(pair, (None, 0))
            if old_us is not None and old_us == least_us and (new_us is None or new_us > old_us):
                self._fit(rows=self._hops_of(FABRICS))
                rows = fastest_legs(self.whole("hops")).collect()
                self._fit()
                return [tuple(row) for row in rows]
            merged[pair] = (min(us for us in (least_us, new_us) if us is not None), legs - old_legs + new_legs)
        return [(*pair, least_us, legs) for pair, (least_us, legs) in merged.items()]

    def _hops_of(self, fabrics: Sequence[str]) -> int:
        return sum(fact.part.rows for fact in self.facts.files if fact.part is not None and fact.fabric in fabrics)

    def _make_deliveries(self, hops: DataFrame, messages: DataFrame, own: DataFrame) -> Iterator[tuple[str, Change]]:
        if not self._has_same_clocks():
            self._fit(rows=self._hops_of(FABRICS))
            made = self._deliveries(self.whole("hops"), self.whole("messages"), self.whole("sightings"))
            yield "deliveries", self._write(schemas.DELIVERIES, made)
            yield "latency", self._write(schemas.LATENCY, latency(self.whole("deliveries")))
            self._fit()
            return
        made = self._keep(MADE_DELIVERIES, self._deliveries(hops, messages, own))
        stale = self._stale(schemas.DELIVERIES)
        gone = self._keep(GONE_LATENCY, latency(self._stale_rows(schemas.DELIVERIES, stale, "left_semi")))
        yield "deliveries", self._replace(schemas.DELIVERIES, MADE_DELIVERIES, stale)
        summed = self._sum(self._present(schemas.LATENCY), latency(made), gone, "deliveries")
        yield "latency", self._write(schemas.LATENCY, summed)

    def _deliveries(self, hops: DataFrame, messages: DataFrame, seen: DataFrame) -> DataFrame:
        return deliveries(
            hops,
            messages,
            seen,
            self.servers,
            self.whole("skew"),
            as_of=self.as_of,
            patience_us=self.patience_us,
            fabrics=self.fabrics,
        )

    def _has_same_clocks(self) -> bool:
        """Whether latencies are corrected as they were before."""
        offsets = ("server", "other", "offset_us")
        before, now = self._present(schemas.SKEW), self.whole("skew")
        return sorted(before.select(*offsets).collect()) == sorted(now.select(*offsets).collect())

    def _make_coverage(self, own: DataFrame, before: DataFrame) -> Change:
        counts = counts_of(self._present(schemas.COVERAGE).where("scope = 'peer'"))
        summed = self._sum(counts, peer_counts(own), peer_counts(before), "many")
        made = message_coverage(own, self.servers, as_of=self.as_of)
        self._keep(MADE_COVERAGE, made.unionByName(peer_coverage(summed, self.servers)))
        return self._replace(schemas.COVERAGE, MADE_COVERAGE)

    def _make_traffic(self, hops: DataFrame, messages: DataFrame, before: DataFrame) -> Change:
        """A message's hops are counted under its type, which may be known only now."""
        gone = traffic(self._read(PAST_HOPS), among(messages, before.where("is_decoded")))
        present = self._present(schemas.TRAFFIC)
        return self._write(
            schemas.TRAFFIC, self._sum(present, traffic(hops, messages), gone, "hops", "messages", "bytes")
        )

    def _make_forks(self, made: DataFrame) -> Change:
        """Forks of keys and edges with a touched message; those of signers and replies are made from all of theirs."""
        touched = self._chained()
        self._fit(rows=self._hops_of(touched))
        kept = self._overlapping(self._present(schemas.FORKS).where(~is_made_whole()), "left_anti")
        parts = [kept, made, self._present(schemas.FORKS).where(is_made_whole() & ~F.col("fabric").isin(*touched))]
        if "won" in touched:
            parts.append(signer_forks(self.whole("sightings"), self.whole("messages"), self.whole("links")))
        if "pcp" in touched:
            parts.append(circular_replies(self.whole("sightings"), self.whole("links")))
        return self._write(schemas.FORKS, *parts)

    def _overlapping(self, forks: DataFrame, how: str) -> DataFrame:
        """Forks with a touched message in evidence, or without."""
        names = ["fabric", "kind", "subject", "evidence"]
        members = forks.select(*names, F.explode("evidence").alias("message"))
        hit = among(members, self._addresses()).select(*names).distinct()
        return forks.join(hit, on=names, how=how).select(*schemas.FORKS.schema.names)

    def _make_chains(self, say: Callable[[str], None]) -> Iterator[tuple[str, Change]]:
        """Chains are put together from all messages of their fabrics, if one of these is touched."""
        if self._chained():
            say("chains")
            chained = [fabric for fabric in CHAINED if fabric in self.fabrics]
            self._fit(rows=self._hops_of(chained))
            made = chains(self.whole("hops"), self.whole("messages"), self.whole("links"), fabrics=chained)
            yield "chains", self._write(schemas.CHAINS, made)

    def _chained(self) -> list[str]:
        """Fabrics with chains of which a message is touched."""
        touched = self._addresses().where(F.col("fabric").isin(*CHAINED)).select("fabric").distinct()
        return sorted(row["fabric"] for row in touched.collect())
