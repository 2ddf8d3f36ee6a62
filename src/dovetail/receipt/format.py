"""The receipt file format: its records, their limits, and the only way to write them.

A receipt is JSON in one canonical form: sorted keys, no white space, no unneeded escapes, one line feed at the end.
`decode_receipt` rejects any other form, so every byte of a file is significant. Addresses and digests are lower-case
hex; message bytes, hashes and keys are base64 with padding. Absent values are omitted, never null. The field `receipt`
gives the kind of receipt and its version.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Annotated, ClassVar, assert_never

import msgspec

from dovetail.model.canonical_base64 import encode_base64
from dovetail.model.errors import ReceiptError
from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, MAX_SIGNATURES
from dovetail.tlog.keys import Verifier
from dovetail.tlog.leaf import MAX_COUNTERPART_BYTES
from dovetail.tlog.note import CheckedNote, check_signatures, decode_base64, select_signatures
from dovetail.tlog.tree import HASH_BYTES, MAX_LEVEL

MAX_RECEIPT_BYTES = 16 << 20
MAX_MESSAGES = 64
MAX_CONVERSATION = 4096
"""Maximum number of messages in a conversation."""
MAX_JOURNALS = 1024
MAX_HOPS = 16_384
MAX_CLAIMS = MAX_MESSAGES + MAX_JOURNALS + MAX_HOPS + 8
MAX_TIME_US = 253_402_300_800_000_000
"""The end of the year 9999, the latest time that can be written."""
_MAX_KEY_CHARS = 1200
_MAX_SEQ = (1 << 63) - 1
_HASH = struct.Struct(f"{HASH_BYTES}s")
_MAX_HASHES_CHARS = 4 * ((MAX_HOPS * HASH_BYTES * MAX_LEVEL + 2) // 3)

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_COUNTERPART_BYTES)]
Sentence = Annotated[str, msgspec.Meta(min_length=1, max_length=8 * MAX_COUNTERPART_BYTES)]
Claim = Annotated[list[Sentence], msgspec.Meta(min_length=1, max_length=MAX_CLAIMS)]
# lengths too, since `$` would accept a trailing line feed
Hex32 = Annotated[str, msgspec.Meta(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")]
Note = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NOTE_BYTES)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_KEY_CHARS)]
Keys = Annotated[list[Key], msgspec.Meta(min_length=1, max_length=MAX_SIGNATURES)]
Hashes = Annotated[str, msgspec.Meta(max_length=_MAX_HASHES_CHARS)]
Body = Annotated[str, msgspec.Meta(max_length=MAX_RECEIPT_BYTES)]
Position = Annotated[int, msgspec.Meta(ge=0, le=_MAX_SEQ)]
Time = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TIME_US)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A part of a receipt: unknown fields are rejected, and defaults are not written."""


class Kind(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="receipt"
):
    """A kind of receipt, identified by the field `receipt`."""

    claim: Claim


class Wording(enum.Enum):
    """How a claim words that a server handed a message to a connection."""

    DELIVERED = 1
    HANDED_OVER = 2


class MessageRecord(Record, frozen=True, kw_only=True):
    """A message. The first of a receipt is its subject; any other names the subject by `relation`.

    Bytes that are UTF-8 are in `text`, others in `bytes`; neither is present if they are omitted.
    """

    address: Hex32
    text: Body | None = None
    bytes: Body | None = None
    relation: Annotated[str, msgspec.Meta(max_length=32)] | None = None


class HopRecord(Record, frozen=True, kw_only=True):
    """A hop as in its leaf, without the server. `path` lists the indexes of its proof's hashes, leaf to root."""

    at: Time
    seq: Position
    stage: Annotated[str, msgspec.Meta(max_length=32)]
    message: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CONVERSATION)] = 0
    counterpart: Text | None = None
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    digest: Hex32 | None = None
    size: Annotated[int, msgspec.Meta(ge=1, le=_MAX_SEQ)] | None = None
    path: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=MAX_LEVEL)]


