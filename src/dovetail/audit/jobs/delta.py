"""The rows of gold that follow from what new batches touch (`touched`).

All rows about touched messages are made from all of their hops; so are links that lead from them or to them, and chains
that they are part of. Of a large table only the files that hold such a row are replaced; small tables are written
whole. Sums are not made again from all rows: what the touched messages gave before is taken from them, and what they
give now is added.

What is touched is mostly as little as what is new, so that the session is tuned to it, whatever the size of the lake.
As long as that stays so, two threads make tables side by side: most of the time of a small query is not its tasks'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit import schemas
from dovetail.audit.fabric_audit import FabricAudit, Moment, communal, is_of
from dovetail.audit.ingest_log import BatchFacts
from dovetail.audit.jobs.changeset import (
    ADDRESS,
    BEFORE,
    BOUND,
    CHAINED_HOPS,
    CHAINED_LINKS,
    CHAINED_MESSAGES,
    NEAR,
    PAST_HOPS,
    TOUCHED,
    TOUCHED_HOPS,
    TOUCHED_LINKS,
    TOUCHED_MESSAGES,
    Touched,
    of_fabrics,
    state_table,
)
from dovetail.audit.jobs.contradictions import has_backward_edges, replace_forks
from dovetail.audit.jobs.search import Search, among
from dovetail.audit.schemas import Table
from dovetail.audit.session import SMALL_ROWS, tune
from dovetail.audit.store import Change
from dovetail.audit.tablefiles import from_arrow, has_nulls, read_here, to_arrow
from dovetail.audit.transforms.answers import answers
from dovetail.audit.transforms.chains import chains
from dovetail.audit.transforms.coverage import counts_of, message_coverage, peer_counts, peer_coverage
from dovetail.audit.transforms.deliveries import deliveries, latency
from dovetail.audit.transforms.forks import circular_links, edge_forks, group_forks, shared_keys
from dovetail.audit.transforms.gaps import dated, gaps
from dovetail.audit.transforms.holdings import SIGHTINGS, collect_sightings, sightings
from dovetail.audit.transforms.skew import LEGS, fastest_legs, skew
from dovetail.audit.transforms.suspect_links import EDGES, edges
from dovetail.audit.transforms.traffic import traffic

OWN = state_table("own", SIGHTINGS)
MADE_DELIVERIES = state_table("made_deliveries", schemas.DELIVERIES)
GONE_LATENCY = state_table("gone_latency", schemas.LATENCY)
MADE_COVERAGE = state_table("made_coverage", schemas.COVERAGE)
MADE_PEERS = state_table("made_peers", schemas.COVERAGE)
MADE_CHAINS = state_table("made_chains", schemas.CHAINS)
MADE_FORKS = state_table("made_forks", schemas.FORKS)

MANY_PEERS = 10
"""From so many peers on, deliveries make a lake larger than its hops do."""

_SMALL_FILE_BYTES = 8 << 20
MAX_SMALL_FILES = 16
"""What runs add one by one is put together when there are more small files than these."""

Tables = Callable[[str], DataFrame]
"""A whole table by name: silver, or gold as it is by now."""


@dataclass(slots=True)
class Delta:
    """One making of what has changed. `whole` reads whole tables; what is gathered of them is in `touched`."""

    touched: Touched
    whole: Tables
    servers: DataFrame
    facts: BatchFacts
    moment: Moment
    audits: Sequence[FabricAudit]
    present: Mapping[str, Sequence[str]]
    """The servers of each fabric."""
    reads: dict[str, DataFrame] = field(default_factory=dict)
    stale: dict[str, set[str]] = field(default_factory=dict)

    def make(self, say: Callable[[str], None]) -> Iterator[tuple[str, Change]]:
        """The changes, table by table; whoever asks for them keeps each one before the next is made."""
        self._fit()
        hops, messages = self._read(TOUCHED_HOPS), self._read(TOUCHED_MESSAGES)
        say("sightings")
        own = self._keep(OWN, sightings(hops, messages, audits=self.audits, servers=self.present))
        yield "sightings", self._replace(SIGHTINGS, [OWN], self._stale(SIGHTINGS))
        say("skew")
        yield from self._make_skew(hops)
        made = self._make_deliveries(hops, messages, own)
        if self._is_tuned_to_more():
            say("deliveries")
            yield from made
            yield from self._make_others(say)
            return
        with ThreadPoolExecutor(1) as thread:
            beside = thread.submit(list, made)
            yield from self._make_others(say)
            say("deliveries")
            yield from beside.result()

    def _make_others(self, say: Callable[[str], None]) -> Iterator[tuple[str, Change]]:
        """What does not depend on deliveries, nor they on it."""
        hops, messages, links = self._read(TOUCHED_HOPS), self._read(TOUCHED_MESSAGES), self._read(TOUCHED_LINKS)
        own, before = self._read(OWN), self._read(BEFORE)
        near, as_of = self._read(NEAR).unionByName(own), self.moment.as_of
        say("gaps")
        odd = self._keep(EDGES, edges(links, near, self.servers, audits=self.audits))
        children = links.select("fabric", "child").distinct()
        kept = among(self._present(schemas.GAPS), children, ("fabric", "child"), "left_anti")
        yield "gaps", self._write(schemas.GAPS, dated(kept, as_of=as_of), gaps(odd, near, as_of=as_of))
        if communal(self.audits):
            say("coverage")
            yield "coverage", self._make_coverage(own, before)
        say("traffic")
        yield "traffic", self._make_traffic(hops, messages, before)
        say("forks")
        made = [shared_keys(among(near, own.select("fabric", "key").distinct(), ("fabric", "key")), self.audits)]
        if has_backward_edges(self.touched.store.read_rows(EDGES)):
            made.append(edge_forks(odd, near, links, self.audits))
        made += circular_links(near, links, self._bound_audits())
        yield "forks", self._make_forks(made)
        if any(audit.chains for audit in self._bound_audits()):
            say("chains")
            yield "chains", self._make_chains()

    # rows of touched messages

    def _is_tuned_to_more(self) -> bool:
        """Whether the session is tuned to more than what is touched for a while: to a whole table, or large files."""
        if not self._has_same_clocks():
            return True
        replaced = [
            self._stale_files(schemas.DELIVERIES, self._stale(schemas.DELIVERIES)),
            self._stale_files(schemas.CHAINS, self._stale(schemas.CHAINS, self.touched.bound)),
        ]
        if communal(self.audits):
            replaced.append(self._stale_files(schemas.COVERAGE, self._stale(schemas.COVERAGE)))
        return self._rows() <= SMALL_ROWS and any(map(_are_large, replaced))

    def _fit(self, files: Iterable[Path] = (), rows: int = 0) -> None:
        """Tune the session to what is touched, and to these files or rows of whole tables if they are large."""
        tune(self.touched.spark, SMALL_ROWS + 1 if _are_large(files) else max(rows, self._rows()))

    def _rows(self) -> int:
        peers = sum(len(self.present.get(audit.name, ())) for audit in communal(self.audits))
        return max(self.touched.rows, self.touched.rows * peers // MANY_PEERS)

    def _read(self, table: Table) -> DataFrame:
        if table.name not in self.reads:
            self.reads[table.name] = self.touched.store.read_written(self.touched.spark, table)
        return self.reads[table.name]

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

    def _sum(self, table: DataFrame, plus: DataFrame, *minus: DataFrame, sums: Sequence[str]) -> DataFrame:
        """A table of sums with some added and some taken away; the first of `sums` is how many there are."""
        keys = [name for name in table.columns if name not in sums]
        negated = [gone.select(*keys, *((-F.col(name)).alias(name) for name in sums)) for gone in minus]
        each = reduce(DataFrame.unionByName, [table, plus.select(*table.columns), *negated])
        return each.groupBy(*keys).agg(*(F.sum(name).alias(name) for name in sums)).where(F.col(sums[0]) > 0)

    # large tables

    def _stale(self, table: Table, addresses: pa.Table | None = None) -> set[str]:
        """Files with rows of touched messages, or of these; and small files once they are many."""
        if table.name not in self.stale:
            self.stale[table.name] = self._look_for_stale(table, self.touched.known if addresses is None else addresses)
        return self.stale[table.name]

    def _look_for_stale(self, table: Table, wanted: pa.Table) -> set[str]:
        touched, files = self.touched, self.touched.store.gold_files(table)
        if "fabric" not in table.schema.names:
            wanted = of_fabrics(wanted, communal(self.audits)).select(["message"])
        small = {path.name for path in files if path.stat().st_size < _SMALL_FILE_BYTES}
        found = Search(touched.spark, touched.store, touched.rows).holding(table, files, wanted)
        return found | (small if len(small) > MAX_SMALL_FILES else set())

    def _stale_files(self, table: Table, stale: Collection[str]) -> list[Path]:
        return [path for path in self.touched.store.gold_files(table) if path.name in stale]

    def _stale_rows(
        self, table: Table, stale: Iterable[str], how: str, addresses: DataFrame | None = None
    ) -> DataFrame:
        """The rows of these files about touched messages, or these, or about all others."""
        rows = self.touched.store.read_files(self.touched.spark, table, sorted(stale)).where("message IS NOT NULL")
        addresses = self._addresses() if addresses is None else addresses
        if "fabric" in table.schema.names:
            return among(rows, addresses, ADDRESS, how)
        return among(rows, addresses.where(is_of(communal(self.audits))), ("message",), how)

    def _replace(
        self, table: Table, made: Sequence[Table], stale: Collection[str], addresses: DataFrame | None = None
    ) -> Change:
        """Replace the rows of touched messages, or of these, by what was made; `stale` are the files that hold any."""
        store = self.touched.store
        if not stale:
            return store.write_files(table, None, made, ())
        self._fit(self._stale_files(table, stale))
        kept = self._stale_rows(table, stale, "left_anti", addresses).select(*table.schema.names)
        change = store.write_files(table, kept, made, stale)
        self._fit()
        return change

    # tables

    def _make_skew(self, hops: DataFrame) -> Iterator[tuple[str, Change]]:
        if not any(audit.forwards for audit in self.audits):
            return
        fastest = to_arrow(self._fastest_legs(hops), LEGS.schema)
        yield "legs", self.touched.store.write_gold_rows(LEGS, [fastest])
        yield "skew", self._write(schemas.SKEW, skew(from_arrow(self.touched.spark, fastest, LEGS.schema)))

    def _fastest_legs(self, hops: DataFrame) -> list[tuple[str, str, int, int]]:
        """The fastest legs with those of touched messages changed; all anew if a fastest one is no longer there."""
        present = read_here(LEGS, self.touched.store.gold_files(LEGS))
        past = fastest_legs(self._read(PAST_HOPS)).toArrow() if self.touched.known_fabrics else present.slice(0, 0)
        before, gone, now = (
            {(row["source"], row["target"]): (row["least_us"], row["legs"]) for row in legs.to_pylist()}
            for legs in (present, past, fastest_legs(hops).toArrow())
        )
        merged = {}
        for pair in {*before, *now}:
            least_us, legs = before.get(pair, (None, 0))
            new_us, new_legs = now.get(pair, (None, 0))
            old_us, old_legs = gone.get(pair, (None, 0))
            if old_us is not None and old_us == least_us and (new_us is None or new_us > old_us):
                self._fit(rows=self._all_hops())
                rows = fastest_legs(self.whole("hops")).collect()
                self._fit()
                return [tuple(row) for row in rows]
            merged[pair] = (min(us for us in (least_us, new_us) if us is not None), legs - old_legs + new_legs)
        return [(*pair, least_us, legs) for pair, (least_us, legs) in merged.items()]

    def _all_hops(self) -> int:
        return sum(fact.part.rows for fact in self.facts.files if fact.part is not None)

    def _make_deliveries(self, hops: DataFrame, messages: DataFrame, own: DataFrame) -> Iterator[tuple[str, Change]]:
        if not self._has_same_clocks():
            self._fit(rows=self._all_hops())
            every, known, seen = (self.whole(name) for name in ("hops", "messages", "sightings"))
            given = answers(every, known, self.whole("links"), audits=self.audits)
            made = self._deliveries(every, known, seen, given, self.audits)
            yield "deliveries", self._write(schemas.DELIVERIES, made)
            yield "latency", self._write(schemas.LATENCY, latency(self.whole("deliveries")))
            self._fit()
            return
        here = set(self.touched.addresses["fabric"].unique().to_pylist())
        audits = [audit for audit in self.audits if audit.name in here]
        given = answers(*self._chained(), audits=audits)
        made = self._keep(MADE_DELIVERIES, self._deliveries(hops, messages, own, given, audits))
        stale = self._stale(schemas.DELIVERIES)
        summed = [self._present(schemas.LATENCY), latency(made)]
        if stale:
            self._fit(self._stale_files(schemas.DELIVERIES, stale))
            gone = self._stale_rows(schemas.DELIVERIES, stale, "left_semi")
            summed.append(self._keep(GONE_LATENCY, latency(gone)))
        yield "deliveries", self._replace(schemas.DELIVERIES, [MADE_DELIVERIES], stale)
        yield "latency", self._write(schemas.LATENCY, self._sum(*summed, sums=["deliveries"]))

    def _deliveries(
        self,
        hops: DataFrame,
        messages: DataFrame,
        seen: DataFrame,
        given: DataFrame,
        audits: Sequence[FabricAudit],
    ) -> DataFrame:
        skewed = self.whole("skew")
        return deliveries(hops, messages, seen, given, self.servers, skewed, moment=self.moment, audits=audits)

    def _has_same_clocks(self) -> bool:
        """Whether latencies are corrected as they were before."""
        if not any(audit.forwards for audit in self.audits):
            return True
        store, offsets = self.touched.store, ["server", "other", "offset_us"]
        before, now = read_here(schemas.SKEW, store.gold_files(schemas.SKEW)), store.read_rows(schemas.SKEW)
        return sorted(map(repr, before.select(offsets).to_pylist())) == sorted(
            map(repr, now.select(offsets).to_pylist())
        )

    def _make_coverage(self, own: DataFrame, before: DataFrame) -> Change:
        """Rows of peers are made in every run, so that they lie in a file of their own."""
        of_peers = [path for path in self.touched.store.gold_files(schemas.COVERAGE) if has_nulls(path, "message")]
        peers = read_here(schemas.COVERAGE, of_peers)
        counts = counts_of(
            from_arrow(self.touched.spark, peers.filter(pc.field("scope") == "peer"), schemas.COVERAGE.schema)
        )
        known = set(self.touched.known_fabrics)
        is_known = any(audit.name in known for audit in communal(self.audits))
        gone = [peer_counts(before, self.audits)] if is_known else []
        summed = self._sum(counts, peer_counts(own, self.audits), *gone, sums=["many"])
        self._keep(MADE_PEERS, peer_coverage(summed, self.servers, self.audits))
        self._keep(MADE_COVERAGE, message_coverage(own, self.servers, self.audits))
        stale = self._stale(schemas.COVERAGE) | {path.name for path in of_peers}
        return self._replace(schemas.COVERAGE, [MADE_COVERAGE, MADE_PEERS], stale)

    def _make_traffic(self, hops: DataFrame, messages: DataFrame, before: DataFrame) -> Change:
        """A message's hops are counted under its type, which may be known only now."""
        summed = [self._present(schemas.TRAFFIC), traffic(hops, messages)]
        if self.touched.known_fabrics:
            summed.append(traffic(self._read(PAST_HOPS), among(messages, before.where("is_decoded"), ADDRESS)))
        return self._write(schemas.TRAFFIC, self._sum(*summed, sums=["hops", "messages", "bytes"]))

    def _make_forks(self, made: list[DataFrame]) -> Change:
        """Forks of touched messages; groups may have grown, so that all of them about such a subject are replaced."""
        grouped = [audit for audit in self._bound_audits() if audit.forks]
        if grouped:
            hops, messages, links = self._chained()
            seen = collect_sightings(hops, messages, audits=grouped)
            made += group_forks(seen, messages, links, grouped)
        self._keep(MADE_FORKS, reduce(DataFrame.unionByName, made).select(*schemas.FORKS.schema.names))
        store = self.touched.store
        present, found = read_here(schemas.FORKS, store.gold_files(schemas.FORKS)), store.read_rows(MADE_FORKS)
        return store.write_gold_rows(schemas.FORKS, replace_forks(present, found, self.touched.addresses))

    def _make_chains(self) -> Change:
        """Chains of all that is bound to a touched message."""
        hops, messages, links = self._chained()
        made = chains(hops, messages, links, audits=self._bound_audits())
        self._keep(MADE_CHAINS, among(made, self._read(BOUND), ADDRESS).select(*schemas.CHAINS.schema.names))
        stale = self._stale(schemas.CHAINS, self.touched.bound)
        return self._replace(schemas.CHAINS, [MADE_CHAINS], stale, self._read(BOUND))

    def _chained(self) -> tuple[DataFrame, DataFrame, DataFrame]:
        """What chains are told from."""
        return self._read(CHAINED_HOPS), self._read(CHAINED_MESSAGES), self._read(CHAINED_LINKS)

    def _bound_audits(self) -> list[FabricAudit]:
        """Those of fabrics of which a message is bound."""
        bound = set(self.touched.bound["fabric"].unique().to_pylist())
        return [audit for audit in self.audits if audit.is_chained and audit.name in bound]


def _are_large(files: Iterable[Path]) -> bool:
    return sum(path.stat().st_size for path in files) > _SMALL_FILE_BYTES
