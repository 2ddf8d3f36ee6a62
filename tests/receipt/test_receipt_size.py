"""The size of the receipt of a won chain in journals of ten million hops.

Only the neighbourhood of the chain's hops is computed; every other subtree has a made-up hash. The tree is as
consistent as a real one, so the receipt is valid, and has the size that it would have in a real journal.
`python -m benchmarks.receipt --hops 10000000` writes the whole journals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import pytest

from dovetail.journal.hop_source import CommittedHop
from dovetail.model.address import Address
from dovetail.model.hop import Hop, Observation
from dovetail.receipt.build import build_receipt
from dovetail.receipt.build_evidence import root_of_first
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.checkpoint import Checkpoint, SignedCheckpoint, sign_checkpoint
from dovetail.tlog.leaf import NO_DIGEST, encode_entry
from dovetail.tlog.tree import hash_children, hash_leaf
from receipt import receipt_samples as samples

HOPS = 10_000_000
MAX_BYTES = 30_000


class VastSource:
    """A journal of ten million hops, with these `apart` from each other, in the middle."""

    fabric = "won"

    def __init__(self, server: str, observations: Sequence[Observation], apart: int) -> None:
        self.server = server
        self.verifier = samples.signer_of(server).verifier
        self._raws: dict[Address, bytes] = {}
        self._kept = list(self._keep(observations, apart))
        self._leaves = {kept.hop.seq: hash_leaf(encode_entry(kept.hop, kept.digest)) for kept in self._kept}

    def _keep(self, observations: Sequence[Observation], apart: int) -> Iterator[CommittedHop]:
        for place, seen in enumerate(observations):
            is_first = seen.message not in self._raws
            raw = self._raws.setdefault(seen.message, seen.raw)
            hop = Hop(
                server=self.server,
                seq=HOPS // 2 + place * (apart + 1),
                at_us=seen.at_us,
                fabric="won",
                stage=seen.stage,
                message=seen.message,
                counterpart=seen.counterparts[0] if seen.counterparts else None,
                size=len(raw) if is_first else None,
            )
            yield CommittedHop(hop, hashlib.sha256(raw).digest() if is_first else NO_DIGEST)

    def latest_checkpoint(self) -> SignedCheckpoint:
        checkpoint = Checkpoint(self.server, HOPS, root_of_first(HOPS, self.node))
        return sign_checkpoint(checkpoint, samples.signer_of(self.server))

    def hops_of(self, address: Address) -> list[CommittedHop]:
        return [kept for kept in self._kept if kept.hop.message == address]

    def raw(self, address: Address) -> bytes | None:
        return self._raws.get(address)

    def bodies_between(self, first: int, end: int) -> Iterator[tuple[Address, bytes]]:
        for kept in self._kept:
            if first <= kept.hop.seq < end and kept.digest != NO_DIGEST:
                yield kept.hop.message, self._raws[kept.hop.message]

    def node(self, level: int, number: int) -> bytes:
        if not any(seq >> level == number for seq in self._leaves):
            return hashlib.sha256(b"%d %d" % (level, number)).digest()
        if level == 0:
            return self._leaves[number]
        return hash_children(self.node(level - 1, 2 * number), self.node(level - 1, 2 * number + 1))


@pytest.mark.parametrize("apart", [0, 150, 20_000])
def test_a_won_chain_in_ten_million_hops_stays_under_30_kb(apart):
    at_a, at_b = samples.won_observations()
    sources = [VastSource(samples.NODE_A, at_a, apart), VastSource(samples.NODE_B, at_b, apart)]
    data = build_receipt(sources, at_a[0].message).data
    proof = verify_receipt(data, samples.verifiers())
    assert [signatory.checkpoint.size for signatory in proof.signatories] == [HOPS, HOPS]
    assert len(proof.hops) == len(at_a) + len(at_b)
    assert len(proof.messages) == 3
    assert all(message.raw for message in proof.messages)
    assert len(data) < MAX_BYTES
