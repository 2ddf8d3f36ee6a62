"""How messages lie in the file: all new messages of one commit in one row, with their bytes.

A row is a MessagePack array with one entry for each message, in the order of their numbers:

    [address, seq of the hop that carries the bytes or size, size, digest, expiry in microseconds, bytes]

Every field but the address may be nil. `digest` is the SHA-256 of the bytes kept, and empty where that is the address.
Bytes that come later than their message, and purging, replace the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dovetail.journal.layout import crc32
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.leaf import NO_DIGEST


class StoredMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message as it lies in a row."""

    address: bytes
    body_seq: int | None
    size: int | None
    digest: bytes | None
    expires_us: int | None
    raw: bytes | None


MessageTuple = tuple[bytes, int | None, int | None, bytes | None, int | None, bytes | None]
"""A StoredMessage on its way to the file, where it is encoded alike."""


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """One message with its number in this file; `raw` only where it was asked for and is kept."""

    id: int
    address: Address
    body_seq: int | None
    size: int | None
    digest: bytes | None
    expires_us: int | None
    raw: bytes | None

    def digest_on(self, seq: int) -> bytes:
        """The digest that the leaf of hop `seq` commits to."""
        if seq != self.body_seq or self.digest is None:
            return NO_DIGEST
        return self.digest or self.address


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """The messages that one commit brought: numbers from `first_id` on, first seen at hop `first_seq` or after."""

    first_id: int
    first_seq: int
    messages: list[StoredMessage]

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first_id + len(self.messages)

    @property
    def expires_us(self) -> int | None:
        """When the first of its bytes may be purged; None where none ever may."""
        return min((message.expires_us for message in self.messages if message.expires_us is not None), default=None)

    def row(self, message_id: int, *, with_raw: bool) -> MessageRow:
        """One of its messages."""
        stored = self.messages[message_id - self.first_id]
        return MessageRow(
            message_id,
            Address(stored.address),
            stored.body_seq,
            stored.size,
            stored.digest,
            stored.expires_us,
            stored.raw if with_raw else None,
        )


_decoder = msgspec.msgpack.Decoder(list[StoredMessage])
_encoder = msgspec.msgpack.Encoder()
encode_messages = _encoder.encode


def decode_block(first_id: int, count: int, first_seq: int, crc: int, blob: bytes) -> MessageBlock:
    """A row of the file; JournalDamaged names the messages where the bytes are not what was written."""
    where = f"messages {first_id} to {first_id + count - 1}"
    if crc32(blob) != crc:
        raise JournalDamaged(f"{where}: checksum does not match")
    try:
        messages = _decoder.decode(blob)
    except msgspec.DecodeError as error:
        raise JournalDamaged(f"{where}: {error}") from None
    if len(messages) != count:
        raise JournalDamaged(f"{where}: the row holds {len(messages)} messages")
    for message in messages:
        if len(message.address) != ADDRESS_BYTES or len(message.digest or b"") not in (0, ADDRESS_BYTES):
            raise JournalDamaged(f"{where}: address or digest does not have {ADDRESS_BYTES} bytes")
    return MessageBlock(first_id, first_seq, messages)