class SinceRecord(Record, frozen=True, kw_only=True):
    """The tree of the checkpoint starts with the tree of `size` leaves and this root (RFC 9162, 2.1.4)."""

    size: Annotated[int, msgspec.Meta(ge=1, le=_MAX_SEQ)]
    root: Annotated[str, msgspec.Meta(max_length=44)]
    proof: Annotated[str, msgspec.Meta(max_length=2816)]


class NoteRecord(Record, frozen=True, kw_only=True):
    """A signed checkpoint with the public key of each of its signatures, in the same order."""

    checkpoint: Note
    keys: Keys


class JournalRecord(NoteRecord, frozen=True, kw_only=True):
    """The hops of one journal. `hashes` are the distinct hashes of all paths, in order of first use."""

    hashes: Hashes
    hops: Annotated[list[HopRecord], msgspec.Meta(min_length=1, max_length=MAX_HOPS)]
    since: SinceRecord | None = None


class Delivery(Kind, frozen=True, kw_only=True, tag="delivery/2"):
    """What happened to one message. `wording` is the wording of its claim."""

    wording: ClassVar[Wording] = Wording.HANDED_OVER
    messages: Annotated[list[MessageRecord], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    journals: Annotated[list[JournalRecord], msgspec.Meta(min_length=1, max_length=MAX_JOURNALS)]


class DeliveryV1(Delivery, frozen=True, kw_only=True, tag="delivery/1"):
    """The same with older wording; no longer created."""

    wording: ClassVar[Wording] = Wording.DELIVERED


class Fork(Kind, frozen=True, kw_only=True, tag="fork/2"):
    """Two messages that one author signed and that contradict each other, and the journals that have them."""

    wording: ClassVar[Wording] = Wording.HANDED_OVER
    contradiction: Annotated[str, msgspec.Meta(max_length=32)]
    messages: Annotated[list[MessageRecord], msgspec.Meta(min_length=2, max_length=2)]
    journals: Annotated[list[JournalRecord], msgspec.Meta(min_length=1, max_length=MAX_JOURNALS)]


class ForkV1(Fork, frozen=True, kw_only=True, tag="fork/1"):
    """The same with older wording; no longer created."""

    wording: ClassVar[Wording] = Wording.DELIVERED


class SplitView(Kind, frozen=True, kw_only=True, tag="split-view/1"):
    """Two checkpoints of one server that cannot both be true.

    If the second has more hops, `root` is the root over as many of its hops as the first has, and `proof` proves it.
    """

    first: NoteRecord
    second: NoteRecord
    root: Annotated[str, msgspec.Meta(max_length=44)] | None = None
    proof: Annotated[str, msgspec.Meta(max_length=2816)] | None = None


class RangeHop(Record, frozen=True, kw_only=True):
    """A hop of a range; its position follows from its index in the list."""

    at: Time
    message: Hex32
    stage: Annotated[str, msgspec.Meta(max_length=32)]
    counterpart: Text | None = None
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    digest: Hex32 | None = None
    size: Annotated[int, msgspec.Meta(ge=1, le=_MAX_SEQ)] | None = None


class Period(Kind, frozen=True, kw_only=True, rename={"since": "from"}):
    """The hops of one server in a time range, and the proof that they are all."""

    journal: NoteRecord
    first: Position
    since: Time
    until: Time
    hashes: Annotated[str, msgspec.Meta(max_length=8192)]
    hops: Annotated[list[RangeHop], msgspec.Meta(min_length=1, max_length=MAX_HOPS)]


class Completeness(Period, frozen=True, kw_only=True, tag="completeness/1"):
    """All hops of one server in a time range, with the last hop before it and the first after it.

    `hashes` are the roots of the subtrees beside the range, left to right.
    """


class Conversation(Kind, frozen=True, kw_only=True, tag="conversation/1"):
    """All messages of one won conversation, by address, and one hop of each in every journal that has it."""

    messages: Annotated[list[MessageRecord], msgspec.Meta(min_length=1, max_length=MAX_CONVERSATION)]
    journals: Annotated[list[JournalRecord], msgspec.Meta(min_length=1, max_length=MAX_JOURNALS)]


class Exchange(Period, frozen=True, kw_only=True, tag="exchange/1"):
    """All messages of one pcp exchange in a time range: the range as in `Completeness`, and the bytes that prove it.

    The first message is the request; the others are sorted by address.
    """

    messages: Annotated[list[MessageRecord], msgspec.Meta(min_length=1, max_length=MAX_CONVERSATION)]


Receipt = Delivery | DeliveryV1 | Fork | ForkV1 | SplitView | Completeness | Conversation | Exchange

_decoder: msgspec.json.Decoder[Receipt] = msgspec.json.Decoder(Receipt)
_encoder = msgspec.json.Encoder(order="sorted")


def encode_receipt(receipt: Receipt) -> bytes:
    """Encode a receipt file."""
    return _encoder.encode(receipt) + b"\n"


def decode_receipt(data: bytes) -> Receipt:
    """Decode a receipt file, checking only its form; ReceiptError says what is wrong."""
    if len(data) > MAX_RECEIPT_BYTES:
        raise ReceiptError(f"file: it has more than {MAX_RECEIPT_BYTES} bytes")
    if not data:
        raise ReceiptError("file: it is empty")
    try:
        receipt = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ReceiptError(f"form: {error}") from None
    if encode_receipt(receipt) != data:
        raise ReceiptError("form: the file is not in its canonical spelling")
    return receipt


def notes_of(receipt: Receipt) -> list[NoteRecord]:
    """All checkpoints of a receipt."""
    match receipt:
        case Delivery() | Fork() | Conversation():
            return list(receipt.journals)
        case SplitView():
            return [receipt.first, receipt.second]
        case Completeness() | Exchange():
            return [receipt.journal]
        case _:
            assert_never(receipt)


def carry_note(note: str, verifiers: Iterable[Verifier]) -> NoteRecord:
    """Record a signed checkpoint with the keys of the signatures that `verifiers` can check."""
    text, keys = select_signatures(note, verifiers)
    return NoteRecord(checkpoint=text, keys=keys)


def check_note(record: NoteRecord) -> CheckedNote:
    """Check all signatures of a recorded checkpoint with the keys recorded beside them."""
    return check_signatures(record.checkpoint, tuple(record.keys))


def record_message(address: bytes, raw: bytes | None, relation: str | None) -> MessageRecord:
    """Record a message for a receipt."""
    if raw is None:
        return MessageRecord(address=address.hex(), relation=relation)
    if _is_text(raw):
        return MessageRecord(address=address.hex(), text=raw.decode(), relation=relation)
    return MessageRecord(address=address.hex(), bytes=encode_base64(raw), relation=relation)


def bytes_of(record: MessageRecord) -> bytes | None:
    """The bytes of a message, if the receipt contains them."""
    if record.bytes is None:
        return None if record.text is None else record.text.encode()
    raw = decode_base64(record.bytes, f"the bytes of {record.address}")
    if record.text is not None or _is_text(raw):
        raise ReceiptError(f"form: the bytes of {record.address} are not in canonical form")
    return raw


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_hashes(hashes: list[bytes]) -> str:
    """Encode concatenated hashes as base64."""
    return encode_base64(b"".join(hashes))


def decode_hashes(text: str, what: str) -> list[bytes]:
    """Decode hashes of 32 bytes each."""
    data = decode_base64(text, what)
    if len(data) % HASH_BYTES:
        raise ReceiptError(f"form: {what} has {len(data)} bytes, expected a multiple of {HASH_BYTES}")
    return [value for (value,) in _HASH.iter_unpack(data)]
