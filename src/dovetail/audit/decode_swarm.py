"""swarm: content messages, decoded by columns, for those who have Arrow batches and no Spark, as compaction has.

The fixed part of twenty bytes is read with numpy for a whole batch at once, with the offsets of `swarm.content`. Only
the first `HEAD_BYTES` of a message are looked at, and only what those say is given (`DECODED_SWARM`): the other columns
of `DECODED` follow from the digest, and the work is judged by whoever has all of the bytes. In an audit native
expressions do the same (`transforms.swarm_messages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.audit.decode import Batches
from dovetail.lake.decoded import LINK
from dovetail.model.hop import Reason, Relation
from dovetail.swarm import content as c

HEAD_BYTES = c.FIXED_BYTES + c.MAX_REFERENCES * c.REFERENCE_BYTES
MESSAGE_TYPE = "content"
DECODED_SWARM = pa.schema(
    [
        ("digest", pa.binary()),
        ("size", pa.int64()),
        ("work_valid", pa.bool_()),
        ("created_us", pa.int64()),
        ("expires_us", pa.int64()),
        ("links", pa.list_(LINK)),
        ("reject", pa.string()),
    ]
)
_SATURATED = -0x8000
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_REASONS = np.array(
    [
        None,
        Reason.TRUNCATED.value,
        Reason.TOO_LARGE.value,
        Reason.BAD_INDICATOR.value,
        Reason.UNKNOWN_OPCODE.value,
        Reason.UNSUPPORTED_VERSION.value,
        Reason.BAD_REFERENCE_COUNT.value,
    ],
    dtype=object,
)
_OK, _TRUNCATED, _TOO_LARGE, _INDICATOR, _OPCODE, _VERSION, _COUNT = range(7)


@dataclass(frozen=True, slots=True)
class SwarmDecoder:
    """Decodes messages of swarms whose epochs are known; `epoch_ms` is by swarm, "" is for all others."""

    epoch_ms: Mapping[str, int]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Decode batches of swarm messages."""
        for batch in batches:
            if batch.num_rows:
                yield self._decode(batch)

    def _decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        heads, lengths = _prefixes(batch.column("raw"), HEAD_BYTES)
        sizes = batch.column("size").to_numpy(zero_copy_only=False)
        verdicts = _judge(heads, lengths, sizes)
        is_good = verdicts == _OK
        epochs = self._epochs(batch.column("swarm"))
        created = _little_endian(heads, c.TIME_OFFSET, 6)
        ttl = _little_endian(heads, c.TTL_OFFSET, 2)
        expires: Ints = (created + np.maximum(ttl, 1) * epochs).astype(np.int64)
        counts = np.where(is_good, heads[:, c.FLAGS_OFFSET] & c.COUNT_MASK, 0).astype(np.int64)
        return pa.RecordBatch.from_arrays(
            [
                batch.column("digest"),
                batch.column("size"),
                batch.column("work_valid"),
                pa.array(created * 1000, pa.int64(), mask=~is_good),
                pa.array(expires * 1000, pa.int64(), mask=~is_good),
                _links(heads, counts, expires, epochs),
                pa.array(_REASONS[verdicts], pa.string()) if verdicts.any() else pa.nulls(len(verdicts), pa.string()),
            ],
            schema=DECODED_SWARM,
        )

    def _epochs(self, swarms: pa.Array) -> Ints:
        other = self.epoch_ms[""]
        encoded = swarms.fill_null("").dictionary_encode()
        by_code = np.array([self.epoch_ms.get(name, other) for name in encoded.dictionary.to_pylist()], dtype=np.int64)
        codes: Ints = encoded.indices.to_numpy(zero_copy_only=False)
        return by_code[codes]


def decode_swarm(batches: Batches, epoch_ms: Mapping[str, int] | None = None) -> Iterator[pa.RecordBatch]:
    """Decode batches of swarm messages; by default with an epoch of one minute."""
    return SwarmDecoder(epoch_ms or {"": c.ContentRules().epoch_ms})(batches)


def _prefixes(raw: pa.Array, width: int) -> tuple[Bytes, Ints]:
    """The first `width` bytes of each value as a matrix, zeros behind its end, and how many bytes there were."""
    raw = raw.cast(pa.binary())
    offsets = np.frombuffer(raw.buffers()[1], dtype=np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
    data_buffer = raw.buffers()[2]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    padded = np.concatenate([data, np.zeros(width, np.uint8)])
    lengths = offsets[1:] - offsets[:-1]
    columns = np.arange(width)
    matrix = padded[offsets[:-1, None] + columns]
    matrix[columns >= lengths[:, None]] = 0
    return matrix, lengths


def _fixed_column(kind: pa.DataType, matrix: Bytes) -> pa.Array:
    """Rows of bytes as a column of values of one width."""
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(matrix.tobytes())])


def _judge(heads: Bytes, lengths: Ints, sizes: Ints) -> npt.NDArray[np.int64]:
    """What is wrong with each message, in the order of refusals of reading 16; the last written wins."""
    counts = heads[:, c.FLAGS_OFFSET] & c.COUNT_MASK
    needed = c.FIXED_BYTES + c.REFERENCE_BYTES * counts.astype(np.int64)
    verdicts = np.zeros(len(heads), dtype=np.int64)
    verdicts[lengths < np.minimum(needed, HEAD_BYTES)] = _TRUNCATED
    verdicts[(counts > c.MAX_REFERENCES) & (lengths >= c.FIXED_BYTES)] = _COUNT
    verdicts[(lengths > c.VERSION_OFFSET) & (heads[:, c.VERSION_OFFSET] != c.VERSION)] = _VERSION
    verdicts[(lengths > 1) & (heads[:, 1] != c.OPCODE_CONTENT)] = _OPCODE
    verdicts[(lengths > 1) & (heads[:, 0] != c.INDICATOR)] = _INDICATOR
    verdicts[sizes > c.MAX_CONTENT_BYTES] = _TOO_LARGE
    verdicts[lengths < 2] = _TRUNCATED
    return verdicts


def _little_endian(heads: Bytes, offset: int, width: int) -> Ints:
    weights = 1 << (8 * np.arange(width, dtype=np.int64))
    return heads[:, offset : offset + width].astype(np.int64) @ weights


def _links(heads: Bytes, counts: Ints, expires_ms: Ints, epochs: Ints) -> pa.Array:
    """The references of all messages as one list column."""
    rows = np.repeat(np.arange(len(heads)), counts)
    total = len(rows)
    ends = np.cumsum(counts)
    ordinals = np.arange(total) - np.repeat(ends - counts, counts)
    starts = c.FIXED_BYTES + c.REFERENCE_BYTES * ordinals
    parents = heads[rows[:, None], starts[:, None] + np.arange(c.HASH_BYTES)]
    low = heads[rows, starts + c.HASH_BYTES].astype(np.int64)
    high = heads[rows, starts + c.HASH_BYTES + 1].astype(np.int64)
    diffs = _signed16(low | high << 8)
    latest = expires_ms[rows] - diffs * epochs[rows]
    values = pa.StructArray.from_arrays(
        [
            _fixed_column(pa.binary(), parents),
            pa.repeat(pa.scalar(Relation.REFERS.value), total),
            pa.array(latest * 1000, pa.int64(), mask=diffs <= _SATURATED),
        ],
        fields=list(LINK),
    )
    offsets = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _signed16(values: Ints) -> Ints:
    return np.where(values >= 0x8000, values - 0x10000, values)
