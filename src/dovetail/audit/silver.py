"""Adds what is new in the lake to silver: each file is read, each message decoded, each signature verified once."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit import schemas
from dovetail.audit.active_manifests import active_facts, hops_read_again, without
from dovetail.audit.arrow_sets import distinct
from dovetail.audit.decode import DECODED_SCHEMA, DECODER_INPUT, VERDICT, verify_by
from dovetail.audit.fabric_audit import FabricAudit, is_of, signed, union
from dovetail.audit.fabrics import audits_of
from dovetail.audit.failures import FileChanged, LeftOut
from dovetail.audit.ingest_log import UNCOMMITTED, BatchFacts, FileFact, ManifestFact, fact_rows
from dovetail.audit.leaves import with_leaves
from dovetail.audit.local_rows import from_arrow, local_rows, map_batches
from dovetail.audit.proven_files import committed_paths, proven_paths
from dovetail.audit.reach import with_reaches
from dovetail.audit.session import is_one_partition, read_files
from dovetail.audit.settings import AuditSettings
from dovetail.audit.sources import (
    announced_files,
    check_retained,
    learn_files,
    read_digests,
    read_rows,
    retained_tags,
    retained_urls,
)
from dovetail.audit.state_tables import DECODED_TABLE, SERVERS_TABLE
from dovetail.audit.transforms import hops as hop_transforms
from dovetail.audit.transforms import messages as message_transforms
from dovetail.audit.warehouse import Warehouse
from dovetail.lake.store import Store as LakeStore
from dovetail.model.errors import CheckpointError
from dovetail.model.hop import Reason
from dovetail.tlog.keys import parse_verifier

_KNOWN = ("fabric", "digest", "message", "reject", "detail")
_MANY_REJECTS = 100_000
"""From this many on, rejects are joined with the rows instead of being broadcast."""

_SMALL_BATCH = 200_000
"""Up to this many rows are looked up by digest in what was decoded before; more are joined with all of it."""

_SEEN = pa.schema([field for field in SERVERS_TABLE.arrow if field.name != "reaches"])
"""What hops tell about their server."""

_ABSENCES = _SEEN.field("absences").type
MAX_ABSENCES = 1_000
"""Number of absences kept of each server: the longest."""

_LOCAL_EVIDENCE_BYTES = 32 << 20
"""Up to this many bytes of quarantined messages pass through this process."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ingest:
    """One run's ingestion of new manifests, and of files that could not be read before, into `TABLES`."""

    TABLES: ClassVar = ("hops", "decoded", "links", "keys", "quarantine", "verdicts", "servers")
    spark: SparkSession
    lake: LakeStore
    warehouse: Warehouse
    settings: AuditSettings
    report: Report

    def process(self, manifests: Sequence[ManifestFact], before: BatchFacts, left_out: LeftOut) -> BatchFacts:
        """Read what these manifests announce, append it to all silver tables, and return the facts."""
        everything = BatchFacts(manifests=[*before.manifests, *manifests], files=[])
        active = active_facts(everything, self.settings.trusted).manifests
        committed = committed_paths(active, self.settings.trusted)
        # a file that no signed root led to may have been announced before the manifest that leads to it
        known = {file.path for file in before.files if file.error != UNCOMMITTED or file.path not in committed}
        announced = [(server, file) for server, file in announced_files(active) if file.path not in known]
        paths = {file.path for _, file in announced}
        reading = [fact for fact in active if fact.manifest and any(file.path in paths for file in fact.manifest.files)]
        self.report("integrity: hash files and leaves")
        files = learn_files(self.spark, self.lake, announced, committed, left_out)
        again = hops_read_again(before, reading)
        tags = retained_tags(self.lake, announced)
        files = check_retained(self.lake, announced, files, self.settings.trusted, again)
        proven = proven_paths(active, files)
        rows = without(self._believed(files, proven), again)
        self.report("hops")
        hops = self.warehouse.append("hops", hop_transforms.hops(rows))
        self._add_servers(hops, active, [*before.files, *files])
        self.report("messages: decode")
        before_decoded = self._decoded_before(files)
        audits = audits_of({fact.fabric for fact in files})
        decoded = self._decode(rows, audits, retained_urls(self.lake, announced, files), before_decoded)
        now = retained_tags(self.lake, announced)
        if changed := {path for path in tags.keys() | now.keys() if tags.get(path) != now.get(path)}:
            raise FileChanged(changed)  # what was checked may not be what was read
        self.report("messages, links")
        if self._has(pc.list_value_length(pc.field("links")) > 0):
            self.warehouse.append("links", message_transforms.links(decoded))
        if self._has(pc.field("public_key").is_valid()):
            self.warehouse.append("keys", message_transforms.published_keys(decoded))
        self._quarantine(rows, files, decoded, before_decoded, audits)
        for audit in signed(audits):
            self._verify(audit, decoded, active)
        facts = BatchFacts(manifests=list(manifests), files=files)
        self.warehouse.append_arrow("ingest", fact_rows(facts, self.warehouse.run))
        return facts

    def _believed(self, files: Sequence[FileFact], proven: Collection[str]) -> DataFrame:
        """Rows as they were sealed. Only files in which the scan found an altered row are hashed again."""
        clean: dict[bool, list[str]] = {True: [], False: []}
        dirty: dict[bool, list[str]] = {True: [], False: []}
        for fact in files:
            if fact.is_own and fact.part is not None and (fact.path in proven or not self.settings.proven_only):
                (dirty if fact.part.invalid else clean)[fact.path in proven].append(fact.path)
        rows = self._read(clean[True], is_proven=True)
        if clean[False]:
            rows = rows.unionByName(self._read(clean[False], is_proven=False))
        for is_proven, paths in dirty.items():
            if paths:
                checked = with_leaves(self._read(paths, is_proven=is_proven)).where("leaf_valid")
                rows = rows.unionByName(checked.select(*rows.columns))
        return rows

    def _read(self, paths: Sequence[str], *, is_proven: bool) -> DataFrame:
        return read_rows(self.spark, self.lake, paths).withColumn("proven", F.lit(is_proven))

    def _has(self, where: pc.Expression) -> bool:
        """True if any decoded message matches; also if that is not known here."""
        if not is_one_partition(self.spark):
            return True
        return bool(self.warehouse.fresh("decoded").filter(where).num_rows)

    def _add_servers(self, hops: DataFrame, manifests: Sequence[ManifestFact], files: Sequence[FileFact]) -> None:
        """The servers, each once: its earliest and latest time, its longest absences, what is known of its journal."""
        known = self.warehouse.arrow("servers")
        found = None
        if is_one_partition(self.spark):
            fresh = self.warehouse.fresh("hops")
            if Reason.RESTARTED.value not in fresh["reason"].unique().to_pylist():
                found = fresh.select(["fabric", "server", "at", "at"]).rename_columns(_SEEN.names[:-1])
                found = found.append_column(_SEEN.field("absences"), pa.nulls(found.num_rows, _ABSENCES))
        if found is None:
            found = hop_transforms.servers(hops).toArrow()
        each = pa.concat_tables([known.select(_SEEN.names), found.cast(_SEEN)])
        merged = with_reaches(merge_servers(each), manifests, files)
        if merged != known:
            self.warehouse.overwrite_arrow("servers", merged)

    def _decode(
        self, rows: DataFrame, audits: Sequence[FabricAudit], retained: Sequence[str], before: DataFrame | None
    ) -> DataFrame:
        agreements = self.settings.agreements
        waiting = message_transforms.undecoded(rows, before, audits=audits, agreements=agreements)
        waiting = waiting.select(*DECODER_INPUT)
        decoded = [audit.decode(waiting.where(is_of([audit])), agreements) for audit in audits]
        if retained:
            recorded = read_files(self.spark, DECODED_SCHEMA, retained)
            ever = self.warehouse.read("decoded")
            decoded.append(message_transforms.unread(recorded, rows, ever, waiting, audits=audits))
        return self.warehouse.append("decoded", union(decoded or [local_rows(self.spark, [], DECODED_SCHEMA)]))

    def _decoded_before(self, files: Sequence[FileFact]) -> DataFrame | None:
        """Messages decoded by earlier runs; if this run is small, only those it needs."""
        if not self.warehouse.rows("decoded"):
            return None
        if rows_of(files) > _SMALL_BATCH:
            return self.warehouse.read("decoded").select(*_KNOWN)
        digests = distinct(read_digests(self.lake, (fact.path for fact in files if fact.part is not None)))
        known = self.warehouse.lookup("decoded", digests).select(_KNOWN)
        return from_arrow(self.spark, known)

    def _quarantine(
        self,
        rows: DataFrame,
        files: Sequence[FileFact],
        decoded: DataFrame,
        before: DataFrame | None,
        audits: Sequence[FabricAudit],
    ) -> None:
        self.report("quarantine")
        dirty = [fact.path for fact in files if fact.part is not None and fact.part.invalid]
        decoded = decoded.select(*_KNOWN)
        if before is not None:
            decoded = before.unionByName(decoded)
        is_few = rows_of(files) < _MANY_REJECTS or _count_rejects(decoded, audits) < _MANY_REJECTS
        bad = message_transforms.disbelieved(rows, decoded, audits=audits, few_rejects=is_few)
        if dirty:
            bad = bad.unionByName(hop_transforms.altered_rows(with_leaves(read_rows(self.spark, self.lake, dirty))))
        if is_one_partition(self.spark):
            sizes = bad.select(F.octet_length("bytes").alias("size")).toArrow()["size"]
            if not len(sizes):
                return
            if (pc.sum(sizes).as_py() or 0) > _LOCAL_EVIDENCE_BYTES:
                self.warehouse.save("quarantine", bad)
                return
        self.warehouse.append("quarantine", bad)

    def _verify(self, audit: FabricAudit, decoded: DataFrame, manifests: Sequence[ManifestFact]) -> None:
        """Verify new messages, and older ones that waited for their signer's key."""
        self.report("messages: verify signatures")
        warehouse = self.warehouse
        of_nodes = node_keys(self.settings, manifests)
        keys = known_keys(self.spark, warehouse.read("keys"), of_nodes)
        late = self._late(audit, [owner for owner, _ in of_nodes])
        if late is None and not self._has((pc.field("fabric") == audit.name) & pc.field("signature").is_valid()):
            return
        new = decoded if late is None else decoded.unionByName(late)
        waiting = message_transforms.to_verify(new, warehouse.read("verdicts"), keys, audit)
        warehouse.append("verdicts", map_batches(waiting, partial(verify_by, audit.fabric), VERDICT))

    def _late(self, audit: FabricAudit, nodes: Sequence[str]) -> DataFrame | None:
        """Messages of earlier runs whose signer's key arrived with this one, or may have been given to it."""
        warehouse = self.warehouse
        publishing = warehouse.fresh("keys")["owner"].unique()
        waiting = ("signature", "in", ["unknown_key", "invalid"])
        signers = ("signer", "in", sorted({*publishing.to_pylist(), *nodes}))
        found = warehouse.scan(
            "messages", ("message", "signer", "signature"), (("fabric", "=", audit.name), waiting, signers)
        )
        # another key of the same signer may be the one a message names; servers' keys are known from the start
        is_late = pc.or_(pc.equal(found["signature"], "unknown_key"), pc.is_in(found["signer"], value_set=publishing))
        wanted = distinct(found.filter(is_late).select(["message"]))
        if not wanted.num_rows:
            return None
        return from_arrow(self.spark, warehouse.lookup("decoded", wanted), DECODED_TABLE.schema)


