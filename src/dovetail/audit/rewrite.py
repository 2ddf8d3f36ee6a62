"""Rewriting files of the lake: several become one, and the bytes of expired messages go.

Runs on Spark's workers, one file to be at a time, in bounded memory. Rows keep their order and every column but `raw`;
the digest and the leaf still commit to what was there. What decoding told about a message is written beside the file
before its bytes are left out, so that its fields, links and verdicts outlive them.

Bytes are left out only if they are the very bytes that the hop committed to, if their fabric's codec reads them, and if
the message itself says that its lifetime was over. Evidence of what could not be read or believed stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import BinaryType, StructField, StructType

from dovetail.audit.compaction import Target
from dovetail.audit.decode import DECODED, DECODER_INPUT, Batches, Decoder
from dovetail.audit.decode_pcp import decode_pcp
from dovetail.audit.decode_swarm import HEAD_BYTES, MESSAGE_TYPE, SwarmDecoder
from dovetail.audit.settings import SwarmRules
from dovetail.lake.index import BLOCK_LEAVES, RunCollector, fold_blocks, index_path
from dovetail.lake.manifest import KeptFile, SealedFile, publish_written
from dovetail.lake.rows import hash_rows
from dovetail.lake.seal import GROUP_BYTES, GROUP_ROWS, LAKE_SCHEMA, open_writer, sha256_of
from dovetail.model.errors import JournalDamaged
from dovetail.swarm.content import HASH_BYTES, VERSION, work_of
from dovetail.swarm.uri import swarm_name_of

NEVER_US = (1 << 63) - 1
"""As `bytes_until_us`: nothing in the file expires."""

BLOB_SCHEMA = StructType([StructField("blob", BinaryType())])
_BLOB = pa.schema([("blob", pa.binary())])
TEMPORARY = ".compact."
"""How names of unfinished files begin; a sealing clears away its own, which begin in another way."""

_READ_ROWS = 8192
_SAID_BY_SWARM = ("digest", "size", "work_valid", "created_us", "expires_us", "links", "reject")


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a target. `is_new` is false where its one input stays as it is."""

    path: str
    is_new: bool = False
    bytes: int = 0
    sha256: str = ""
    kept: KeptFile | None = None
    bytes_until_us: int = 0
    removed: int = 0
    removed_bytes: int = 0
    error: str | None = None


