"""Gold: all answers from silver, or only those that new batches can have changed.

A row of gold depends on the hops and bytes of its own message, on the messages it is linked with, on the moment, and on
a few things that all rows share: settings, the names of the servers, the offsets of their clocks. Where a shared thing
has changed, or nothing was made before, all tables are made anew. Otherwise `delta` finds the messages that are
touched, and only their rows are made anew.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from dovetail.pipeline import schemas
from dovetail.pipeline.checks import findings
from dovetail.pipeline.facts import BatchFacts
from dovetail.pipeline.integrity import Verdict
from dovetail.pipeline.jobs.batch import DECODED_TABLE, SERVERS_TABLE, VERDICTS_TABLE, known_keys, node_keys
from dovetail.pipeline.jobs.delta import MANY_PEERS, Delta
from dovetail.pipeline.jobs.touched import Touched, gather
from dovetail.pipeline.session import tune
from dovetail.pipeline.settings import AuditSettings
from dovetail.pipeline.steps import gold_steps
from dovetail.pipeline.store import Change, RunRecord, Store
from dovetail.pipeline.tablefiles import local_rows
from dovetail.pipeline.transforms.edges import EDGES
from dovetail.pipeline.transforms.hops import SERVERS_SCHEMA, merge_servers
from dovetail.pipeline.transforms.messages import signed_messages

FORM = 2
"""Of the tables: when a transform gives other rows than before, gold made before is made anew."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def basis_of(settings: AuditSettings, facts: BatchFacts) -> str:
    """What all rows of gold depend on, as far as the driver knows it."""
    servers = sorted({(file.fabric, name) for file in facts.files if file.part for name in file.part.servers})
    return hashlib.sha256(repr((FORM, settings.fingerprint(), servers)).encode()).hexdigest()


def spread(facts: BatchFacts) -> int:
    """A swarm of many peers has more deliveries than hops: each message has one for each peer."""
    parts = [fact.part for fact in facts.files if fact.part is not None and fact.fabric == "swarm"]
    peers = {name for part in parts for name in part.servers}
    return sum(part.rows for part in parts) * len(peers) // MANY_PEERS


@dataclass(slots=True)
class Gold:
    """One making of the gold tables."""

    spark: SparkSession
    store: Store
    settings: AuditSettings
    facts: BatchFacts
    record: RunRecord
    say: Callable[[str], None]
    whole_below: int
    peers: Sequence[str] = ()
    tables: dict[str, DataFrame] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)

    def make(self, verdicts: Sequence[Verdict], previous: RunRecord | None) -> None:
        """Write what has changed since `previous` and put it in place."""
        spark, store = self.spark, self.store
        hops = sum(fact.part.rows for fact in self.facts.files if fact.part is not None)
        size = max(hops, spread(self.facts))
        tune(spark, size)
        self.say("integrity")
        integrity = local_rows(spark, [verdict.row() for verdict in verdicts], schemas.INTEGRITY.schema)
        self._keep("integrity", store.write_gold(schemas.INTEGRITY, integrity.coalesce(1)))
        is_new = previous is None or previous.batches != self.record.batches
        if is_new:
            self._sign_messages()
        self.tables |= {
            table.name: store.read_silver(spark, table) for table in schemas.TABLES if table.layer == "silver"
        }
        self.tables["servers"] = self._servers()
        touched = self._touched(previous, hops)
        if touched is None:
            self._make_all()
        else:
            self._make_touched(touched)
            tune(spark, size)
        self._find()
        store.publish_gold(self.changes.values(), self.record)

    @property
    def as_of(self) -> dt.datetime:
        """The moment the tables speak about."""
        return _EPOCH + dt.timedelta(microseconds=self.record.as_of_us)

    @property
    def fabrics(self) -> list[str]:
        """The fabrics that are in the lake."""
        return sorted({fact.manifest.fabric.value for fact in self.facts.manifests if fact.manifest is not None})

    def _sign_messages(self) -> None:
        if "won" not in self.fabrics:
            return
        spark, store = self.spark, self.store
        keys = known_keys(spark, store.read_silver(spark, schemas.KEYS), node_keys(self.settings, self.facts.manifests))
        decoded = store.read_silver(spark, DECODED_TABLE).where("fabric = 'won'")
        store.write_current(schemas.MESSAGES, signed_messages(decoded, store.read_silver(spark, VERDICTS_TABLE), keys))

    def _servers(self) -> DataFrame:
        rows = merge_servers(self.store.read_silver(self.spark, SERVERS_TABLE)).collect()
        self.peers = sorted(row["server"] for row in rows if row["fabric"] == "swarm")
        return local_rows(self.spark, rows, SERVERS_SCHEMA)

    def _touched(self, previous: RunRecord | None, hops: int) -> Touched | None:
        """What is touched, or None where everything has to be made."""
        record = self.record
        if previous is None or (previous.lake, previous.basis) != (record.lake, record.basis):
            return None
        if not set(previous.batches) <= set(record.batches) or previous.as_of_us > record.as_of_us:
            return None
        if hops <= self.whole_below:
            return None
        return gather(self.spark, self.store, previous, record)

    def _make_all(self) -> None:
        steps = gold_steps(self.settings.patience_us, self.fabrics, self.peers)
        made_here = {step.name for step in steps} | {"integrity", "findings"}
        for table in schemas.TABLES:
            if table.layer == "gold" and table.name not in made_here:
                self._keep(table.name, self.store.write_gold(table, local_rows(self.spark, [], table.schema)))
        for step in steps:
            self.say(step.name)
            inputs = [self.tables[name] for name in step.inputs]
            made = step.transform(*inputs, as_of=self.as_of) if step.is_dated else step.transform(*inputs)
            self._keep(step.name, self.store.write_gold(step.schema, made))

    def _make_touched(self, touched: Touched) -> None:
        delta = Delta(
            touched,
            self._whole,
            self.tables["servers"],
            self.facts,
            self.as_of,
            self.settings.patience_us,
            self.fabrics,
            self.peers,
        )
        for name, change in delta.make(self.say):
            self._keep(name, change)
        gold = [table.name for table in schemas.TABLES if table.layer == "gold" and table is not schemas.FINDINGS]
        self.tables |= {name: self._whole(name) for name in (*gold, "sightings")}

    def _whole(self, name: str) -> DataFrame:
        """A whole table as it is by now."""
        if name in self.changes:
            return self.store.read_next(self.spark, self.changes[name])
        table = schemas.BY_NAME[name]
        if table.layer == "silver":
            return self.store.read_silver(self.spark, table)
        return self.store.read_gold(self.spark, table).drop("file")

    def _keep(self, name: str, change: Change) -> None:
        self.tables[name] = self.store.read_next(self.spark, change)
        if change.table.name != EDGES.name:
            self.changes[name] = change

    def _find(self) -> None:
        self.say("findings")
        overdue = self.record.as_of_us - self.settings.patience_us
        tables = {**self.tables, **self._suspects()}
        found = findings(self.spark, tables, overdue_before_us=overdue)
        self._keep("findings", self.store.write_gold(schemas.FINDINGS, found.coalesce(1)))

    def _suspects(self) -> dict[str, DataFrame]:
        """Messages that cannot be believed and were taken in all the same, in the form that the checks ask for."""
        if "sightings" not in self.tables:
            return {}
        held = self.tables["sightings"].where("first_seen IS NOT NULL")
        doubted = held.where("fabric = 'won' OR work_valid = false").select("fabric", "message")
        hops = doubted.selectExpr("fabric", "message", "'accepted' AS stage")
        return {"hops": hops}
