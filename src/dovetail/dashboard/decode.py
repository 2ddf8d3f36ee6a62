"""One message's bytes as fields and links, read with the fabrics' own decoders; what does not decode says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.fabrics import fabric_named
from dovetail.model.fabric import MessageInfo, Refused
from dovetail.model.hop import Fabric, Relation


@dataclass(frozen=True, slots=True)
class Named:
    """A message that another one names: by its address, the beginning of it, or its id."""

    relation: Relation
    parent: bytes | str


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the bytes say."""

    fields: dict[str, Any] = field(default_factory=dict)
    type: str = ""
    id: str = ""
    sender: str = ""
    names: Sequence[Named] = ()
    error: str = ""


def decode(fabric: Fabric, raw: bytes) -> Decoded:
    """The fields of a message of this fabric; `error` where the bytes cannot be read."""
    reader = fabric_named(fabric)
    info = reader.read(raw)
    if isinstance(info, Refused):
        return Decoded(error=f"{info.reason}: {info.detail}")
    return Decoded(reader.explain(raw), info.type, info.id, info.sender or "", _names(fabric, info))


def _names(fabric: Fabric, info: MessageInfo) -> list[Named]:
    reader = fabric_named(fabric)
    return [
        Named(link.relation, reader.show_key(link.parent) if reader.key_bytes is None else link.parent)
        for link in info.links
    ]
