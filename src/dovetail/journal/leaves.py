"""Leaf hashes of hops: of a commit that is in hand, and of the runs of one that is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from dovetail.journal.catalogue import Batch
from dovetail.journal.layout import REASON_OF_CODE, STAGE_OF_CODE
from dovetail.model.hop import Observation
from dovetail.tlog.leaf import NO_DIGEST, encode_head, encode_tail, hash_run

MAX_TAILS_CACHED = 100_000

TailKey = tuple[int, int, str | None]
"""Stage code, reason code (0 is none), counterpart."""


class Tails(dict[TailKey, bytes]):
    """The ends of leaf entries. There are few combinations of stage, reason and counterpart: each is encoded once."""

    def __missing__(self, key: TailKey) -> bytes:
        if len(self) >= MAX_TAILS_CACHED:
            self.clear()
        stage, reason, counterpart = key
        tail = self[key] = encode_tail(STAGE_OF_CODE[stage], REASON_OF_CODE[reason] if reason else None, counterpart)
        return tail


def hash_batch(observations: Sequence[Observation], batch: Batch, first_seq: int, tails: Tails) -> bytes:
    """Leaf hashes of the hops that these observations became, the first of them at `first_seq`."""
    bodies = _bodies(batch)
    sha256, leaves = hashlib.sha256, []
    seq, at_us = first_seq, batch.first_at_us
    for observation, (_, stage, reason, after_us, _) in zip(observations, batch.runs, strict=True):
        at_us += after_us
        counterparts = observation.counterparts
        digest, size = bodies.get(seq, _NO_BODY)
        if len(counterparts) < 2:
            tail = tails[stage, reason, counterparts[0] if counterparts else None]
            leaves.append(sha256(encode_head(seq, at_us, observation.message, digest, size) + tail).digest())
            seq += 1
        else:
            ends = [tails[stage, reason, name] for name in counterparts]
            leaves += hash_run(seq, at_us, observation.message, ends, digest, size)
            seq += len(ends)
    return b"".join(leaves)


_NO_BODY = (NO_DIGEST, 0)


def _bodies(batch: Batch) -> dict[int | None, tuple[bytes, int]]:
    """Digest and size by the hop that carries them."""
    messages: Iterable[tuple[bytes, int | None, int | None, bytes | None, int | None, bytes | None]]
    messages = batch.messages if not batch.bodies else [*batch.messages, *batch.bodies.values()]
    return {
        seq: (NO_DIGEST if digest is None else digest or address, size or 0)
        for address, seq, size, digest, _, _ in messages
        if seq is not None
    }
