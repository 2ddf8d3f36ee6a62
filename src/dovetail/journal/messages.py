"""How messages are stored: all new messages of one commit in one row, with their bytes.

A row is a MessagePack array with one entry per message, in order of their numbers:

    [address, seq of the hop that carries the bytes or size, size, digest, expiry in microseconds, bytes]

Every field but the address may be nil. `digest` is the SHA-256 of the stored bytes, and empty if that is the address.
Bytes that arrive later than their message, and purging, replace the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.leaf import NO_DIGEST

MAX_NUMBER = (1 << 63) - 1
_Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]


class StoredMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message as stored in a row."""

    address: Annotated[bytes, Meta(min_length=ADDRESS_BYTES, max_length=ADDRESS_BYTES)]
    body_seq: _Count | None
    size: _Count | None
    digest: bytes | None
    expires_us: Annotated[int, Meta(le=MAX_NUMBER)] | None
    raw: bytes | None


MessageTuple = tuple[bytes, int | None, int | None, bytes | None, int | None, bytes | None]
"""A StoredMessage to be written; it is encoded in the same way."""


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """One message with its number in this file; `raw` only if it was requested and is stored."""

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
class MessagesRow:
    """The messages added by one commit, as stored in the file."""

    first_id: int
    count: int
    first_seq: int
    rows: bytes

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first_id + self.count


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """The messages added by one commit: numbered from `first_id`, first seen at hop `first_seq` or later."""

    first_id: int
    first_seq: int
    messages: list[StoredMessage]

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first_id + len(self.messages)

    @property
    def expires_us(self) -> int | None:
        """When the first of its bytes may be purged; None if none may."""
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


def decode_messages(rows: bytes) -> list[StoredMessage]:
    """Decode the messages of a row; ValueError if the bytes are not in the form that is written."""
    try:
        messages = _decoder.decode(rows)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if any(len(message.digest) != ADDRESS_BYTES for message in messages if message.digest):
        raise ValueError(f"a digest does not have {ADDRESS_BYTES} bytes")
    return messages


def decode_block(row: MessagesRow) -> MessageBlock:
    """Decode the messages of a row; JournalDamaged names them if the bytes are not what was written."""
    where = f"messages {row.first_id} to {row.end - 1}"
    try:
        messages = decode_messages(row.rows)
    except ValueError as error:
        raise JournalDamaged(f"{where}: {error}") from None
    if len(messages) != row.count:
        raise JournalDamaged(f"{where}: the row holds {len(messages)} messages")
    return MessageBlock(row.first_id, row.first_seq, messages)