encode_target = msgspec.msgpack.Encoder().encode
decode_rewritten = msgspec.msgpack.Decoder(Rewritten).decode


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Rewrites targets; `swarms` are the agreements by name, without which nobody knows when a message expires."""

    lake: str
    before_us: int
    swarms: Mapping[str, SwarmRules] = field(default_factory=dict)
    is_dry: bool = False

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: one row in, one row out."""
        decoder = msgspec.msgpack.Decoder(Target)
        for batch in batches:
            done = [self.rewrite(decoder.decode(blob)) for blob in batch.column("blob").to_pylist()]
            yield pa.RecordBatch.from_pydict({"blob": [encode_target(item) for item in done]}, schema=_BLOB)

    def rewrite(self, target: Target) -> Rewritten:
        """Write one file; what stands in the way becomes its `error`."""
        lake = Path(self.lake)
        try:
            with _Output(lake, target, is_dry=self.is_dry) as output:
                until_us = NEVER_US
                for file in target.inputs:
                    if file.kept is not None:
                        output.keep(pq.read_table(lake / file.kept.path, partitioning=None, schema=DECODED))
                    until_us = min(until_us, self._copy(lake / file.path, target, output))
                is_known = target.fabric == "won" or self._decoder(target) is not None
                return output.finish(until_us if is_known else 0)
        except (OSError, pa.ArrowException, JournalDamaged, ValueError) as error:
            return Rewritten(path=target.path, error=(str(error).splitlines() or [type(error).__name__])[0][:300])

    def _copy(self, path: Path, target: Target, output: _Output) -> int:
        """Copy the rows of a file; returns the earliest expiry of the bytes that stay."""
        until_us = NEVER_US
        for batch in pq.ParquetFile(path).iter_batches(batch_size=_READ_ROWS, columns=LAKE_SCHEMA.names):
            rows = pa.Table.from_batches([batch]).cast(LAKE_SCHEMA)
            places, decoded = self._decode(rows, target)
            is_over = pc.fill_null(pc.less(decoded.column("expires_us"), self.before_us), False)
            left = pc.min(decoded.filter(pc.invert(is_over)).column("expires_us")).as_py()
            until_us = until_us if left is None else min(until_us, left)
            gone = places.filter(is_over)
            if len(gone):
                raws = rows.take(gone).column("raw")
                output.removed += len(gone)
                output.removed_bytes += pc.sum(pc.binary_length(raws)).as_py()
                output.keep(self._with_work(decoded.filter(is_over), raws, target))
                rows = _without_bytes(rows, gone)
            output.add(rows)
        return until_us

    def _decode(self, rows: pa.Table, target: Target) -> tuple[pa.ChunkedArray, pa.Table]:
        """Positions of the rows whose bytes can be read and believed, and what they say."""
        decoder = self._decoder(target)
        chosen = _committed(rows) if decoder is not None else []
        if decoder is None or not chosen:
            return pa.chunked_array([[]], pa.int64()), DECODED.empty_table()
        part = rows.take(pa.array(chosen, pa.int64()))
        raw = part.column("raw")
        columns = {
            "fabric": pa.array([target.fabric] * len(chosen)),
            "digest": part.column("digest"),
            "raw": pc.binary_slice(raw, 0, HEAD_BYTES) if target.fabric == "swarm" else raw,
            "size": part.column("size"),
            "swarm": pa.array([""] * len(chosen)),
            "work_valid": pa.nulls(len(chosen), pa.bool_()),
        }
        given = pa.table({name: columns[name] for name in DECODER_INPUT}).combine_chunks().to_batches()
        decoded = pa.Table.from_batches(decoder(given))
        if target.fabric == "swarm":
            decoded = _widen_swarm(decoded)
        believed = pc.and_(pc.is_null(decoded.column("reject")), pc.fill_null(decoded.column("address_valid"), False))
        return pa.chunked_array([chosen], pa.int64()).filter(believed), decoded.filter(believed)

    def has_work(self, target: Target) -> bool:
        """Whether anything may change, for all that is known without reading it."""
        return target.is_merge or (self._decoder(target) is not None and target.may_expire(self.before_us))

    def _decoder(self, target: Target) -> Decoder | None:
        """What reads the target's bytes; None for a fabric without lifetimes, and where nobody says how long one is."""
        if target.fabric == "pcp":
            return decode_pcp
        rules = self.swarms.get(swarm_name_of(target.server)) if target.fabric == "swarm" else None
        return SwarmDecoder({"": rules.epoch_ms}) if rules is not None else None

    def _with_work(self, decoded: pa.Table, raws: pa.ChunkedArray, target: Target) -> pa.Table:
        if target.fabric != "swarm":
            return decoded
        limit = self.swarms[swarm_name_of(target.server)].pow_target
        valid = [int.from_bytes(work_of(raw)) < limit for raw in raws.to_pylist()]
        index = DECODED.get_field_index("work_valid")
        return decoded.set_column(index, DECODED.field(index), pa.array(valid, pa.bool_()))


def announce(target: Target, done: Rewritten) -> SealedFile:
    """The file as the new manifest announces it."""
    if not done.is_new:
        return msgspec.structs.replace(target.inputs[0], bytes_until_us=done.bytes_until_us)
    return SealedFile(
        path=target.path,
        first_seq=target.inputs[0].first_seq,
        rows=sum(file.rows for file in target.inputs),
        first_at_us=target.inputs[0].first_at_us,
        last_at_us=target.inputs[-1].last_at_us,
        bytes=done.bytes,
        sha256=done.sha256,
        root=target.root,
        kept=done.kept,
        bytes_until_us=done.bytes_until_us,
    )


def _committed(rows: pa.Table) -> list[int]:
    """Rows with all of the bytes that their address is the hash of, as it is for pcp and swarm."""
    names = ("raw", "size", "digest", "message")
    raws, sizes, digests, messages = (rows.column(name).to_pylist() for name in names)
    return [
        index
        for index, raw in enumerate(raws)
        if raw is not None
        and len(raw) == sizes[index]
        and digests[index] == messages[index]
        and hashlib.sha256(raw).digest() == messages[index]
    ]


def _widen_swarm(decoded: pa.Table) -> pa.Table:
    """All columns of `DECODED`, from what the bytes of a swarm message say and what follows from its address."""
    rows, digest = decoded.num_rows, decoded.column("digest")
    key = pc.binary_slice(digest, 0, HASH_BYTES)
    columns = {name: decoded.column(name) for name in _SAID_BY_SWARM} | {
        "fabric": pa.repeat(pa.scalar("swarm"), rows),
        "message": digest,
        "key": key,
        "id": pa.array([item.hex() for item in key.to_pylist()], pa.string()),
        "type": pa.repeat(pa.scalar(MESSAGE_TYPE), rows),
        "version": pa.repeat(pa.scalar(str(VERSION)), rows),
        "address_valid": pa.repeat(pa.scalar(True), rows),
    }
    filled = [columns.get(field.name, pa.nulls(rows, field.type)) for field in DECODED]
    return pa.Table.from_arrays(filled, schema=DECODED)


