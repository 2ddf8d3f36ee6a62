"""The message types a broker knows and the closed records of their data."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.model.hop import Stage
from dovetail.pcp.strict_json import count_strings
from dovetail.pcp.uri import BROKER_URIS

PREFIX = "http://puppetlabs.com/"
ASSOCIATE_REQUEST = PREFIX + "associate_request"
ASSOCIATE_RESPONSE = PREFIX + "associate_response"
INVENTORY_REQUEST = PREFIX + "inventory_request"
INVENTORY_RESPONSE = PREFIX + "inventory_response"
INVENTORY_UPDATE = PREFIX + "inventory_update"
DESTINATION_REPORT = PREFIX + "destination_report"
ERROR_MESSAGE = PREFIX + "error_message"
TTL_EXPIRED = PREFIX + "ttl_expired"
UNAUTHORIZED = PREFIX + "unauthorized"
VERSION_ERROR = PREFIX + "version_error"
REFUSALS_SAMPLED = "dovetail:refusals_sampled"  # to itself: refusals that are not journaled one by one
RULES_CHANGED = "dovetail:rules_changed"  # the broker to itself, so that the journal shows which rules decided

MAX_INVENTORY_REQUEST_BYTES = 1024 * 1024
MAX_SUBSCRIPTION_BYTES = 16 * 1024
"""The patterns of a subscription stay in memory as long as its connection is open."""

_OUTCOMES = frozenset({Stage.DELIVERED, Stage.REDELIVERED, Stage.UNDELIVERABLE, Stage.EXPIRED})


def is_outcome(stage: Stage, counterpart: str | None) -> bool:
    """Whether a hop is the final outcome of a message for its counterpart: a recipient of it gets exactly one.

    A refusal is an outcome only if the broker was the recipient. Any other names the sender, who may also be a
    recipient of the same bytes, sent again and accepted.
    """
    return stage in _OUTCOMES or (stage is Stage.REJECTED and counterpart in BROKER_URIS)


CLOSE_SUPERSEDED = 4000
CLOSE_ASSOCIATION_UNSUCCESSFUL = 4002
CLOSE_NO_CERTIFICATE = 4003
CLOSE_LIMIT_EXCEEDED = 1011
CLOSE_REVOKED = 1012


class AssociateResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of an associate response; `id` is the request's."""

    id: str
    success: bool
    reason: str | UnsetType = UNSET


class InventoryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of an inventory request."""

    query: list[str]
    subscribe: bool | UnsetType = UNSET


class InventoryResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of an inventory response: sorted URIs, connected now."""

    uris: list[str]


class InventoryChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change: 1 connected, -1 disconnected."""

    client: str
    change: int


class InventoryUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of an inventory update."""

    changes: list[InventoryChange]


class DestinationReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of a destination report: the expanded, sorted targets of the message with this id."""

    id: str
    targets: list[str]


class ErrorMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of a v1 error message; in v2 only the description."""

    description: str
    id: str | UnsetType = UNSET


class TtlExpired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of a TTL expired message."""

    id: str


class VersionError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data of a version error."""

    id: str
    target: str
    reason: str


_inventory_decoder = msgspec.json.Decoder(InventoryRequest)


def decode_inventory_request(content: bytes | None) -> InventoryRequest:
    """Decode the data of an inventory request; ValueError says what is wrong."""
    if content is None:
        raise ValueError("no data")
    if len(content) > MAX_INVENTORY_REQUEST_BYTES:
        raise ValueError(f"read {len(content)} bytes, expected at most {MAX_INVENTORY_REQUEST_BYTES}")
    try:
        request = _inventory_decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if count_strings(content) != 1 + len(request.query) + (request.subscribe is not UNSET):
        raise ValueError("a key stands twice")
    if request.subscribe is True and len(content) > MAX_SUBSCRIPTION_BYTES:
        raise ValueError(f"read {len(content)} bytes, expected at most {MAX_SUBSCRIPTION_BYTES} of a subscription")
    return request
