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
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit import schemas
from dovetail.audit.checks import findings
from dovetail.audit.fabric_audit import FabricAudit, Moment, communal, is_of
from dovetail.audit.fabrics import AUDITS, audits_of
from dovetail.audit.ingest_log import BatchFacts
from dovetail.audit.integrity import Verdict
from dovetail.audit.jobs.batch import DECODED_TABLE, SERVERS_TABLE, VERDICTS_TABLE, known_keys, node_keys
from dovetail.audit.jobs.changeset import ADDRESS, Touched, gather, state_table
from dovetail.audit.jobs.delta import MANY_PEERS, MAX_SMALL_FILES, Delta
from dovetail.audit.jobs.search import Search, among, distinct
from dovetail.audit.session import tune
from dovetail.audit.settings import AuditSettings
from dovetail.audit.steps import gold_steps
from dovetail.audit.store import Change, RunRecord, Store
from dovetail.audit.tablefiles import from_arrow, local_rows, read_here, read_table, scan_here, to_arrow
from dovetail.audit.transforms.answers import ANSWERS
from dovetail.audit.transforms.hops import SERVERS_SCHEMA
from dovetail.audit.transforms.messages import signed_messages
from dovetail.audit.transforms.suspect_links import EDGES
from dovetail.model.times import to_datetime

FORM = 5
"""Of the tables: when a transform gives other rows than before, gold made before is made anew."""

SIGNED = state_table("signed", DECODED_TABLE)
JUDGED = state_table("judged", VERDICTS_TABLE)


def basis_of(settings: AuditSettings, facts: BatchFacts) -> str:
    """What all rows of gold depend on, as far as the driver knows it."""
    servers = sorted({(file.fabric, name) for file in facts.files if file.part for name in file.part.servers})
    return hashlib.sha256(repr((FORM, settings.fingerprint(), servers)).encode()).hexdigest()