def _count_rejects(decoded: DataFrame, audits: Sequence[FabricAudit]) -> int:
    rejects = decoded.where(is_of(message_transforms.hashed(audits)) & F.col("reject").isNotNull())
    return rejects.limit(_MANY_REJECTS).count()


def rows_of(files: Iterable[FileFact]) -> int:
    """Number of hops in these files."""
    return sum(fact.part.rows for fact in files if fact.part is not None)


def node_keys(settings: AuditSettings, manifests: Iterable[ManifestFact]) -> list[tuple[str, bytes]]:
    """Keys of servers, given to the audit or else stated in active manifests: a node signs everything with one key.

    If manifests of a server state two, nobody can tell which one is its own.
    """
    if settings.trusted:
        return sorted({(verifier.name, verifier.public_key) for verifier in settings.trusted})
    stated: dict[str, set[str]] = {}
    for fact in manifests:
        if fact.manifest is not None:
            stated.setdefault(fact.manifest.server, set()).add(fact.manifest.key)
    keys = []
    for server, texts in stated.items():
        with contextlib.suppress(CheckpointError):
            keys += [(server, parse_verifier(text).public_key) for text in texts if len(texts) == 1]
    return sorted(keys)


def known_keys(spark: SparkSession, published: DataFrame, of_nodes: Sequence[tuple[str, bytes]]) -> DataFrame:
    """Keys that Create messages publish, and those of nodes."""
    rows = [(owner, key, None, None) for owner, key in of_nodes]
    return published.unionByName(local_rows(spark, rows, schemas.KEYS.schema))


def merge_servers(rows: pa.Table) -> pa.Table:
    """One row for each server, of rows of `servers` from several batches."""
    keys = ["fabric", "server"]
    merged = rows.group_by(keys).aggregate([("first_at", "min"), ("last_at", "max")])
    merged = merged.sort_by([(key, "ascending") for key in keys])
    absences: dict[tuple[str, str], set[tuple[dt.datetime, dt.datetime]]] = {}
    for row in rows.filter(pc.list_value_length(pc.field("absences")) > 0).to_pylist():
        found = {(one["since"], one["until"]) for one in row["absences"]}
        absences.setdefault((row["fabric"], row["server"]), set()).update(found)
    longest = [
        sorted(absences.get(key, ()), key=lambda one: (one[0] - one[1], one))[:MAX_ABSENCES]
        for key in zip(*(merged[key].to_pylist() for key in keys), strict=True)
    ]
    columns = [*(merged[name] for name in (*keys, "first_at_min", "last_at_max")), pa.array(longest, _ABSENCES)]
    return pa.table(columns, schema=_SEEN)
