"""Rewrites files of the lake: merges several into one, and removes the bytes of expired messages.

One task writes one file, in bounded memory, in whatever process runs it. Rows keep their order and every column but
`raw`; the digest and the leaf still commit to the original. The fields of a message are written beside the file before
its bytes are removed, so that its fields, links and verdicts remain.

Bytes are removed only if they are the exact bytes that the hop committed to, if their fabric can decode them, and if
the message itself says that it expired. Evidence of what could not be decoded or trusted is kept. The output is read
back: every row must be as it was sealed, and the root the same as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail.fabrics import fabric_named
from dovetail.lake.compact_plan import CompactionTask
from dovetail.lake.decoded import DECODED, decoded_row
from dovetail.lake.layout import TOKEN_CHARS, retained_key
from dovetail.lake.manifest import RetainedFile, SealedFile
from dovetail.lake.retained import inspect_retained, inspect_signed
from dovetail.lake.rows import LAKE_SCHEMA, check_rows
from dovetail.lake.store import LocalStore, Store
from dovetail.lake.writer import READ_ROWS, FileWriter
from dovetail.model.errors import JournalDamaged
from dovetail.model.fabric import Agreement, Fabric, MessageInfo
from dovetail.tlog.keys import Verifier

NEVER_US = (1 << 63) - 1
"""As `bytes_until_us`: nothing in the file expires."""

_MAX_ERROR_CHARS = 300
_COPY_BYTES = 1 << 20


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task. `file` is the one to list in the manifest; if it is not new, it is the only input."""

    id: tuple[str, int]
    file: SealedFile | None = None
    is_new: bool = False
    removed: int = 0
    removed_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriter:
    """Rewrites files. `agreements` are by community; if one is needed and unknown, nothing is removed.

    `verifier` is the key with which retained fields will be signed. So those of the inputs must be signed with it, too.
    """

    store: Store
    before_us: int
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    is_dry: bool = False
    verifier: Verifier | None = None

    def has_work(self, task: CompactionTask) -> bool:
        """Whether anything may change, judging by the manifests alone."""
        return task.is_merge or (self.lifetimes_of(task) is not None and task.may_expire(self.before_us))

    def rewrite(self, task: CompactionTask) -> Rewritten:
        """Write one file and put it into the lake; a failure is returned as `error`."""
        try:
            with self.store.scratch() if not self.is_dry else contextlib.nullcontext() as scratch:
                return _Rewriting(self, task, scratch).run()
        except (OSError, pa.ArrowException, JournalDamaged, ValueError) as error:
            text = (str(error).splitlines() or [type(error).__name__])[0][:_MAX_ERROR_CHARS]
            return Rewritten(id=task.id, error=text)

    def refuse(self, store: Store, file: SealedFile, retained: RetainedFile) -> str | None:
        """Why the retained fields of an input, copied to a store, cannot be taken over; None if they can."""
        if self.verifier is not None:
            return inspect_signed(store, file, retained, [self.verifier])
        if retained.signature:
            return "they are signed, and no key is given to sign them again"
        return inspect_retained(store, file, retained)

    def lifetimes_of(self, task: CompactionTask) -> _Lifetimes | None:
        """What determines when messages of a task expire; None if nothing does, or the agreement is unknown."""
        fabric = fabric_named(task.fabric)
        if not fabric.hashes_bytes:
            return None  # hashing could not show whether bytes belong to an address
        agreement = self.agreements.get(fabric.community(task.server))
        return None if fabric.default_agreement is not None and agreement is None else _Lifetimes(fabric, agreement)

    def expiry_of(self, task: CompactionTask, until_us: int) -> int:
        """What a file states about its remaining bytes."""
        is_known = self.lifetimes_of(task) is not None or not fabric_named(task.fabric).hashes_bytes
        return until_us if is_known else 0


@dataclass(frozen=True, slots=True)
class _Lifetimes:
    fabric: Fabric
    agreement: Agreement | None

    def read(self, rows: pa.Table) -> Iterator[tuple[int, MessageInfo]]:
        """The rows with whole bytes that can be decoded and trusted, by position."""
        columns = (rows.column(name).to_pylist() for name in ("raw", "size", "digest", "message"))
        for index, (raw, size, digest, message) in enumerate(zip(*columns, strict=True)):
            if raw is not None and len(raw) == size and digest == message == hashlib.sha256(raw).digest():
                info = self.fabric.read(raw, self.agreement)
                if isinstance(info, MessageInfo) and info.address_valid and info.address == message:
                    yield index, info


