"""Reads the lake: which files count, whether they are intact, and their rows with the explicit schema.

A file counts if a manifest announces it and the server's signed tree commits to it. It is inspected before its rows are
read (`lake.inspect`), by Spark's workers if there are many. A file whose bytes are not the announced ones is still read
if possible, because its rows show what was altered; one that is unreadable or missing is a fact about its server and
stops nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit import schemas
from dovetail.audit.active_manifests import Range
from dovetail.audit.delta import spark_uri
from dovetail.audit.failures import NOTHING, FileChanged, LeftOut
from dovetail.audit.ingest_log import CHANGING, UNCOMMITTED, FileFact, ManifestFact
from dovetail.audit.leaves import with_leaves
from dovetail.audit.local_rows import map_batches
from dovetail.audit.merkle_scan import PART_SCHEMA, WALK_COLUMNS, Part, decode_part, merge_parts, walk_files
from dovetail.audit.session import read_files
from dovetail.lake.inspect import Inspected, inspect_file
from dovetail.lake.manifest import SealedFile
from dovetail.lake.retained import UNSIGNED, inspect_retained, is_signed
from dovetail.lake.rows import LAKE_SCHEMA
from dovetail.lake.store import Store
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.keys import Verifier

_PATH_PARTS = 3
"""fabric=F/date=D/FILE"""

FEW_FILES, FEW_BYTES = 64, 8 << 20
"""Up to this many files of this many bytes are inspected in this process."""

_INSPECTED = "path string, sha256 string, error string, tag string"


def announced_files(manifests: Iterable[ManifestFact]) -> list[tuple[str, SealedFile]]:
    """Server and file of everything that these manifests announce, without duplicates."""
    files: dict[str, tuple[str, SealedFile]] = {}
    for fact in manifests:
        if fact.manifest is not None:
            for file in fact.manifest.files:
                files.setdefault(file.path, (fact.manifest.server, file))
    return list(files.values())


def inspect_files(spark: SparkSession, lake: Store, files: Sequence[SealedFile]) -> dict[str, Inspected]:
    """Inspect each file before its rows are read: few in this process, many in Spark's workers."""
    if len(files) <= FEW_FILES and sum(file.bytes for file in files) <= FEW_BYTES:
        return {file.path: inspect_file(lake, file) for file in files}

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            looked = [(inspect_file(lake, file), file.path) for file in map(_decode_file, batch["file"].to_pylist())]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([path for _, path in looked], pa.string()),
                    pa.array([found.sha256 for found, _ in looked], pa.string()),
                    pa.array([found.error for found, _ in looked], pa.string()),
                    pa.array([found.tag for found, _ in looked], pa.string()),
                ],
                names=["path", "sha256", "error", "tag"],
            )

    rows = [(msgspec.json.encode(file).decode(),) for file in files]
    parts = min(len(files), 4 * spark.sparkContext.defaultParallelism)
    inspected = spark.createDataFrame(rows, "file string").repartition(parts).mapInArrow(look, _INSPECTED).collect()
    return {row["path"]: Inspected(row["sha256"], row["error"], row["tag"]) for row in inspected}


def _decode_file(text: str) -> SealedFile:
    return msgspec.json.decode(text, type=SealedFile)


def read_rows(spark: SparkSession, lake: Store, paths: Sequence[str]) -> DataFrame:
    """Rows of these files with the lake's columns."""
    if not paths:
        return spark.createDataFrame([], schemas.LAKE.schema)
    return read_files(spark, schemas.LAKE.schema, map(lake.url, paths), basePath=spark_uri(str(lake)))


def read_rows_by_file(spark: SparkSession, lake: Store, paths: Sequence[str]) -> DataFrame:
    """The same with the `file` of each row; Spark then adds all file metadata, so only used if needed."""
    if not paths:
        return read_rows(spark, lake, paths).withColumn("file", F.lit(None).cast("string"))
    return read_rows(spark, lake, paths).select("*", _relative(F.col("_metadata.file_path")).alias("file"))


