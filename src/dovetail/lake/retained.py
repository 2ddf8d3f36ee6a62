"""Checks the fields that a compaction retained of removed messages, before anything reads them.

No server has signed these fields: whoever can write to the lake can write such a file, with any bytes, and announce its
hash. So whoever runs the compaction signs it, and an audit reads only what is signed with a key that it was given. The
file must also have the form that a compaction writes, within limits; the reader decides which messages its rows may
describe: those whose hops have no bytes.

    Ed25519 signature of    dovetail retained fields LF <SHA-256 of the file, in hex> LF

A server's own key is not accepted: its fields could describe messages of other servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail.fabrics import is_server_name
from dovetail.lake.decoded import DECODED
from dovetail.lake.inspect import CODECS, MAX_COLUMN_BYTES, MAX_FOOTER_BYTES
from dovetail.lake.manifest import MAX_FILE_BYTES, RetainedFile, SealedFile
from dovetail.lake.pages import walk_pages
from dovetail.lake.store import Store
from dovetail.lake.writer import sha256_of
from dovetail.model.address import ADDRESS_BYTES
from dovetail.model.errors import CheckpointError, ConnectFailed, JournalDamaged
from dovetail.model.hop import Relation
from dovetail.model.times import FIRST_US, LAST_US
from dovetail.tlog.keys import Signer, Verifier

_BATCH_ROWS = 64
_DICTIONARY_BYTES = 16 << 20
"""Limit for all dictionaries of a row group together: a writer stops using one beyond 1 MB."""

_MAX_VALUES = 32 << 20
"""Limit for the values of a column in a row group: one row may have any number, in hardly any bytes."""

_FIELDS_SHARE = 8
_FIELDS_BYTES = 4096
"""The fields of a message have at most this many bytes, and this many times its own."""

_KEYS = ("digest", "message")
_GIVEN = ("fabric", *_KEYS, "key", "id", "type", "size", "expires_us", "address_valid")
_ABSENT = ("signer", "signed_digest", "signature", "fingerprint", "key_owner", "public_key", "reject", "detail")
"""Of messages that are signed, and of bytes that are no message, nothing is removed."""
_RELATIONS = [relation.value for relation in Relation]


UNSIGNED = "no key that may sign them has signed them"


class _Refused(Exception):
    """The file is not one that a compaction would write."""


def may_sign(verifier: Verifier) -> bool:
    """Whether fields that are signed with this key may be believed: not with that of a server."""
    return not is_server_name(verifier.name)


def sign_retained(file: RetainedFile, signer: Signer) -> RetainedFile:
    """The same file, signed."""
    return msgspec.structs.replace(file, signature=signer.sign(_body(file)).hex())


def is_signed(file: RetainedFile, verifiers: Iterable[Verifier]) -> bool:
    """Whether one of these keys has signed it, and may."""
    return any(_verifies(file, verifier) for verifier in verifiers if file.signature and may_sign(verifier))


def _verifies(file: RetainedFile, verifier: Verifier) -> bool:
    try:
        verifier.verify(bytes.fromhex(file.signature), _body(file))
    except (CheckpointError, ValueError):
        return False
    return True


def _body(file: RetainedFile) -> bytes:
    return f"dovetail retained fields\n{file.sha256}\n".encode()


def inspect_signed(store: Store, sealed: SealedFile, file: RetainedFile, verifiers: Iterable[Verifier]) -> str | None:
    """What keeps an audit with these keys from reading the retained fields of a file, in one line."""
    return inspect_retained(store, sealed, file) if is_signed(file, verifiers) else UNSIGNED


def inspect_retained(store: Store, sealed: SealedFile, file: RetainedFile) -> str | None:
    """What is wrong with the retained fields of a file, in one line. ConnectFailed if the store does not answer."""
    try:
        size = store.entry(file.path).size
        if size > MAX_FILE_BYTES or sha256_of(store, file.path) != file.sha256:
            return "it was altered"
        with store.open(file.path) as source:
            _check(source, sealed, file)
            return None
    except (ConnectFailed, _Refused) as problem:
        if isinstance(problem, ConnectFailed):
            raise
        return str(problem)
    except OSError as problem:
        return problem.strerror or str(problem)
    except JournalDamaged as problem:
        return str(problem)
    except Exception as error:  # whatever a decoder raises for hostile bytes, the file is at fault
        return f"it cannot be read: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"


def _check(source: pa.NativeFile, sealed: SealedFile, file: RetainedFile) -> None:
    limits = {"thrift_string_size_limit": MAX_FOOTER_BYTES, "thrift_container_size_limit": 1 << 20}
    parquet = pq.ParquetFile(source, **limits)
    metadata = parquet.metadata
    if not parquet.schema_arrow.equals(DECODED):
        raise _Refused("it has other columns")
    if not 0 < metadata.num_rows == file.rows <= sealed.rows:
        raise _Refused(f"it has {metadata.num_rows} rows for a file of {sealed.rows}")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        parts = [_measure(source, group.column(index)) for index in range(metadata.num_columns)]
        if sum(size for size, _ in parts) > MAX_COLUMN_BYTES or sum(size for _, size in parts) > _DICTIONARY_BYTES:
            raise _Refused("one of its row groups is too large")
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
        _check_values(batch)


def _measure(source: pa.NativeFile, column: Any) -> tuple[int, int]:
    """The bytes of a column's pages, decompressed, and at most how many of its dictionary."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    if start < 4 or not 0 < column.total_compressed_size <= MAX_COLUMN_BYTES or column.num_values > _MAX_VALUES:
        raise _Refused(f"column {column.path_in_schema} has an impossible offset or size")
    if column.compression not in CODECS:
        raise _Refused(f"column {column.path_in_schema} is compressed with {column.compression}")
    source.seek(start)
    pages = walk_pages(source.read(column.total_compressed_size), column.num_values, MAX_COLUMN_BYTES)
    return pages.bytes, pages.dictionary_bytes


def _check_values(rows: pa.RecordBatch) -> None:
    if any(rows[name].null_count for name in _GIVEN) or any(rows[name].null_count < len(rows) for name in _ABSENT):
        raise _Refused("its rows are not those of messages that expired")
    if any((pc.binary_length(rows[name]).to_numpy() != ADDRESS_BYTES).any() for name in _KEYS):
        raise _Refused(f"an address does not have {ADDRESS_BYTES} bytes")
    links = pc.list_flatten(rows["links"])
    times = [rows["created_us"], rows["expires_us"], links.field("parent_expires_us")]
    for each in times:
        if pc.any(pc.or_(pc.less(each, FIRST_US), pc.greater(each, LAST_US))).as_py():
            raise _Refused("a time is out of range")
    if pc.any(pc.invert(pc.is_in(links.field("relation"), value_set=pa.array(_RELATIONS)))).as_py():
        raise _Refused("a relation is unknown")
    sizes = rows["size"]
    if pc.min(sizes).as_py() < 0 or rows.nbytes > _FIELDS_BYTES * len(rows) + _FIELDS_SHARE * pc.sum(sizes).as_py():
        raise _Refused("its fields are larger than their messages")
