"""A decoded message as a row: the columns that an audit decodes to, and that a compaction retains."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dovetail.model.fabric import MessageInfo
from dovetail.model.times import with_date

LINK = pa.struct([("parent", pa.binary()), ("relation", pa.string()), ("parent_expires_us", pa.int64())])

DECODED = pa.schema(
    [
        ("fabric", pa.string()),
        ("digest", pa.binary()),
        ("message", pa.binary()),
        ("key", pa.binary()),
        ("id", pa.string()),
        ("type", pa.string()),
        ("sender", pa.string()),
        ("recipients", pa.list_(pa.string())),
        ("created_us", pa.int64()),
        ("expires_us", pa.int64()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("direction", pa.string()),
        ("connection", pa.string()),
        ("sender_socket", pa.string()),
        ("recipient_socket", pa.string()),
        ("responding_to_type", pa.string()),
        ("signer", pa.string()),
        ("address_valid", pa.bool_()),
        ("work_valid", pa.bool_()),
        ("claims_valid", pa.bool_()),
        ("signed_digest", pa.binary()),
        ("signature", pa.binary()),
        ("fingerprint", pa.string()),
        ("key_owner", pa.string()),
        ("public_key", pa.binary()),
        ("links", pa.list_(LINK)),
        ("reject", pa.string()),
        ("detail", pa.string()),
    ]
)


def decoded_row(fabric: str, digest: bytes, size: int, info: MessageInfo) -> dict[str, Any]:
    """One message as a row of `DECODED`. Whoever wrote it may state any times; they are limited to those with dates."""
    row = {
        "fabric": fabric,
        "digest": digest,
        "message": info.address,
        "key": info.key,
        "id": info.id,
        "type": info.type,
        "sender": info.sender,
        "recipients": list(info.recipients) or None,
        "created_us": _dated(info.created_us),
        "expires_us": _dated(info.expires_us),
        "size": size,
        "version": info.version,
        "address_valid": info.address_valid,
        "work_valid": info.work_valid,
        "links": [
            {"parent": one.parent, "relation": one.relation.value, "parent_expires_us": _dated(one.parent_expires_us)}
            for one in info.links
        ],
    }
    for part in (info.channel, info.signed):
        if part is not None:
            row |= {name: getattr(part, name) for name in part.__struct_fields__ if name in DECODED.names}
    return row


def _dated(at_us: int | None) -> int | None:
    return None if at_us is None else with_date(at_us)