class _Rewriting:
    """One running task. Without a scratch directory nothing is written."""

    def __init__(self, rewriter: Rewriter, task: CompactionTask, scratch: Path | None) -> None:
        self._rewriter = rewriter
        self._store = rewriter.store
        self._task = task
        self._lifetimes = rewriter.lifetimes_of(task)
        self._scratch = scratch
        self._file = None if scratch is None else FileWriter(scratch)
        self._retained = None if scratch is None else _RetainedWriter(scratch / "retained.parquet")
        self._until_us = NEVER_US
        self._rows = self._removed = self._removed_bytes = 0

    def run(self) -> Rewritten:
        """Read all inputs, write the file, check it, put it into the lake."""
        for file in self._task.inputs:
            if file.retained is not None and self._retained is not None:
                self._take_over(file, file.retained, self._retained)
            with self._store.open(file.path) as source, pq.ParquetFile(source) as parquet:
                for batch in parquet.iter_batches(batch_size=READ_ROWS, columns=LAKE_SCHEMA.names):
                    self._add(pa.Table.from_batches([batch]).cast(LAKE_SCHEMA))
        if self._rows != self._task.rows:
            raise JournalDamaged(f"{self._rows} rows, but {self._task.rows} were sealed")
        until_us = self._rewriter.expiry_of(self._task, self._until_us)
        is_new = self._task.is_merge or self._removed > 0
        made = self._put() if is_new and self._file is not None else self._task.inputs[0]
        return Rewritten(
            id=self._task.id,
            file=msgspec.structs.replace(made, bytes_until_us=until_us),
            is_new=is_new,
            removed=self._removed,
            removed_bytes=self._removed_bytes,
        )

    def _take_over(self, file: SealedFile, retained: RetainedFile, writer: _RetainedWriter) -> None:
        """Copy what was retained before. What is checked is a copy: the lake may change meanwhile."""
        assert self._scratch is not None
        copy = self._scratch / "input.parquet"
        with self._store.open(retained.path) as source, copy.open("wb") as target:
            while target.tell() <= retained.bytes and (part := source.read(_COPY_BYTES)):
                target.write(part)
        local = msgspec.structs.replace(retained, path=copy.name)
        if (fault := self._rewriter.refuse(LocalStore(self._scratch), file, local)) is not None:
            raise JournalDamaged(f"{retained.path}: {fault}")
        with pq.ParquetFile(copy) as parquet:
            for batch in parquet.iter_batches(batch_size=READ_ROWS):
                writer.add(pa.Table.from_batches([batch]))

    def _add(self, rows: pa.Table) -> None:
        expired: dict[int, MessageInfo] = {}
        for index, info in self._lifetimes.read(rows) if self._lifetimes is not None else ():
            if info.expires_us is not None and info.expires_us < self._rewriter.before_us:
                expired[index] = info
            elif info.expires_us is not None:
                self._until_us = min(self._until_us, info.expires_us)
        if expired:
            taken = rows.take(list(expired)).select(["digest", "size"]).to_pylist()
            self._removed += len(expired)
            self._removed_bytes += sum(row["size"] for row in taken)
            if self._retained is not None:
                fields = [
                    decoded_row(self._task.fabric, row["digest"], row["size"], info)
                    for row, info in zip(taken, expired.values(), strict=True)
                ]
                self._retained.add(pa.Table.from_pylist(fields, schema=DECODED))
            rows = _without_bytes(rows, list(expired))
        self._rows += rows.num_rows
        if self._file is not None:
            self._file.add(rows)

    def _put(self) -> SealedFile:
        """Check the output and put it into the lake, under a name that no other attempt has."""
        assert self._file is not None
        assert self._retained is not None
        task = self._task
        for rows in self._file.read_back():
            leaves = check_rows(task.inputs[0].path, rows)
            self._file.commit_to(rows.column("message").to_pylist(), leaves)
        if self._file.root().hex() != task.root:
            raise JournalDamaged(
                f"the hops of {task.inputs[0].path} and what follows it are not those that were sealed; "
                "`dovetail audit run` tells which"
            )
        token = secrets.token_hex(TOKEN_CHARS // 2)
        file = self._file.finish(self._store, task.server, task.fabric, task.date, token)
        return msgspec.structs.replace(file, retained=self._retained.finish(self._store, retained_key(file.path)))


class _RetainedWriter:
    """The fields of messages whose bytes are removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None
        self._rows = 0

    def add(self, fields: pa.Table) -> None:
        self._rows += fields.num_rows
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, DECODED, compression="zstd")
        self._writer.write_table(fields)

    def finish(self, store: Store, key: str) -> RetainedFile | None:
        if self._writer is None:
            return None
        self._writer.close()
        with self._path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # before anybody else can write to it
        store.put_file(key, self._path)
        return RetainedFile(path=key, rows=self._rows, bytes=self._path.stat().st_size, sha256=sha256)


def _without_bytes(rows: pa.Table, gone: list[int]) -> pa.Table:
    stays = np.ones(rows.num_rows, dtype=bool)
    stays[gone] = False
    index = LAKE_SCHEMA.get_field_index("raw")
    raw = pc.if_else(pa.array(stays), rows.column("raw"), pa.scalar(None, pa.binary()))
    return rows.set_column(index, LAKE_SCHEMA.field("raw"), raw)