def spread(facts: BatchFacts) -> int:
    """A community of many servers has more deliveries than hops: each message has one for each of them."""
    names = {audit.name for audit in communal(AUDITS)}
    parts = [fact.part for fact in facts.files if fact.part is not None and fact.fabric in names]
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
    servers: dict[str, list[str]] = field(default_factory=dict)
    """The servers of each fabric."""
    tables: dict[str, DataFrame] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)

    def make(self, verdicts: Sequence[Verdict], previous: RunRecord | None) -> None:
        """Write what has changed since `previous` and put it in place."""
        spark, store = self.spark, self.store
        hops = sum(fact.part.rows for fact in self.facts.files if fact.part is not None)
        size = max(hops, spread(self.facts))
        tune(spark, size)
        self.say("integrity")
        integrity = to_arrow([verdict.row() for verdict in verdicts], schemas.INTEGRITY.schema)
        self._keep("integrity", store.write_gold_rows(schemas.INTEGRITY, [integrity]))
        if previous is None or previous.batches != self.record.batches:
            self._sign_messages(previous)
            tune(spark, size)
        self.tables |= {
            table.name: store.read_silver(spark, table) for table in schemas.TABLES if table.layer == "silver"
        }
        self.tables["servers"] = self._servers()
        self.say("what is touched")
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
        return to_datetime(self.record.as_of_us)

    @property
    def audits(self) -> list[FabricAudit]:
        """Those of the fabrics that are in the lake."""
        return audits_of({fact.manifest.fabric for fact in self.facts.manifests if fact.manifest is not None})

    def _sign_messages(self, previous: RunRecord | None) -> None:
        """Say of all signed messages what is known of their signatures, or of those about which more is known now."""
        signed = [audit for audit in self.audits if audit.fabric.is_signed]
        if not signed:
            return
        spark, store = self.spark, self.store
        published = store.read_silver(spark, schemas.KEYS)
        keys = known_keys(spark, published, node_keys(self.settings, self.facts.manifests))
        files, decoded, verdicts = store.current_files(schemas.MESSAGES), DECODED_TABLE, VERDICTS_TABLE
        if previous is None or files is None or not set(previous.batches) <= set(self.record.batches):
            rows = store.read_silver(spark, decoded).where(is_of(signed))
            store.write_current(schemas.MESSAGES, signed_messages(rows, store.read_silver(spark, verdicts), keys))
            return
        changed = self._newly_judged(signed, files, sorted(set(self.record.batches) - set(previous.batches)))
        search = Search(spark, store, changed.num_rows)
        tune(spark, changed.num_rows)
        stale = search.holding(schemas.MESSAGES, files, changed)
        stale = stale if len(files) - len(stale) < MAX_SMALL_FILES else {file.name for file in files}
        judged = store.batch_files(verdicts, self.record.batches)
        store.write_rows(SIGNED, [search.take(SIGNED, store.batch_files(decoded, self.record.batches), changed)])
        store.write_rows(JUDGED, [search.take(JUDGED, judged, changed.select(["message"]))])
        made = signed_messages(store.read_written(spark, SIGNED), store.read_written(spark, JUDGED), keys)
        kept = read_table(spark, schemas.MESSAGES, [file for file in files if file.name in stale])
        rows = among(kept, from_arrow(spark, changed), changed.column_names, "left_anti").unionByName(made)
        store.write_current(schemas.MESSAGES, rows, [file for file in files if file.name not in stale])

    def _newly_judged(self, signed: Sequence[FabricAudit], files: Sequence[Path], new: Sequence[int]) -> pa.Table:
        """Signed messages that are new, have a verdict now, or whose signer has published a key now."""
        store, names = self.store, [audit.name for audit in signed]
        decoded = read_here(DECODED_TABLE, store.batch_files(DECODED_TABLE, new), ADDRESS)
        verdicts = read_here(VERDICTS_TABLE, store.batch_files(VERDICTS_TABLE, new), ["message"])
        owners = read_here(schemas.KEYS, store.batch_files(schemas.KEYS, new), ["owner"])["owner"].unique()
        is_waiting = (pc.field("signature") == "unknown_key") & pc.field("signer").isin(owners)
        waiting = scan_here(schemas.MESSAGES, files, is_waiting, ("signature", "signer"), ADDRESS)
        judged = [
            pa.table([pa.array([name] * verdicts.num_rows, pa.string()), verdicts["message"]], names=ADDRESS)
            for name in names
        ]
        return distinct(decoded.filter(pc.field("fabric").isin(names)).drop_null(), *judged, *waiting)

    def _servers(self) -> DataFrame:
        """The servers of all batches, each once with its earliest and latest time."""
        parts = read_here(SERVERS_TABLE, self.store.batch_files(SERVERS_TABLE, self.record.batches))
        merged = parts.group_by(["fabric", "server"]).aggregate([("first_at", "min"), ("last_at", "max")])
        merged = merged.select(["fabric", "server", "first_at_min", "last_at_max"]).rename_columns(SERVERS_SCHEMA.names)
        rows = merged.to_pylist()
        for row in sorted(rows, key=lambda row: str(row["server"])):
            self.servers.setdefault(row["fabric"], []).append(row["server"])
        return from_arrow(self.spark, merged, SERVERS_SCHEMA)

    def _touched(self, previous: RunRecord | None, hops: int) -> Touched | None:
        """What is touched, or None where everything has to be made."""
        record = self.record
        if previous is None or (previous.lake, previous.basis) != (record.lake, record.basis):
            return None
        if not set(previous.batches) <= set(record.batches) or previous.as_of_us > record.as_of_us:
            return None
        if hops <= self.whole_below:
            return None
        return gather(self.spark, self.store, previous, record, self.settings.patience_us)

    def _make_all(self) -> None:
        steps = gold_steps(self.settings.patience_us, self.audits, self.servers)
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
            Moment(self.as_of, self.settings.patience_us),
            self.audits,
            self.servers,
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
        if change.table.name not in (EDGES.name, ANSWERS.name):
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
        is_signed = is_of(audit for audit in self.audits if audit.fabric.is_signed)
        doubted = held.where(is_signed | (F.col("work_valid") == F.lit(False))).select("fabric", "message")
        return {"taken": doubted}
