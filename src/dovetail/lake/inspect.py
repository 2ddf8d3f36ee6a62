"""Checks whether a sealed file may be read at all: bounded, one file at a time, before any of its rows is trusted.

Everything in the lake is hostile until the signed root proves it, and a server may sign anything. So a file must first
have the form that sealing writes: a plain file of about the stated size, a footer and pages within limits, exactly the
lake's columns, values of the lengths that leaves need, no null where a hop has a value. Only then is it passed to
Spark, or decoded here. Faults are returned as one line; only a failing store raises.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail.lake.manifest import MAX_FILE_BYTES, SealedFile
from dovetail.lake.pages import walk_pages
from dovetail.lake.rows import CHECK_BYTES, LAKE_SCHEMA, hash_rows
from dovetail.lake.store import Store
from dovetail.lake.writer import GROUP_BYTES, GROUP_ROWS
from dovetail.model.address import ADDRESS_BYTES
from dovetail.model.errors import ConnectFailed, JournalDamaged
from dovetail.model.times import FIRST_US, LAST_US
from dovetail.tlog.tree import Frontier

MAX_FOOTER_BYTES = 16 << 20
MAX_COLUMN_BYTES = 4 * GROUP_BYTES
"""Limit for one column in one row group, decoded: a group ends at GROUP_BYTES, and its last message may be large."""

MAX_TEXT_BYTES = 8192
"""Limit for a server's or counterpart's name."""

MAX_REASON_CHARS = 200
_HASH_PART = 1 << 20
CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"})
"""Those that every reader knows; sealing uses the last."""

_SLACK_BYTES = 16 << 20
_TAIL_BYTES = 8
_PHYSICAL = {
    "server": "BYTE_ARRAY",
    "seq": "INT64",
    "at": "INT64",
    "stage": "BYTE_ARRAY",
    "message": "BYTE_ARRAY",
    "counterpart": "BYTE_ARRAY",
    "reason": "BYTE_ARRAY",
    "raw": "BYTE_ARRAY",
    "size": "INT64",
    "digest": "BYTE_ARRAY",
    "leaf": "BYTE_ARRAY",
}
_LENGTHS = {"message": ADDRESS_BYTES, "digest": ADDRESS_BYTES, "leaf": CHECK_BYTES}
_TEXTS = {"server": MAX_TEXT_BYTES, "stage": 255, "counterpart": MAX_TEXT_BYTES, "reason": 255}
"""Limits for texts. A leaf has the lengths of stage and reason as one byte each: longer ones could pass for others."""

_BINARIES = [name for name, kind in _PHYSICAL.items() if kind == "BYTE_ARRAY"]


class Inspected(NamedTuple):
    """The hash of a file, empty if it could not be read to its end, and why its rows cannot be read, if so.

    The tag is that of the object before it was read.
    """

    sha256: str
    error: str | None
    tag: str = ""


class _Refused(Exception):
    """The file is not one that sealing would write."""


def inspect_file(store: Store, file: SealedFile) -> Inspected:
    """Inspect one listed file. ConnectFailed if the store does not answer, which says nothing about the file."""
    sha256 = tag = ""
    try:
        entry = store.entry(file.path)
        size, tag = entry.size, entry.tag
        _check_size(size, file)
        with store.open(file.path) as source:
            digest = hashlib.sha256()
            while part := source.read(_HASH_PART):
                digest.update(part)
            sha256 = digest.hexdigest()
            _check_footer(source, size)
            _check_parquet(source, file)
    except ConnectFailed:
        raise
    except FileNotFoundError:
        return Inspected(sha256, "it does not exist")
    except _Refused as error:
        return Inspected(sha256, str(error), tag)
    except JournalDamaged as error:
        return Inspected(sha256, f"it cannot be opened: {_line(error)}", tag)
    except Exception as error:  # whatever a decoder raises for hostile bytes, the file is at fault
        return Inspected(sha256, f"it cannot be read: {_line(error)}", tag)
    return Inspected(sha256, None, tag)


def _check_size(size: int, file: SealedFile) -> None:
    if size > MAX_FILE_BYTES or size > 2 * file.bytes + _SLACK_BYTES:
        raise _Refused(f"it has {size} bytes, its manifest says {file.bytes}")
    if not 0 <= file.first_seq < 1 << 62:
        raise _Refused(f"its first hop number, {file.first_seq}, is out of range")


def _check_footer(source: pa.NativeFile, size: int) -> None:
    if size < 2 * _TAIL_BYTES:
        raise _Refused(f"it has {size} bytes and is not Parquet")
    source.seek(size - _TAIL_BYTES)
    tail = source.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length > min(MAX_FOOTER_BYTES, size - 2 * _TAIL_BYTES + 4):
        raise _Refused(f"it has no Parquet footer, or one of {length} bytes")


def _check_parquet(source: pa.NativeFile, file: SealedFile) -> None:
    source.seek(0)
    limits = {"thrift_string_size_limit": MAX_FOOTER_BYTES, "thrift_container_size_limit": 1 << 20}
    metadata = pq.ParquetFile(source, **limits).metadata
    parquet = pq.ParquetFile(source, metadata=metadata, read_dictionary=_folded_columns(metadata), **limits)
    _check_schema(parquet)
    if metadata.num_rows != file.rows:
        # a file with too many or too few rows is still read, within limits, to report which are missing
        _check_rows(metadata.num_rows, file)
    total = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not 0 < group.num_rows <= 2 * GROUP_ROWS or group.num_columns != metadata.num_columns:
            raise _Refused(f"one of its row groups has {group.num_rows} rows")
        total += group.num_rows
        for index in range(group.num_columns):
            _check_column(source, group.column(index), group.num_rows)
        _check_values(parquet.read_row_group(number, use_threads=False))
    if total != metadata.num_rows:
        raise _Refused("its row groups do not add up to the rows in its footer")


def _check_rows(rows: int, file: SealedFile) -> None:
    if rows < 1:
        raise _Refused("it has no rows")
    if rows > 2 * file.rows + 1024:
        raise _Refused(f"it has {rows} rows, but {file.rows} were sealed")


def _check_schema(parquet: Any) -> None:
    names = [parquet.metadata.schema.column(index).path for index in range(parquet.metadata.num_columns)]
    for name in names:
        if name not in _PHYSICAL or names.count(name) > 1:
            raise _Refused(f"column {name[:80]!r} is not a column of the lake")
    for field in LAKE_SCHEMA:
        if field.name not in names:
            if not field.nullable:
                raise _Refused(f"column {field.name} is missing or has the wrong type")
            continue
        column = parquet.metadata.schema.column(names.index(field.name))
        read = parquet.schema_arrow.field(field.name).type
        if pa.types.is_dictionary(read):
            read = read.value_type
        is_flat = column.max_repetition_level == 0 and column.max_definition_level <= 1
        if column.physical_type != _PHYSICAL[field.name] or read != field.type or not is_flat:
            raise _Refused(f"column {field.name} is missing or has the wrong type")


def _check_column(source: pa.NativeFile, column: Any, rows: int) -> None:
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    length = column.total_compressed_size
    if start < 4 or not 0 < length <= MAX_COLUMN_BYTES or column.num_values != rows:
        raise _Refused(f"column {column.path_in_schema} has an impossible offset or size")
    if column.compression not in CODECS:
        raise _Refused(f"column {column.path_in_schema} is compressed with {column.compression}")
    source.seek(start)
    chunk = source.read(length)
    walk_pages(chunk, rows, MAX_COLUMN_BYTES)


def _folded_columns(metadata: Any) -> list[str]:
    """Columns to read as dictionaries: all but the bytes of messages, unless they could expand beyond their size."""
    columns = [
        metadata.row_group(number).column(index)
        for number in range(metadata.num_row_groups)
        for index in range(metadata.num_columns)
    ]
    is_raw_folded = any(column.path_in_schema == "raw" and column.has_dictionary_page for column in columns)
    return [name for name in _BINARIES if name != "raw" or is_raw_folded]


def _check_values(rows: pa.Table) -> None:
    for name in rows.column_names:
        column = rows.column(name)
        if not LAKE_SCHEMA.field(name).nullable and column.null_count:
            raise _Refused(f"{column.null_count} rows have no {name}")
        if name == "at":
            bounds = pc.min_max(column.cast(pa.int64())).as_py()
            if bounds["min"] < FIRST_US or bounds["max"] > LAST_US:
                raise _Refused("a time is out of range")
        if pa.types.is_dictionary(column.type):
            _check_lengths(name, column)


def _check_lengths(name: str, column: pa.ChunkedArray) -> None:
    """Check lengths of values, and of all rows together once the dictionary is expanded, from the dictionary alone."""
    unfolded = 0
    for chunk in column.chunks:
        lengths = pc.fill_null(pc.binary_length(chunk.dictionary), 0).to_numpy(zero_copy_only=False)
        if not len(lengths):
            continue
        if name in _LENGTHS and (lengths != _LENGTHS[name]).any():
            raise _Refused(f"a value of column {name} is not {_LENGTHS[name]} bytes long")
        if name in _TEXTS and lengths.max() > _TEXTS[name]:
            raise _Refused(f"a value of column {name} has {lengths.max()} bytes, expected at most {_TEXTS[name]}")
        codes = pc.drop_null(chunk.indices).to_numpy(zero_copy_only=False)
        unfolded += int(np.take(lengths, codes).astype(np.int64).sum())
        if unfolded > MAX_COLUMN_BYTES:
            raise _Refused(f"column {name} expands to more than {MAX_COLUMN_BYTES} bytes")
        if name in _TEXTS:
            chunk.dictionary.to_pylist()  # UnicodeDecodeError if it is not text


def _line(error: Exception) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return text[:MAX_REASON_CHARS]


def is_proven(store: Store, file: SealedFile) -> bool:
    """Whether the rows of a file, read one row group at a time, lead to the root that its manifest states."""
    try:
        if inspect_file(store, file).error is not None:
            return False
        tree = Frontier()
        with store.open(file.path) as source:
            parquet = pq.ParquetFile(source)
            for group in range(parquet.num_row_groups):
                for leaf in hash_rows(file.path, parquet.read_row_group(group)):
                    tree.append(leaf)
    except (OSError, JournalDamaged, pa.ArrowException, ValueError, OverflowError, struct.error):
        return False
    return tree.size == file.rows and tree.root().hex() == file.root