def _without_bytes(rows: pa.Table, gone: pa.ChunkedArray) -> pa.Table:
    stays = np.ones(rows.num_rows, dtype=bool)
    stays[gone.to_numpy()] = False
    index = LAKE_SCHEMA.get_field_index("raw")
    raw = pc.if_else(pa.array(stays), rows.column("raw"), pa.scalar(None, pa.binary()))
    return rows.set_column(index, LAKE_SCHEMA.field("raw"), raw)


class _Output:
    """A file that is being written, what is kept beside it, and its index; all get their names at the end."""

    def __init__(self, lake: Path, target: Target, *, is_dry: bool) -> None:
        self._is_dry = is_dry
        self._target = target
        self._path, self._kept_path = lake / target.path, lake / target.kept_path
        # a name of its own: Spark may run a task twice at the same time
        mark = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._temporary = self._path.with_name(f"{TEMPORARY}{self._path.name}.{mark}.tmp")
        self._kept_temporary = self._kept_path.with_name(f"{TEMPORARY}{self._kept_path.name}.{mark}.tmp")
        self._index_path = index_path(lake, target.server, target.path)
        self._index_temporary = self._path.with_name(f"{TEMPORARY}{self._path.name}.{mark}.index.tmp")
        self._runs = RunCollector()
        self._leaves: list[bytes] = []
        self._blocks: list[bytes] = []
        self._writer: Any = None
        self._kept_writer: Any = None
        self._group: list[pa.Table] = []
        self._rows = self._kept_rows = 0
        self.removed = self.removed_bytes = 0

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *exception: object) -> None:
        for writer in (self._writer, self._kept_writer):
            if writer is not None:
                # what is left behind by an error need not be whole
                with contextlib.suppress(OSError, pa.ArrowException):
                    writer.close()
        for path in (self._temporary, self._kept_temporary, self._index_temporary):
            path.unlink(missing_ok=True)

    def add(self, rows: pa.Table) -> None:
        """Append rows."""
        self._rows += rows.num_rows
        if self._is_dry:
            return
        self._group.append(rows)
        for message in rows.column("message").to_pylist():
            self._runs.add(message)
        self._leaves += hash_rows(self._target.path, rows)
        whole = len(self._leaves) & -BLOCK_LEAVES
        self._blocks += fold_blocks(self._leaves[:whole])
        del self._leaves[:whole]
        rows_waiting = sum(part.num_rows for part in self._group)
        if rows_waiting >= GROUP_ROWS or sum(part.nbytes for part in self._group) >= GROUP_BYTES:
            self._flush()

    def keep(self, decoded: pa.Table) -> None:
        """Keep what was read of messages whose bytes go."""
        self._kept_rows += decoded.num_rows
        if self._is_dry:
            return
        if self._kept_writer is None:
            self._kept_temporary.parent.mkdir(parents=True, exist_ok=True)
            self._kept_writer = pq.ParquetWriter(self._kept_temporary, DECODED, compression="zstd")
        self._kept_writer.write_table(decoded)

    def finish(self, bytes_until_us: int) -> Rewritten:
        """Give the files their names, if anything is different from the one input there is."""
        announced = sum(file.rows for file in self._target.inputs)
        if self._rows != announced:
            raise JournalDamaged(f"{self._rows} rows where {announced} were sealed")
        is_new = self._target.is_merge or self.removed > 0
        done = Rewritten(
            path=self._target.path,
            is_new=is_new,
            bytes_until_us=bytes_until_us,
            removed=self.removed,
            removed_bytes=self.removed_bytes,
        )
        if self._is_dry or not is_new:
            return done
        self._flush()
        self._writer.close()
        publish_written(self._temporary, self._path)
        kept = None
        if self._kept_writer is not None:
            self._kept_writer.close()
            publish_written(self._kept_temporary, self._kept_path)
            kept = KeptFile(
                path=self._target.kept_path,
                rows=self._kept_rows,
                bytes=self._kept_path.stat().st_size,
                sha256=sha256_of(self._kept_path),
            )
        sha256 = sha256_of(self._path)
        self._index_temporary.write_bytes(self._runs.encode(bytes.fromhex(sha256), self._blocks))
        self._index_path.parent.mkdir(parents=True, exist_ok=True)
        publish_written(self._index_temporary, self._index_path)
        return msgspec.structs.replace(done, bytes=self._path.stat().st_size, sha256=sha256, kept=kept)

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = open_writer(self._temporary)
        if self._group:
            self._writer.write_table(pa.concat_tables(self._group))
            self._group = []
