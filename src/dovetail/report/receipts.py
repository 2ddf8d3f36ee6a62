"""Receipts inside the page: one file for each message that a finding is about, built when the page is written.

They come from the journals, else from the lake, and are verified before they are embedded. Their number, their bytes
and the time to build them are bounded; beyond that the page shows the command that builds one. The same command is
shown if nothing can be proven, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.journal.hop_source import HopSource
from dovetail.lake.location import Location
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError, ReceiptError
from dovetail.receipt.build import BuildOptions, build_receipt
from dovetail.receipt.sources import open_sources
from dovetail.report.text import show

MAX_RECEIPTS = 500
MAX_BYTES = 4 << 20
MAX_RECEIPT_BYTES = 256 << 10
MAX_SECONDS = 60.0

Related = Mapping[bytes, Sequence[bytes]]
"""The responses to a message, from the audit's chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Where receipts are built from; a server in both is read from its journal."""

    journals: Sequence[Path] = ()
    lake: Location | None = None

    def __bool__(self) -> bool:
        return bool(self.journals) or self.lake is not None


@dataclass(slots=True)
class ReceiptStore:
    """The built receipts by the number of their message, and why others have none."""

    receipts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    bytes: int = 0

    def encode(self) -> dict[str, Any]:
        """The data for the page's script."""
        return {
            "of": list(self.receipts),
            "text": list(self.receipts.values()),
            "without": list(self.reasons),
            "reason": [show(reason) for reason in self.reasons.values()],
        }


def build_receipts(
    origins: Origins,
    addresses: Sequence[bytes],
    related: Related,
    *,
    max_receipts: int = MAX_RECEIPTS,
    max_bytes: int = MAX_BYTES,
    max_seconds: float = MAX_SECONDS,
) -> ReceiptStore:
    """Receipts of the first of these messages, as many as fit."""
    kept = ReceiptStore()
    ends = time.monotonic() + max_seconds
    try:
        with open_sources(origins.journals, origins.lake) as sources:
            # no more reasons than receipts
            for number, address in enumerate(addresses[: 2 * max_receipts]):
                if len(kept.receipts) >= max_receipts or kept.bytes >= max_bytes or time.monotonic() > ends:
                    break
                _put(kept, number, sources, Address(address), related.get(address, ()), max_bytes)
    except DovetailError as error:
        # a lake or journal that cannot be opened: the findings say what is wrong with it
        kept.reasons = dict.fromkeys(range(min(len(addresses), max_receipts)), str(error))
    return kept


def _put(
    kept: ReceiptStore,
    number: int,
    sources: Sequence[HopSource],
    address: Address,
    related: Sequence[bytes],
    max_bytes: int,
) -> None:
    try:
        data = _build(sources, address, [Address(each) for each in related])
    except DovetailError as error:
        kept.reasons[number] = str(error)
        return
    if len(data) > min(MAX_RECEIPT_BYTES, max_bytes - kept.bytes):
        kept.reasons[number] = f"the receipt has {len(data):,} bytes, too many for this page"
        return
    kept.receipts[number] = data.decode()
    kept.bytes += len(data)


def _build(sources: Sequence[HopSource], address: Address, related: Sequence[Address]) -> bytes:
    """With its responses if they can be shown, else without them."""
    try:
        return build_receipt(sources, address, BuildOptions(related=related)).data
    except ReceiptError:
        if not related:
            raise
        return build_receipt(sources, address, BuildOptions(related=())).data
