"""Reading the lake: which files count, whether they are whole, and their rows with the explicit schema.

A file counts when a manifest announces it. Its SHA-256 is computed by Spark's workers, in parallel. A file whose bytes
are not the announced ones is still read if it can be, because its rows tell what was altered; one that cannot be read,
or is not there, is a fact about its server and stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit import schemas
from dovetail.audit.ingest_log import FileFact, ManifestFact
from dovetail.audit.leaves import with_leaves
from dovetail.audit.merkle_scan import PART_SCHEMA, WALK_COLUMNS, Part, decode_part, merge_parts, walk_files
from dovetail.lake.manifest import SealedFile
from dovetail.lake.rows import LAKE_SCHEMA
from dovetail.lake.store import Store
from dovetail.lake.writer import sha256_of
from dovetail.model.errors import JournalDamaged

_PATH_PARTS = 3
"""fabric=F/date=D/FILE"""


def announced_files(manifests: Iterable[ManifestFact]) -> list[tuple[str, SealedFile]]:
    """Server and file of everything that these manifests announce, each file once."""
    files: dict[str, tuple[str, SealedFile]] = {}
    for fact in manifests:
        if fact.manifest is not None:
            for file in fact.manifest.files:
                files.setdefault(file.path, (fact.manifest.server, file))
    return list(files.values())


def hash_files(spark: SparkSession, lake: Store, paths: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each file, hex, computed by Spark."""
    if not paths:
        return {}
    rows = (
        spark.read.format("binaryFile")
        .load([lake.url(path) for path in paths])
        .select(_relative(F.col("path")).alias("file"), F.sha2("content", 256).alias("sha256"))
        .collect()
    )
    return {row["file"]: row["sha256"] for row in rows}


def read_rows(spark: SparkSession, lake: Store, paths: Sequence[str]) -> DataFrame:
    """Rows of these files with the lake's columns."""
    if not paths:
        return spark.createDataFrame([], schemas.LAKE)
    return spark.read.schema(schemas.LAKE).option("basePath", str(lake)).parquet(*map(lake.url, paths))


def read_rows_by_file(spark: SparkSession, lake: Store, paths: Sequence[str]) -> DataFrame:
    """The same with the `file` of each row; Spark then brings along all it knows of files, so only where it is used."""
    if not paths:
        return read_rows(spark, lake, paths).withColumn("file", F.lit(None).cast("string"))
    return read_rows(spark, lake, paths).select("*", _relative(F.col("_metadata.file_path")).alias("file"))


def read_digests(lake: Store, paths: Iterable[str]) -> pa.Table:
    """Read the non-null `digest` values of these files in the driver."""
    wanted = pa.schema([LAKE_SCHEMA.field("digest")])
    parts = [wanted.empty_table()]
    for path in paths:
        with lake.open(path) as source:
            file = pq.ParquetFile(source)
            if wanted.names[0] in file.schema_arrow.names:
                parts.append(file.read(wanted.names).cast(wanted))
    return pa.concat_tables(parts).drop_null()


def walk_rows(rows: DataFrame) -> dict[str, Part]:
    """Walk all rows (with leaves) in the order of their files; the facts of each file."""
    parts: dict[str, list[Part]] = {}
    walked = rows.select("file", "server", "seq", F.unix_micros("at").alias("at_us"), "leaf_hash", "leaf_valid").select(
        *WALK_COLUMNS
    )
    for row in walked.mapInArrow(walk_files, PART_SCHEMA).select("file", "part").collect():
        parts.setdefault(row["file"], []).append(decode_part(bytes(row["part"])))
    return {file: merge_parts(found) for file, found in parts.items()}


def learn_files(spark: SparkSession, lake: Store, announced: Sequence[tuple[str, SealedFile]]) -> list[FileFact]:
    """Read every announced file once and tell what is in it."""
    errors = {file.path: error for _, file in announced if (error := why_missing(lake, file.path)) is not None}
    digests = hash_files(spark, lake, [file.path for _, file in announced if file.path not in errors])
    for _, file in announced:
        if file.path not in errors and digests.get(file.path) != file.sha256:
            error = why_unreadable(lake, file.path)
            if error is not None:
                errors[file.path] = error
    readable = [file.path for _, file in announced if file.path not in errors]
    parts = walk_rows(with_leaves(read_rows_by_file(spark, lake, readable)))
    facts = []
    for server, file in announced:
        error = errors.get(file.path)
        part = parts.get(file.path)
        if part is None and error is None:
            error = "it has no rows"
        facts.append(
            FileFact(
                path=file.path,
                server=server,
                is_whole=digests.get(file.path) == file.sha256,
                error=error,
                part=part,
            )
        )
    return facts


def check_retained(
    lake: Store, announced: Sequence[tuple[str, SealedFile]], facts: Sequence[FileFact]
) -> list[FileFact]:
    """The facts, with what is wrong with the fields that a compaction retained beside those files."""
    retained = {file.path: file.retained for _, file in announced if file.retained is not None}
    checked = []
    for fact in facts:
        error = None
        if fact.path in retained:
            try:
                file = retained[fact.path]
                error = None if sha256_of(lake, file.path) == file.sha256 else "it was altered"
            except OSError as problem:
                error = problem.strerror or str(problem)
            except JournalDamaged as problem:
                error = str(problem)
        checked.append(msgspec.structs.replace(fact, kept_error=error) if error is not None else fact)
    return checked


def retained_urls(lake: Store, announced: Sequence[tuple[str, SealedFile]], facts: Sequence[FileFact]) -> list[str]:
    """The fields that compactions retained beside these files and that can be believed."""
    bad = {fact.path for fact in facts if fact.kept_error is not None}
    return [lake.url(file.retained.path) for _, file in announced if file.retained is not None and file.path not in bad]


def why_missing(lake: Store, path: str) -> str | None:
    """Why there is no such file in the lake; None if there is. Spark follows links, so it is not given any."""
    try:
        lake.open(path).close()
    except FileNotFoundError:
        return "it is not there"
    except (OSError, JournalDamaged) as error:
        return f"it cannot be opened: {str(error).splitlines()[0][:160]}"
    return None


def why_unreadable(lake: Store, path: str) -> str | None:
    """Why the rows of a Parquet file cannot be read with the lake's columns; None if they can."""
    try:
        with lake.open(path) as source:
            file = pq.ParquetFile(source)
            for field in LAKE_SCHEMA:
                index = file.schema_arrow.get_field_index(field.name)
                if index < 0 and field.nullable:
                    continue
                if index < 0 or file.schema_arrow.field(index).type != field.type:
                    return f"column {field.name} is missing or of another type"
            for _ in file.iter_batches(batch_size=65_536):
                pass
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"it cannot be read: {str(error).splitlines()[0][:160]}"
    return None


def _relative(path: Column) -> Column:
    return F.substring_index(path, "/", -_PATH_PARTS)
