"""Fields that a compaction retained are read only if they have the form that a compaction writes, within limits."""

from __future__ import annotations

import os

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import BROKER, COMPACTOR, SECOND, T0_US, quiet_pcp, signer_of, write_lake
from dovetail.lake import retained
from dovetail.lake.compact import Compaction
from dovetail.lake.decoded import DECODED
from dovetail.lake.manifest import RetainedFile
from dovetail.lake.retained import UNSIGNED, inspect_retained, inspect_signed, sign_retained
from dovetail.lake.store import LocalStore
from dovetail.lake.writer import sha256_of
from dovetail.model.times import to_datetime
from lake.lakes import manifests_of


@pytest.fixture(scope="module")
def compacted(tmp_path_factory):
    """A lake from whose only file the bytes of all messages were removed."""
    lake = write_lake(tmp_path_factory.mktemp("retained"), {BROKER: quiet_pcp(8)})
    Compaction(store=LocalStore(lake), before=to_datetime(T0_US + 10 * 86_400 * SECOND), grace_s=0).run()
    ((file,),) = [manifest.files for manifest in manifests_of(lake)]
    return lake, file


def written(rows: list[dict], **options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=DECODED), sink, **options)
    return sink.getvalue().to_pybytes()


def found(compacted, tmp_path, data: bytes, **changes) -> str | None:
    """What is wrong with these bytes if a manifest announces them, with their hash."""
    _, sealed = compacted
    path = tmp_path / "kept.parquet"
    path.write_bytes(data)
    store = LocalStore(tmp_path)
    fields = {"path": path.name, "rows": 8, "bytes": len(data), "sha256": sha256_of(store, path.name)} | changes
    return inspect_retained(store, sealed, RetainedFile(**fields))


def rows_of(compacted) -> list[dict]:
    lake, sealed = compacted
    return pq.read_table(lake / sealed.retained.path, partitioning=None).to_pylist()


def every(rows: list[dict], **fields) -> list[dict]:
    return [row | fields for row in rows]


def test_what_a_compaction_writes_is_read(compacted, tmp_path):
    lake, sealed = compacted
    assert inspect_retained(LocalStore(lake), sealed, sealed.retained) is None
    assert found(compacted, tmp_path, written(rows_of(compacted))) is None


def test_other_bytes_than_announced(compacted):
    lake, sealed = compacted
    other = msgspec.structs.replace(sealed.retained, sha256="0" * 64)
    assert inspect_retained(LocalStore(lake), sealed, other) == "it was altered"
    gone = msgspec.structs.replace(sealed.retained, path="gone.parquet")
    assert inspect_retained(LocalStore(lake), sealed, gone) == "No such file or directory"


def test_only_what_a_trusted_key_of_no_server_has_signed_is_read(compacted):
    lake, sealed = compacted
    store, own = LocalStore(lake), sealed.retained
    signed = sign_retained(own, COMPACTOR)
    trusted = [signer_of(BROKER).verifier, COMPACTOR.verifier]
    assert inspect_signed(store, sealed, signed, trusted) is None
    for file, verifiers in (
        (own, trusted),
        (signed, ()),
        (signed, trusted[:1]),
        (signed, [signer_of("other.example/auditor").verifier]),
        (sign_retained(own, signer_of(BROKER)), trusted),
        (msgspec.structs.replace(signed, sha256="0" * 64), trusted),
        (msgspec.structs.replace(signed, signature="zz"), trusted),
        (msgspec.structs.replace(signed, signature="00" * 100_000), trusted),
    ):
        assert inspect_signed(store, sealed, file, verifiers) == UNSIGNED
    again = msgspec.structs.replace(signed, path="gone.parquet")
    assert inspect_signed(store, sealed, again, trusted) == "No such file or directory"


LINK = {"parent": b"p", "relation": "refers", "parent_expires_us": 0}
ROWS = {
    "foreign-key": {"public_key": bytes(32), "key_owner": "https://host/atom"},
    "signature": {"signature": bytes(64)},
    "reject": {"reject": "malformed"},
    "no-digest": {"digest": None},
    "short-message": {"message": b"m"},
    "no-expiry": {"expires_us": None},
    "far-expiry": {"expires_us": 2**62},
    "far-creation": {"created_us": -(2**62)},
    "far-parent": {"links": [LINK | {"parent_expires_us": 2**62}]},
    "odd-relation": {"links": [LINK | {"relation": "believes"}]},
    "negative-size": {"size": -1},
    "large-text": {"detail": None, "sender": "x" * 100_000},
    "many-recipients": {"recipients": ["x"] * 50_000},
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_no_compaction_writes(compacted, tmp_path, name):
    assert found(compacted, tmp_path, written(every(rows_of(compacted), **ROWS[name])))


def test_values_that_take_no_bytes(compacted, tmp_path, monkeypatch):
    data = written(every(rows_of(compacted), recipients=[None] * 20))
    assert found(compacted, tmp_path, data) is None
    monkeypatch.setattr(retained, "_MAX_VALUES", 100)
    assert "impossible" in (found(compacted, tmp_path, data) or "")


BYTES = {
    "garbage": lambda rows: b"garbage" * 100,
    "empty": lambda rows: b"",
    "cut": lambda rows: written(rows)[:-20],
    "more-rows": lambda rows: written(rows * 3),
    "no-rows": lambda rows: written([]),
    "other-columns": lambda rows: written(rows).replace(b"recipients", b"recipientz"),
    "another-codec": lambda rows: written(rows, compression="brotli"),
    "another-encoding": lambda rows: written(rows, use_dictionary=False, column_encoding={"size": "BYTE_STREAM_SPLIT"}),
    "dictionary-bomb": lambda rows: written(
        every(rows, sender="x" * (8 << 20)), compression="zstd", dictionary_pagesize_limit=64 << 20
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_no_compaction_writes(compacted, tmp_path, name):
    assert found(compacted, tmp_path, BYTES[name](rows_of(compacted)))


def test_a_pipe_in_its_place_does_not_block(compacted, tmp_path):
    os.mkfifo(tmp_path / "pipe.parquet")
    _, sealed = compacted
    file = msgspec.structs.replace(sealed.retained, path="pipe.parquet")
    assert "is not a plain file" in (inspect_retained(LocalStore(tmp_path), sealed, file) or "")
