"""What is new in the lake becomes silver: each file read, each message decoded, each signature verified once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit import schemas
from dovetail.audit.active_manifests import active_facts, hops_read_again, without
from dovetail.audit.arrow_sets import distinct
from dovetail.audit.decode import DECODED_SCHEMA, DECODER_INPUT, decoders
from dovetail.audit.ingest_log import UNCOMMITTED, BatchFacts, FileFact, ManifestFact, fact_rows
from dovetail.audit.integrity import committed_paths, proven_paths
from dovetail.audit.leaves import with_leaves
from dovetail.audit.local_rows import from_arrow, local_rows
from dovetail.audit.session import is_one_partition
from dovetail.audit.settings import AuditSettings
from dovetail.audit.signatures import VERDICT_SCHEMA, verify_signatures
from dovetail.audit.sources import (
    announced_files,
    check_retained,
    learn_files,
    read_digests,
    read_rows,
    retained_urls,
)
from dovetail.audit.state_tables import DECODED_TABLE, SERVERS_TABLE
from dovetail.audit.transforms import hops as hop_transforms
from dovetail.audit.transforms import messages as message_transforms
from dovetail.audit.transforms.swarm_messages import swarm_fields
from dovetail.audit.warehouse import Warehouse
from dovetail.lake.store import Store as LakeStore
from dovetail.model.errors import CheckpointError
from dovetail.tlog.keys import parse_verifier

_KNOWN = ("fabric", "digest", "message", "reject", "detail")
_MANY_REJECTS = 100_000
"""From so many on, what did not decode is joined with the rows instead of being sent to each of them."""

_SMALL_BATCH = 200_000
"""Up to so many rows their digests are looked up in what was decoded before; more are joined with all of it."""

_LOCAL_EVIDENCE_BYTES = 32 << 20
"""Up to so many bytes of quarantined messages pass through this process."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fresh:
    """The rows that a run appended, by table; empty tables are left out."""

    tables: dict[str, DataFrame]
    rows: int