def read_digests(lake: Store, paths: Iterable[str]) -> pa.Table:
    """Read the non-null `digest` values of these files in the driver."""
    wanted = pa.schema([LAKE_SCHEMA.field("digest")])
    parts = [wanted.empty_table()]
    for path in paths:
        try:
            with lake.open(path) as source:
                file = pq.ParquetFile(source)
                if wanted.names[0] in file.schema_arrow.names:
                    parts.append(file.read(wanted.names).cast(wanted))
        except (pa.ArrowException, OSError, JournalDamaged):
            raise FileChanged([path]) from None
    return pa.concat_tables(parts).drop_null()


def walk_rows(rows: DataFrame) -> dict[str, Part]:
    """Scan all rows (with leaves) in file order; returns the facts of each file."""
    parts: dict[str, list[Part]] = {}
    walked = rows.select("file", "server", "seq", F.unix_micros("at").alias("at_us"), "leaf_hash", "leaf_valid").select(
        *WALK_COLUMNS
    )
    scanned = map_batches(walked, walk_files, PART_SCHEMA)
    scanned = scanned if isinstance(scanned, pa.Table) else scanned.toArrow()
    for file, part in zip(scanned["file"].to_pylist(), scanned["part"].to_pylist(), strict=True):
        parts.setdefault(file, []).append(decode_part(part))
    return {file: merge_parts(found) for file, found in parts.items()}


def learn_files(
    spark: SparkSession,
    lake: Store,
    announced: Sequence[tuple[str, SealedFile]],
    committed: Collection[str] | None = None,
    left_out: LeftOut = NOTHING,
) -> list[FileFact]:
    """Read every announced file once and return its facts, but none that no signed tree commits to or is left out."""
    ours = [file for _, file in announced if committed is None or file.path in committed]
    inspected = inspect_files(spark, lake, [file for file in ours if file.path not in left_out])
    inspected = {file.path: Inspected("", CHANGING) for file in ours} | inspected
    readable = [path for path, found in inspected.items() if found.error is None]
    parts = walk_rows(with_leaves(read_rows_by_file(spark, lake, readable)))
    facts = []
    for server, file in announced:
        found = inspected.get(file.path, Inspected("", UNCOMMITTED))
        part = parts.get(file.path)
        error = "it has no rows" if part is None and found.error is None else found.error
        facts.append(
            FileFact(
                path=file.path,
                server=server,
                is_whole=found.sha256 == file.sha256,
                error=error,
                part=part,
                sha256=found.sha256,
                tag=found.tag,
            )
        )
    return facts


def check_retained(
    lake: Store,
    announced: Sequence[tuple[str, SealedFile]],
    facts: Sequence[FileFact],
    trusted: Sequence[Verifier],
    again: Mapping[str, Sequence[Range]] = MappingProxyType({}),
) -> list[FileFact]:
    """The facts, with what is wrong with the fields that a compaction retained for those files.

    Fields for hops that were read `again` are not used: the bytes were there when these hops were read first.
    """
    retained = {file.path: (server, file, file.retained) for server, file in announced if file.retained is not None}
    checked = []
    for fact in facts:
        if fact.part is not None and fact.path in retained:
            server, sealed, file = retained[fact.path]
            is_again = any(first <= sealed.first_seq and sealed.end <= end for first, end in again.get(server, ()))
            is_kept_signed = is_signed(file, trusted)
            error = inspect_retained(lake, sealed, file) if is_kept_signed or is_again else UNSIGNED
            fact = msgspec.structs.replace(
                fact, kept_error=error, is_kept_signed=is_kept_signed and not is_again and error is None
            )
        checked.append(fact)
    return checked


def retained_tags(lake: Store, announced: Sequence[tuple[str, SealedFile]]) -> dict[str, str]:
    """By the file that they belong to, the tags of the objects with retained fields: these change with their bytes."""
    tags = {}
    for _, file in announced:
        if file.retained is not None:
            with contextlib.suppress(OSError, JournalDamaged):
                tags[file.path] = lake.entry(file.retained.path).tag
    return tags


def retained_urls(lake: Store, announced: Sequence[tuple[str, SealedFile]], facts: Sequence[FileFact]) -> list[str]:
    """The trustworthy fields that compactions retained for those of these files that could be read."""
    good = {fact.path for fact in facts if fact.is_kept_signed}
    return [lake.url(file.retained.path) for _, file in announced if file.retained is not None and file.path in good]


def _relative(path: Column) -> Column:
    return F.substring_index(path, "/", -_PATH_PARTS)
