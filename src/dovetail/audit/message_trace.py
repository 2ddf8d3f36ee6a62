"""The trace of one message: every hop, its links, its outcomes, and where and why it stopped."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.server_names import name_server, name_servers_in
from dovetail.audit.tables import Row, Tables, lies_in
from dovetail.fabrics import address_text, fabric_named
from dovetail.model.address import MAX_CANDIDATES, Address, MessageName, parse_name
from dovetail.model.errors import PipelineError, UsageError
from dovetail.model.hop import Reason
from dovetail.model.outcome import Outcome, meaning_of

_SENTENCES = {str(reason): reason.sentence for reason in Reason}


def trace_message(tables: Tables, text: str) -> Row:
    """Everything the tables say about the message of this name; raises UsageError if it is not a valid name."""
    try:
        name = parse_name(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    address = find_address(tables, name)
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


def find_address(tables: Tables, name: MessageName) -> Address:
    """The one message of this name; raises PipelineError if there is none, or several."""
    found: set[Address] = set()
    if name.address is not None:
        for batch in tables.batches("hops", ["message"], lies_in("message", name.address)):
            found |= set(batch.column("message").unique().to_pylist())
            if len(found) > MAX_CANDIDATES:
                break
    if not found and name.id is not None:
        found = set(tables.with_id(name.id))
    try:
        return name.choose(found)
    except LookupError as error:
        raise PipelineError(str(error)) from None


def _referrers(tables: Tables, message: Row | None) -> list[Row]:
    if message is None:
        return []
    key = pa.scalar(bytes.fromhex(message["key"]), pa.binary())
    of_fabric = (pc.field("fabric") == message["fabric"]) & (pc.field("parent") == key)
    return list(tables.scan("links", of_fabric))


def trace_text(trace: Row) -> list[str]:
    """The trace for a terminal, line by line."""
    lines = [f"{trace['fabric']} message {trace['address']}"]
    message = trace["message"]
    if message is None:
        lines.append("  its bytes are not in the lake, or could not be read")
    else:
        names = ("type", "id", "sender", "recipients", "created", "expires", "size", "signature", "work_valid")
        lines += [f"  {name:<11} {_text(message[name])}" for name in names if message[name] not in (None, [])]
    lines.append("hops")
    for hop in trace["hops"]:
        whom = f" {name_server(hop['counterpart'])}" if hop["counterpart"] else ""
        why = f" ({hop['reason']})" if hop["reason"] else ""
        lines.append(f"  {hop['at']}  {name_server(hop['server'])} #{hop['seq']}  {hop['stage']}{whom}{why}")
    for title, rows, column in (
        ("refers to", trace["refers_to"], "parent"),
        ("referred to by", trace["referred_by"], "child"),
    ):
        lines += [f"{title} {_name(row, column)} ({row['relation']})" for row in rows]
    lines += [describe_delivery(delivery) for delivery in trace["deliveries"]]
    if trace["chain"] is not None:
        lines.append(f"chain: {trace['chain']['state']}")
    lines += [
        f"{finding['severity']}: {finding['check']}: {name_servers_in(finding['detail'] or '')}"
        for finding in trace["findings"]
    ]
    return lines


def _name(link: Row, column: str) -> str:
    """The message at one end of a link: a child is its address, a parent the key that links use for it."""
    value = bytes.fromhex(link[column])
    return (
        fabric_named(link["fabric"]).show_key(value)
        if column == "parent"
        else address_text(Address(value), link["fabric"])
    )


def describe_delivery(delivery: Row) -> str:
    """The outcome of a message for one recipient, where and why, in one line."""
    where = f" at {name_server(delivery['failed_at'])}" if delivery["failed_at"] else ""
    why = f" ({delivery['reason']})" if delivery["reason"] else ""
    latency_us = delivery["latency_us"]
    # all hops of one turn have the same time, so 0 only means that it was one turn
    took = "" if latency_us is None else f" in {latency_us / 1000:.3f} ms" if latency_us else " within one turn"
    whom = name_server(delivery["recipient"] or "nobody")
    return f"for {whom}: {delivery['outcome'].replace('_', ' ')}{took}{where}{why}: {_explain(delivery)}"


def _explain(delivery: Row) -> str:
    """What the outcome means; where that is "the reason says why", the sentence of the reason."""
    explained = delivery["outcome"] in (Outcome.UNDELIVERABLE, Outcome.REJECTED)
    return (explained and _SENTENCES.get(delivery["reason"] or "")) or meaning_of(delivery["outcome"])


def _text(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
