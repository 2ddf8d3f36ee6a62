"""The envelopes of both protocol versions as typed, closed records, and the check of what JSON types cannot say."""

from __future__ import annotations

import re
from collections.abc import Container

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.errors import RemoteProtocolError
from dovetail.hop import Reason
from dovetail.pcp.timestamps import decode_timestamp
from dovetail.pcp.uri import is_uri

MAX_TARGETS = 100_000
_UUID = re.compile("[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
is_uuid = _UUID.fullmatch


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The envelope of v1. Absent keys stay absent when it is written: clients drop a message with a `null`."""

    id: str
    message_type: str
    expires: str
    targets: list[str]
    sender: str
    destination_report: bool | UnsetType = UNSET
    in_reply_to: str | UnsetType = msgspec.field(default=UNSET, name="in-reply-to")


class MessageV2(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A whole message of v2; `data` is kept as the JSON text it came as."""

    id: str
    message_type: str
    target: str | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    in_reply_to: str | UnsetType = UNSET
    data: msgspec.Raw | UnsetType = UNSET


def check_envelope(envelope: Envelope, known: Container[str] = ()) -> int:
    """The schema beyond JSON types; returns `expires` in microseconds, raises RemoteProtocolError.

    URIs that are in `known` were checked before.
    """
    if is_uuid(envelope.id) is None:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"id {envelope.id[:80]!r} is not a UUID")
    if envelope.in_reply_to is not UNSET and is_uuid(envelope.in_reply_to) is None:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"in-reply-to {envelope.in_reply_to[:80]!r} is not a UUID")
    if len(envelope.targets) > MAX_TARGETS:
        raise RemoteProtocolError(
            Reason.TOO_LARGE, f"read {len(envelope.targets)} targets, expected at most {MAX_TARGETS}"
        )
    for uri in (envelope.sender, *envelope.targets):
        if uri not in known and not is_uri(uri):
            raise RemoteProtocolError(Reason.BAD_URI, f"{uri[:80]!r} is not a PCP URI, expected pcp://<name>/<type>")
    try:
        return decode_timestamp(envelope.expires)
    except ValueError as error:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"expires {error}") from None


def check_message_v2(message: MessageV2) -> None:
    """The schema of v2 beyond JSON types; raises RemoteProtocolError."""
    if is_uuid(message.id) is None:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"id {message.id[:80]!r} is not a UUID")
    if message.in_reply_to is not UNSET and is_uuid(message.in_reply_to) is None:
        raise RemoteProtocolError(Reason.INVALID_SCHEMA, f"in_reply_to {message.in_reply_to[:80]!r} is not a UUID")
    for uri in (message.sender, message.target):
        if uri is not UNSET and not is_uri(uri):
            raise RemoteProtocolError(Reason.BAD_URI, f"{uri[:80]!r} is not a PCP URI, expected pcp://<name>/<type>")
