"""One batch of manifests becomes silver: each file read, each message decoded, each signature verified once.

Every step overwrites only what the same batch wrote before, and the batch counts when its facts are written last; so a
batch that was interrupted is simply done again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by
from pyspark.sql.types import StructType

from dovetail.audit import schemas
from dovetail.audit.active_manifests import active_facts, hops_read_again, without
from dovetail.audit.decode import DECODED_SCHEMA, DECODER_INPUT, decoders
from dovetail.audit.ingest_log import BatchFacts, FileFact, ManifestFact
from dovetail.audit.integrity import committed_paths, proven_paths
from dovetail.audit.jobs.search import Search, distinct
from dovetail.audit.leaves import with_leaves
from dovetail.audit.schemas import Table
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
from dovetail.audit.store import Store
from dovetail.audit.tablefiles import local_rows, read_here, read_table, scan_here
from dovetail.audit.transforms import hops as hop_transforms
from dovetail.audit.transforms import messages as message_transforms
from dovetail.audit.transforms.hops import SERVERS_SCHEMA
from dovetail.audit.transforms.swarm_messages import swarm_fields
from dovetail.lake.store import Store as LakeStore
from dovetail.model.errors import CheckpointError
from dovetail.tlog.keys import parse_verifier

DECODED_TABLE = Table(
    "_state/decoded", "silver", "What decoding gave, once per sequence of bytes.", ("digest",), DECODED_SCHEMA
)
SERVERS_TABLE = Table(
    "_state/servers",
    "silver",
    "Servers with hops, their earliest and latest time.",
    ("fabric", "server"),
    SERVERS_SCHEMA,
)
VERDICTS_TABLE = Table("_state/verdicts", "silver", "Signatures that were verified.", ("message",), VERDICT_SCHEMA)

_KNOWN = ("fabric", "digest", "message", "reject", "detail")
KNOWN_TABLE = Table(
    "_state/known",
    "silver",
    "What earlier batches decoded of the bytes that this one has.",
    ("digest",),
    StructType([DECODED_SCHEMA[name] for name in _KNOWN]),
)
LATE_TABLE = Table(
    "_state/late", "silver", "Messages of earlier batches whose key came late.", ("digest",), DECODED_SCHEMA
)

_MANY_REJECTS = 100_000
"""From so many on, what did not decode is joined with the rows instead of being sent to each of them."""

_SMALL_BATCH = 2_000_000
"""Up to so many rows their digests are looked for in what was decoded before; more are joined with all of it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch being processed."""

    spark: SparkSession
    lake: LakeStore
    store: Store
    settings: AuditSettings
    number: int
    say: Say

    def process(self, manifests: Sequence[ManifestFact]) -> None:
        """Read what these manifests announce and write all silver tables of the batch."""
        before = self.store.facts(below=self.number)
        known = {file.path for file in before.files}
        everything = BatchFacts(manifests=[*before.manifests, *manifests], files=[])
        own = {fact.path for fact in manifests}
        active = [fact for fact in active_facts(everything).manifests if fact.path in own]
        announced = [(server, file) for server, file in announced_files(active) if file.path not in known]
        self.say("integrity: hash files and leaves")
        committed = committed_paths(active_facts(everything).manifests, self.settings.trusted)
        files = learn_files(self.spark, self.lake, announced, committed)
        files = check_retained(self.lake, announced, files)
        proven = proven_paths(manifests, files)
        again = hops_read_again(before, active)
        rows = without(self._believed(files, proven), again)
        self.say("hops")
        self._write(schemas.HOPS, hop_transforms.hops(rows))
        self._write(SERVERS_TABLE, hop_transforms.servers(self._own(schemas.HOPS)))
        decoded_before = self._decoded_before(files)
        self._decode(rows, files, retained_urls(self.lake, announced, files), decoded_before)
        self._quarantine(rows, files, decoded_before)
        if any(fact.fabric == "won" for fact in files):
            self._verify([*before.manifests, *manifests])
        self.store.finish_batch(self.number, BatchFacts(manifests=list(manifests), files=files))

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

    def _decode(
        self, rows: DataFrame, files: Sequence[FileFact], retained: Sequence[str], before: DataFrame | None
    ) -> None:
        self.say("messages: decode")
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
            ever = self.store.read_silver(self.spark, DECODED_TABLE, below=self.number)
            decoded.append(message_transforms.unread(recorded, ever, waiting))
        nothing = local_rows(self.spark, [], DECODED_SCHEMA)
        self._write(DECODED_TABLE, reduce(DataFrame.unionByName, decoded, nothing))
        new = self._own(DECODED_TABLE)
        self.say("messages, links")
        self._write(schemas.MESSAGES, message_transforms.plain_messages(new))
        self._write(schemas.LINKS, message_transforms.links(new))
        self._write(schemas.KEYS, message_transforms.published_keys(new))

    def _decoded_before(self, files: Sequence[FileFact]) -> DataFrame | None:
        """What earlier batches decoded; if this one is small, only what it has to do with."""
        if not any(batch < self.number for batch in self.store.batch_ids()):
            return None
        if rows_of(files) > _SMALL_BATCH:
            return self.store.read_silver(self.spark, DECODED_TABLE, below=self.number).select(*_KNOWN)
        digests = distinct(read_digests(self.lake, (fact.path for fact in files if fact.part is not None)))
        known = Search(self.spark, self.store, rows_of(files)).take(KNOWN_TABLE, self._earlier(DECODED_TABLE), digests)
        self.store.write_rows(KNOWN_TABLE, [known])
        return self.store.read_written(self.spark, KNOWN_TABLE)

    def _quarantine(self, rows: DataFrame, files: Sequence[FileFact], before: DataFrame | None) -> None:
        self.say("quarantine")
        dirty = [fact.path for fact in files if fact.part is not None and fact.part.invalid]
        decoded = self._own(DECODED_TABLE).select(*_KNOWN)
        if before is not None:
            decoded = before.unionByName(decoded)
        bad = message_transforms.disbelieved(rows, decoded, few_rejects=self._has_few_rejects(decoded, files))
        if dirty:
            bad = bad.unionByName(hop_transforms.altered_rows(with_leaves(read_rows(self.spark, self.lake, dirty))))
        self._write(schemas.QUARANTINE, bad)

    def _has_few_rejects(self, decoded: DataFrame, files: Sequence[FileFact]) -> bool:
        if rows_of(files) < _MANY_REJECTS:
            return True
        return decoded.where("fabric != 'won' AND reject IS NOT NULL").limit(_MANY_REJECTS).count() < _MANY_REJECTS

    def _verify(self, manifests: Sequence[ManifestFact]) -> None:
        """Verify what is new, and what is older and has waited for its signer's key."""
        self.say("messages: verify signatures")
        spark, store = self.spark, self.store
        of_nodes = node_keys(self.settings, manifests)
        published = [*self._earlier(schemas.KEYS), *store.batch_files(schemas.KEYS, [self.number])]
        owners = read_here(schemas.KEYS, published, ["owner"])["owner"].unique().to_pylist()
        signers = pa.array([*owners, *dict(of_nodes)], pa.string())
        done = read_here(VERDICTS_TABLE, self._earlier(VERDICTS_TABLE), ["message"])["message"].combine_chunks()
        has_key = (pc.field("fabric") == "won") & pc.field("signer").isin(signers)
        is_late = has_key & ~pc.field("message").isin(done)
        late = scan_here(LATE_TABLE, self._earlier(DECODED_TABLE), is_late, ("fabric", "signer", "message"))
        store.write_rows(LATE_TABLE, late)
        waiting = message_transforms.to_verify(
            self._own(DECODED_TABLE).where("fabric = 'won'").unionByName(store.read_written(spark, LATE_TABLE)),
            store.read_silver(spark, VERDICTS_TABLE, below=self.number),
            known_keys(spark, read_table(spark, schemas.KEYS, published), of_nodes),
        )
        self._write(VERDICTS_TABLE, waiting.mapInArrow(verify_signatures, VERDICT_SCHEMA))

    def _earlier(self, table: Table) -> list[Path]:
        """The files of earlier batches."""
        return self.store.batch_files(table, [batch for batch in self.store.batch_ids() if batch < self.number])

    def _own(self, table: Table) -> DataFrame:
        return self.store.read_batches(self.spark, table, [self.number])

    def _write(self, table: Table, rows: DataFrame) -> None:
        self.store.write_batch_table(table, rows, self.number)


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
    rows = [(owner, key, None) for owner, key in of_nodes]
    return published.unionByName(local_rows(spark, rows, schemas.KEYS.schema))
