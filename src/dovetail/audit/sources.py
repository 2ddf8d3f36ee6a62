"""Reading the lake: which files count, whether they are whole, and their rows with the explicit schema.

A file counts when a manifest announces it. Its SHA-256 is computed where the file lies, in parallel. A file whose bytes
are not the announced ones is still read if it can be, because its rows tell what was altered; one that cannot be read,
or is not there, is a fact about its server and stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit import schemas
from dovetail.audit.ingest_log import FileFact, ManifestFact
from dovetail.audit.leaves import with_leaves
from dovetail.audit.merkle_scan import PART_SCHEMA, WALK_COLUMNS, Part, decode_part, merge_parts, walk_files
from dovetail.audit.tablefiles import read_files
from dovetail.lake.manifest import MANIFESTS, SealedFile
from dovetail.lake.seal import LAKE_SCHEMA, sha256_of
from dovetail.model.errors import PipelineError

_PATH_PARTS = 3
"""fabric=F/date=D/FILE"""


def check_lake(lake: Path) -> Path:
    """The lake's directory; PipelineError where there is none."""
    if not (lake / MANIFESTS).is_dir():
        raise PipelineError(f"{lake} is not a lake: it has no {MANIFESTS}")
    return lake.resolve()


def announced_files(manifests: Iterable[ManifestFact]) -> list[tuple[str, SealedFile]]:
    """Server and file of everything that these manifests announce, each file once."""
    files: dict[str, tuple[str, SealedFile]] = {}
    for fact in manifests:
        if fact.manifest is not None:
            for file in fact.manifest.files:
                files.setdefault(file.path, (fact.manifest.server, file))
    return list(files.values())


def hash_files(spark: SparkSession, lake: Path, paths: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each file, hex, computed by Spark."""
    if not paths:
        return {}
    rows = (
        spark.read.format("binaryFile")
        .load([str(lake / path) for path in paths])
        .select(_relative(F.col("path")).alias("file"), F.sha2("content", 256).alias("sha256"))
        .collect()
    )
    return {row["file"]: row["sha256"] for row in rows}


def read_rows(spark: SparkSession, lake: Path, paths: Sequence[str]) -> DataFrame:
    """Rows of these files with the lake's columns."""
    if not paths:
        return spark.createDataFrame([], schemas.LAKE)
    return spark.read.schema(schemas.LAKE).option("basePath", str(lake)).parquet(*(str(lake / path) for path in paths))


def read_rows_by_file(spark: SparkSession, lake: Path, paths: Sequence[str]) -> DataFrame:
    """The same with the `file` of each row; Spark then brings along all it knows of files, so only where it is used."""
    if not paths:
        return read_rows(spark, lake, paths).withColumn("file", F.lit(None).cast("string"))
    return read_rows(spark, lake, paths).select("*", _relative(F.col("_metadata.file_path")).alias("file"))


def read_digests(paths: Iterable[Path]) -> pa.Table:
    """The column `digest` of these files, in this process, as far as it says anything."""
    return read_files(paths, pa.schema([LAKE_SCHEMA.field("digest")])).drop_null()


def walk_rows(rows: DataFrame) -> dict[str, Part]:
    """Walk all rows (with leaves) in the order of their files; the facts of each file."""
    parts: dict[str, list[Part]] = {}
    walked = rows.select("file", "server", "seq", F.unix_micros("at").alias("at_us"), "leaf_hash", "leaf_valid").select(
        *WALK_COLUMNS
    )
    for row in walked.mapInArrow(walk_files, PART_SCHEMA).select("file", "part").collect():
        parts.setdefault(row["file"], []).append(decode_part(bytes(row["part"])))
    return {file: merge_parts(found) for file, found in parts.items()}


def learn_files(spark: SparkSession, lake: Path, announced: Sequence[tuple[str, SealedFile]]) -> list[FileFact]:
    """Read every announced file once and tell what is in it."""
    present = [(server, file) for server, file in announced if (lake / file.path).is_file()]
    digests = hash_files(spark, lake, [file.path for _, file in present])
    errors = {
        file.path: error
        for _, file in present
        if digests.get(file.path) != file.sha256 and (error := why_unreadable(lake / file.path)) is not None
    }
    readable = [file.path for _, file in present if file.path not in errors]
    parts = walk_rows(with_leaves(read_rows_by_file(spark, lake, readable)))
    facts = []
    for server, file in announced:
        error = errors.get(file.path) or (None if (lake / file.path).is_file() else "it is not there")
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


def check_kept(lake: Path, announced: Sequence[tuple[str, SealedFile]], facts: Sequence[FileFact]) -> list[FileFact]:
    """The facts, with what is wrong with the files that a compaction kept beside those announced."""
    kept = {file.path: file.kept for _, file in announced if file.kept is not None}
    checked = []
    for fact in facts:
        error = None
        if fact.path in kept:
            try:
                error = None if sha256_of(lake / kept[fact.path].path) == kept[fact.path].sha256 else "it was altered"
            except OSError as problem:
                error = problem.strerror or str(problem)
        checked.append(msgspec.structs.replace(fact, kept_error=error) if error is not None else fact)
    return checked


def kept_paths(lake: Path, announced: Sequence[tuple[str, SealedFile]], facts: Sequence[FileFact]) -> list[str]:
    """What compactions kept beside these files and can be believed."""
    bad = {fact.path for fact in facts if fact.kept_error is not None}
    return [str(lake / file.kept.path) for _, file in announced if file.kept is not None and file.path not in bad]


def why_unreadable(path: Path) -> str | None:
    """Why the rows of a Parquet file cannot be read with the lake's columns; None if they can."""
    try:
        file = pq.ParquetFile(path)
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
