"""The story of one message: every hop, what it refers to, what became of it, and where and why it stopped."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.tables import Row, Tables, has_prefix
from dovetail.fabrics import address_text
from dovetail.model.address import MAX_CANDIDATES, Address, AddressPrefix
from dovetail.model.errors import PipelineError
from dovetail.model.outcome import meaning_of


def tell_story(tables: Tables, beginning: AddressPrefix) -> Row:
    """Everything the tables say about the one message whose address begins so."""
    address = find_address(tables, beginning)
    here = pc.field("message") == pa.scalar(address, pa.binary())
    hops = sorted(tables.scan("hops", here), key=lambda hop: (hop["at"], hop["server"], hop["seq"]))
    messages = list(tables.scan("messages", here))
    message = messages[0] if messages else None
    fabric = hops[0]["fabric"] if hops else message["fabric"] if message else None
    deliveries = list(tables.scan("deliveries", here))
    for delivery in deliveries:
        delivery["meaning"] = meaning_of(delivery["outcome"])
    return {
        "address": address_text(address, fabric) if fabric else address.hex(),
        "fabric": fabric,
        "message": message,
        "hops": hops,
        "refers_to": list(tables.scan("links", pc.field("child") == pa.scalar(address, pa.binary()))),
        "referred_by": _referrers(tables, message),
        "deliveries": deliveries,
        "chain": next(iter(tables.scan("chains", here)), None),
        "quarantine": list(tables.scan("quarantine", here)),
        "findings": list(tables.scan("findings", here)),
    }


def find_address(tables: Tables, beginning: AddressPrefix) -> Address:
    """The one address that begins so; PipelineError where there is none, or several."""
    found: set[Address] = set()
    for row in tables.scan("hops", has_prefix("message", beginning.coarse)):
        address = Address(bytes.fromhex(row["message"]))
        if beginning.matches(address):
            found.add(address)
        if len(found) > MAX_CANDIDATES:
            break
    try:
        return beginning.choose(found)
    except LookupError as error:
        raise PipelineError(str(error)) from None


def _referrers(tables: Tables, message: Row | None) -> list[Row]:
    if message is None:
        return []
    key = pa.scalar(bytes.fromhex(message["key"]), pa.binary())
    of_fabric = (pc.field("fabric") == message["fabric"]) & (pc.field("parent") == key)
    return list(tables.scan("links", of_fabric))


def story_text(story: Row) -> list[str]:
    """The story for a terminal, line by line."""
    lines = [f"{story['fabric']} message {story['address']}"]
    message = story["message"]
    if message is None:
        lines.append("  its bytes are not in the lake, or could not be read")
    else:
        names = ("type", "id", "sender", "recipients", "created", "expires", "size", "signature", "work_valid")
        lines += [f"  {name:<11} {_text(message[name])}" for name in names if message[name] not in (None, [])]
    lines.append("hops")
    for hop in story["hops"]:
        whom = f" {hop['counterpart']}" if hop["counterpart"] else ""
        why = f" ({hop['reason']})" if hop["reason"] else ""
        lines.append(f"  {hop['at']}  {hop['server']} #{hop['seq']}  {hop['stage']}{whom}{why}")
    for title, rows, column in (
        ("refers to", story["refers_to"], "parent"),
        ("referred to by", story["referred_by"], "child"),
    ):
        lines += [f"{title} {row[column][:16]} ({row['relation']})" for row in rows]
    lines += [describe_delivery(delivery) for delivery in story["deliveries"]]
    if story["chain"] is not None:
        lines.append(f"chain: {story['chain']['state']}")
    lines += [f"{finding['severity']}: {finding['check']}: {finding['detail']}" for finding in story["findings"]]
    return lines


def describe_delivery(delivery: Row) -> str:
    """What became of a message for one recipient, where and why, in a line."""
    where = f" at {delivery['failed_at']}" if delivery["failed_at"] else ""
    why = f" ({delivery['reason']})" if delivery["reason"] else ""
    took = f" in {delivery['latency_us'] / 1000:.3f} ms" if delivery["latency_us"] is not None else ""
    whom = delivery["recipient"] or "nobody"
    meaning = meaning_of(delivery["outcome"])
    return f"for {whom}: {delivery['outcome']}{took}{where}{why}: {meaning}"


def _text(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
