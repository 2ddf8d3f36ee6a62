"""What a verified receipt proves, and the policy it was checked against."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dovetail.fabrics import address_text, is_server_name, name_of
from dovetail.model.address import Address
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Hop, Relation
from dovetail.receipt.claims import describe_cosignature
from dovetail.receipt.consistency import View
from dovetail.receipt.format import MAX_TIME_US
from dovetail.tlog.checkpoint import Checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.note import CheckedNote, Cosignature

MAX_SKEW_US = 300_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Further requirements on a receipt. Without `now_us`, times are not compared with the clock."""

    now_us: int | None = None
    max_skew_us: int = MAX_SKEW_US
    witnesses: int = 0
    max_age_s: int | None = None
    needs_authors_keys: bool = True
    """Signatures inside messages must match a trusted key. If False, to show a file to a reader without keys, those
    that match none are listed under what is not proven."""

    @property
    def latest_us(self) -> int:
        """The latest time that is plausible now."""
        return MAX_TIME_US if self.now_us is None else self.now_us + self.max_skew_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatory:
    """A server whose signature was verified with a trusted key, and the trusted witnesses of its checkpoint.

    `unknown_witnesses` are cosigners that do not count: not trusted, servers, or one key under a second name.
    """

    checkpoint: Checkpoint
    verifier: Verifier
    witnesses: tuple[Cosignature, ...]
    unknown_witnesses: tuple[str, ...]

    @property
    def server(self) -> str:
        """The server's URI, which is its key's name."""
        return self.checkpoint.origin

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, in hex."""
        return hashlib.sha256(self.verifier.public_key).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenMessage:
    """A message of a receipt; `relation` is how it names the subject, None for the subject itself."""

    address: Address
    name: str
    raw: bytes | None
    relation: Relation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What is proven, by whom, and what is not; its text is what `dovetail receipt verify` prints."""

    kind: str
    fabric: str
    claims: tuple[str, ...]
    not_proven: tuple[str, ...]
    signatories: tuple[Signatory, ...]
    views: tuple[View, ...] = ()
    messages: tuple[ProvenMessage, ...] = ()
    hops: tuple[Hop, ...] = field(default=(), repr=False)
    growth: tuple[str, ...] = ()
    """The results of comparing with other receipts or checkpoints."""

    @property
    def witnessed(self) -> tuple[str, ...]:
        """What trusted witnesses add."""
        return tuple(
            describe_cosignature(signatory.checkpoint, cosignature)
            for signatory in self.signatories
            for cosignature in signatory.witnesses
        )

    def with_growth(self, growth: Iterable[str]) -> Proof:
        """Return a copy with the results of a comparison."""
        return replace(self, growth=tuple(growth))

    @property
    def subject(self) -> Address | None:
        """The message it is about, if it is about one."""
        return self.messages[0].address if self.messages else None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, heading: str = "proven:") -> Iterator[str]:
        """The text, with `heading` above the claims."""
        yield heading
        yield from (f"  {claim}" for claim in (*self.claims, *self.witnessed, *self.growth))
        if self.kind in ("completeness", "exchange"):
            yield "the hops:"
            for hop in self.hops:
                whom = "" if hop.counterpart is None else f" {hop.counterpart}"
                yield f"  {hop.seq} {hop.stage} {address_text(hop.message, hop.fabric)}{whom}"
        if self.kind == "conversation":
            yield "the messages:"
            yield from (f"  {address_text(message.address, self.fabric)}" for message in self.messages)
        yield "signed by:"
        for signatory in self.signatories:
            yield f"  {signatory.server}, key {signatory.fingerprint}"
            yield from (f"    cosigned by {c.witness.name}, whom you trust" for c in signatory.witnesses)
            yield from (
                f"    the cosignature of {name} does not count: its key is not a trusted witness's"
                for name in signatory.unknown_witnesses
            )
        yield "not proven:"
        yield from (f"  {limit}" for limit in self.not_proven)


def check_trust(note: CheckedNote, trusted: frozenset[Verifier], policy: Policy) -> Signatory:
    """Check that the server's key is trusted, and that enough trusted witnesses saw its checkpoint recently enough."""
    origin = note.checkpoint.origin
    if note.verifier not in trusted:
        raise ReceiptError(f"trust: no trusted key of {origin} has signed this checkpoint")
    # count keys, not names: a server's key is no witness under any name, and one key under two names is one
    servers = {verifier.public_key for verifier in trusted if is_server_name(verifier.name)}
    by_key = {c.witness.public_key: c for c in reversed(note.cosignatures) if c.witness in trusted}
    known = tuple(c for key, c in sorted(by_key.items(), key=lambda item: item[1].witness.name) if key not in servers)
    unknown = tuple(c.witness.name for c in note.cosignatures if c not in known)
    for cosignature in known:
        check_clock(cosignature.at_s * 1_000_000, f"the cosignature of {cosignature.witness.name}", policy)
    if len(known) < policy.witnesses:
        raise ReceiptError(
            f"witnesses: {len(known)} trusted witnesses cosigned the checkpoint of {origin}, "
            f"expected at least {policy.witnesses}"
        )
    if policy.max_age_s is not None and policy.now_us is not None:
        newest_s = max((c.at_s for c in known), default=0)
        if policy.now_us // 1_000_000 - newest_s > policy.max_age_s:
            raise ReceiptError(
                f"time: no trusted witness saw the checkpoint of {origin} in the last {policy.max_age_s} seconds"
            )
    return Signatory(checkpoint=note.checkpoint, verifier=note.verifier, witnesses=known, unknown_witnesses=unknown)


def check_clock(at_us: int, what: str, policy: Policy) -> None:
    """Check that a time is not in the future."""
    if policy.now_us is not None and at_us > policy.latest_us:
        ahead_s = (at_us - policy.now_us) // 1_000_000
        raise ReceiptError(f"time: {what} lies {ahead_s} seconds in the future")


def server_fabric(server: str) -> str:
    """The name of a server's fabric, from its URI."""
    try:
        return name_of(server)
    except ValueError as error:
        raise ReceiptError(f"checkpoint: {error}") from None


def check_order(names: Iterable[str], what: str) -> None:
    """Check that names are unique and sorted."""
    previous: str | None = None
    for name in names:
        if previous is not None and name <= previous:
            raise ReceiptError(f"form: {what} are not in order, or one occurs twice")
        previous = name
