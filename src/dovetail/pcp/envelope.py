"""The envelopes of both protocol versions as typed, closed records, and the checks that JSON types cannot express."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.pcp.timestamps import decode_timestamp
from dovetail.pcp.uri import is_uri

T = TypeVar("T")

MAX_TARGETS = 100_000
MAX_SALVAGED_BYTES = 64 * 1024
_HEX_TO_ZERO = bytes.maketrans(b"123456789abcdefABCDEF", b"0" * 21)
_UUID_OF_ZEROS = b"00000000-0000-0000-0000-000000000000"
UUID_CHARS = len(_UUID_OF_ZEROS)


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The envelope of v1. Absent keys stay absent in the encoding: clients drop a message with a `null`."""

    id: str
    message_type: str
    expires: str
    targets: list[str]
    sender: str
    destination_report: bool | UnsetType = UNSET
    in_reply_to: str | UnsetType = msgspec.field(default=UNSET, name="in-reply-to")


class MessageV2(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A whole v2 message; `data` is kept as the JSON text received."""

    id: str
    message_type: str
    target: str | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    in_reply_to: str | UnsetType = UNSET
    data: msgspec.Raw | UnsetType = UNSET


class Salvage(NamedTuple):
    """What could be read of a refused message."""

    id: str | None = None
    message_type: str = ""
    targets: tuple[str, ...] = ()


def salvage(document: bytes) -> Salvage:
    """Those of id, type and targets that can be read from the JSON of an envelope or v2 message, and are not huge."""
    try:
        fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Salvage()
    message_id = _read_field(fields, "id", str)
    target = _read_field(fields, "target", str)
    targets = _read_field(fields, "targets", list[str]) or ([target] if target else [])
    return Salvage(
        message_id if message_id and is_uuid(message_id.encode()) else None,
        _read_field(fields, "message_type", str) or "",
        tuple(targets),
    )


def _read_field(fields: dict[str, msgspec.Raw], name: str, kind: type[T]) -> T | None:
    try:
        raw = fields[name]
        return None if memoryview(raw).nbytes > MAX_SALVAGED_BYTES else msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        return None


def is_uuid(text: bytes) -> bool:
    """True if the text has the form of a UUID; three times as fast as a regular expression."""
    return text.translate(_HEX_TO_ZERO) == _UUID_OF_ZEROS


def check_envelope(envelope: Envelope, known: Container[str] = ()) -> int:
    """Check the schema beyond JSON types; returns `expires` in microseconds, raises RemoteProtocolError.

    URIs in `known` were checked before.
    """
    if not is_uuid(envelope.id.encode()):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"id {envelope.id[:80]!r} is not a UUID")
    if envelope.in_reply_to is not UNSET and not is_uuid(envelope.in_reply_to.encode()):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"in-reply-to {envelope.in_reply_to[:80]!r} is not a UUID")
    targets = envelope.targets
    if len(targets) > MAX_TARGETS:
        raise RemoteProtocolError(Reason.TOO_LARGE, f"read {len(targets)} targets, expected at most {MAX_TARGETS}")
    for uri in targets if len(targets) == 1 else dict.fromkeys(targets):
        if uri not in known and not is_uri(uri):
            raise _bad_uri(uri)
    if envelope.sender not in known and not is_uri(envelope.sender):
        raise _bad_uri(envelope.sender)
    try:
        return decode_timestamp(envelope.expires)
    except ValueError as error:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"expires {error}") from None


def check_message_v2(message: MessageV2) -> None:
    """Check the schema of v2 beyond JSON types; raises RemoteProtocolError."""
    if not is_uuid(message.id.encode()):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"id {message.id[:80]!r} is not a UUID")
    if message.in_reply_to is not UNSET and not is_uuid(message.in_reply_to.encode()):
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"in_reply_to {message.in_reply_to[:80]!r} is not a UUID")
    for uri in (message.sender, message.target):
        if uri is not UNSET and not is_uri(uri):
            raise _bad_uri(uri)


def _bad_uri(uri: str) -> RemoteProtocolError:
    return RemoteProtocolError(Reason.BAD_URI, f"{uri[:80]!r} is not a PCP URI, expected pcp://<name>/<type>")