@dataclass(frozen=True, slots=True)
class Ingest:
    """One run's reading of new manifests."""

    spark: SparkSession
    lake: LakeStore
    warehouse: Warehouse
    settings: AuditSettings
    say: Say

    def process(self, manifests: Sequence[ManifestFact], before: BatchFacts) -> BatchFacts:
        """Read what these manifests announce, append it to all silver tables, and say what was learnt."""
        known = {file.path for file in before.files}
        uncommitted = {file.path for file in before.files if file.error == UNCOMMITTED}
        everything = BatchFacts(manifests=[*before.manifests, *manifests], files=[])
        own = {fact.path for fact in manifests}
        every_active = active_facts(everything).manifests
        active = [fact for fact in every_active if fact.path in own]
        committed = committed_paths(every_active, self.settings.trusted)
        # what no signed root led to may have been announced before what leads to it
        announced = [(server, file) for server, file in announced_files(active) if file.path not in known]
        announced += [
            (server, file)
            for server, file in announced_files(every_active)
            if file.path in uncommitted and file.path in committed
        ]
        self.say("integrity: hash files and leaves")
        files = learn_files(self.spark, self.lake, announced, committed)
        files = check_retained(self.lake, announced, files)
        proven = proven_paths(every_active, files)
        rows = without(self._believed(files, proven), hops_read_again(before, active))
        self.say("hops")
        hops = self.warehouse.append("hops", hop_transforms.hops(rows))
        self._add_servers(hop_transforms.servers(hops))
        self.say("messages: decode")
        before_decoded = self._decoded_before(files)
        decoded = self._decode(rows, files, retained_urls(self.lake, announced, files), before_decoded)
        self.say("messages, links")
        self.warehouse.append("links", message_transforms.links(decoded))
        self.warehouse.append("keys", message_transforms.published_keys(decoded))
        self._quarantine(rows, files, decoded, before_decoded)
        if any(fact.fabric == "won" for fact in files):
            self._verify(decoded, [*before.manifests, *manifests])
        facts = BatchFacts(manifests=list(manifests), files=files)
        self.warehouse.append_arrow("ingest", fact_rows(facts, self.warehouse.run))
        return facts

    def _believed(self, files: Sequence[FileFact], proven: Collection[str]) -> DataFrame:
        """Rows as they were sealed. Only files in which the walk met an altered row have to be hashed a second time."""
        clean: dict[bool, list[str]] = {True: [], False: []}
        dirty: dict[bool, list[str]] = {True: [], False: []}
        for fact in files:
            if fact.is_own and fact.part is not None:
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

    def _add_servers(self, found: DataFrame) -> None:
        """The servers, each once with its earliest and latest time."""
        known = self.warehouse.arrow("servers")
        each = pa.concat_tables([known, found.toArrow().cast(SERVERS_TABLE.arrow)])
        merged = each.group_by(["fabric", "server"]).aggregate([("first_at", "min"), ("last_at", "max")])
        merged = merged.select(["fabric", "server", "first_at_min", "last_at_max"]).rename_columns(SERVERS_TABLE.names)
        order = [("fabric", "ascending"), ("server", "ascending")]
        if merged.sort_by(order) != known.sort_by(order):
            self.warehouse.overwrite_arrow("servers", merged.sort_by(order).cast(SERVERS_TABLE.arrow))

    def _decode(
        self, rows: DataFrame, files: Sequence[FileFact], retained: Sequence[str], before: DataFrame | None
    ) -> DataFrame:
        targets = {name: rules.pow_target for name, rules in self.settings.swarms.items()}
        waiting = message_transforms.undecoded(rows, before, targets=targets).select(*DECODER_INPUT)
        here = {fact.fabric for fact in files}
        decoded = [
            waiting.where(F.col("fabric") == fabric).mapInArrow(decoder, DECODED_SCHEMA)
            for fabric, decoder in decoders().items()
            if fabric in here and fabric != "swarm"
        ]
        if "swarm" in here:
            said = swarm_fields(waiting.where("fabric = 'swarm'"), epochs=self.settings.epochs)
            decoded.append(message_transforms.widen_swarm(said))
        if retained:
            recorded = self.spark.read.schema(DECODED_SCHEMA).parquet(*retained)
            ever = self.warehouse.read("decoded")
            decoded.append(message_transforms.unread(recorded, ever, waiting))
        nothing = local_rows(self.spark, [], DECODED_SCHEMA)
        return self.warehouse.append("decoded", reduce(DataFrame.unionByName, decoded, nothing))

    def _decoded_before(self, files: Sequence[FileFact]) -> DataFrame | None:
        """What earlier runs decoded; if this one is small, only what it has to do with."""
        if not self.warehouse.rows("decoded"):
            return None
        if rows_of(files) > _SMALL_BATCH:
            return self.warehouse.read("decoded").select(*_KNOWN)
        digests = distinct(read_digests(self.lake, (fact.path for fact in files if fact.part is not None)))
        known = self.warehouse.lookup("decoded", digests).select(_KNOWN)
        return from_arrow(self.spark, known)

    def _quarantine(
        self, rows: DataFrame, files: Sequence[FileFact], decoded: DataFrame, before: DataFrame | None
    ) -> None:
        self.say("quarantine")
        dirty = [fact.path for fact in files if fact.part is not None and fact.part.invalid]
        decoded = decoded.select(*_KNOWN)
        if before is not None:
            decoded = before.unionByName(decoded)
        bad = message_transforms.disbelieved(rows, decoded, few_rejects=self._has_few_rejects(decoded, files))
        if dirty:
            bad = bad.unionByName(hop_transforms.altered_rows(with_leaves(read_rows(self.spark, self.lake, dirty))))
        if is_one_partition(self.spark):
            bytes_of = bad.agg(F.sum(F.octet_length("bytes"))).first()
            if bytes_of is not None and (bytes_of[0] or 0) > _LOCAL_EVIDENCE_BYTES:
                self.warehouse.save("quarantine", bad)
                return
        self.warehouse.append("quarantine", bad)

    def _has_few_rejects(self, decoded: DataFrame, files: Sequence[FileFact]) -> bool:
        if rows_of(files) < _MANY_REJECTS:
            return True
        return decoded.where("fabric != 'won' AND reject IS NOT NULL").limit(_MANY_REJECTS).count() < _MANY_REJECTS

    def _verify(self, decoded: DataFrame, manifests: Sequence[ManifestFact]) -> None:
        """Verify what is new, and what is older and has waited for its signer's key."""
        self.say("messages: verify signatures")
        spark, warehouse = self.spark, self.warehouse
        keys = known_keys(spark, warehouse.read("keys"), node_keys(self.settings, manifests))
        new = decoded.where("fabric = 'won'")
        late = self._late(keys)
        waiting = message_transforms.to_verify(
            new if late is None else new.unionByName(late), warehouse.read("verdicts"), keys
        )
        warehouse.append("verdicts", waiting.mapInArrow(verify_signatures, VERDICT_SCHEMA))

    def _late(self, keys: DataFrame) -> DataFrame | None:
        """Messages of earlier runs without a verdict, whose signer's key came with this one."""
        warehouse = self.warehouse
        unknown = warehouse.scan("messages", ("message", "signer"), (("signature", "=", "unknown_key"),))
        if not unknown.num_rows:
            return None
        owners = keys.select("owner").distinct().toArrow()["owner"].combine_chunks()
        wanted = distinct(unknown.filter(pc.is_in(unknown["signer"], value_set=owners)).select(["message"]))
        if not wanted.num_rows:
            return None
        return from_arrow(self.spark, warehouse.lookup("decoded", wanted), DECODED_TABLE.schema)


def rows_of(files: Iterable[FileFact]) -> int:
    """How many hops these files have."""
    return sum(fact.part.rows for fact in files if fact.part is not None)


def node_keys(settings: AuditSettings, manifests: Sequence[ManifestFact]) -> list[tuple[str, bytes]]:
    """Keys of servers, as given to the audit or else as manifests state them: a node signs all with one key."""
    keys = {(verifier.name, verifier.public_key) for verifier in settings.trusted}
    for fact in manifests:
        if fact.manifest is not None and not settings.trusted:
            try:
                keys.add((fact.manifest.server, parse_verifier(fact.manifest.key).public_key))
            except CheckpointError:
                continue
    return sorted(keys)


def known_keys(spark: SparkSession, published: DataFrame, of_nodes: Sequence[tuple[str, bytes]]) -> DataFrame:
    """Keys that Create messages publish, and those of nodes."""
    rows = [(owner, key, None, None) for owner, key in of_nodes]
    return published.unionByName(local_rows(spark, rows, schemas.KEYS.schema))
