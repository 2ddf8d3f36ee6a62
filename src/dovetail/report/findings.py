"""The findings and their message traces as embedded in the page: columns of numbers that index lists of texts.

A hundred thousand findings repeat a few checks, servers and details; each text is stored once and referred to by a
small number. Addresses are stored once each, as base64, and in `names_of` as their fabric displays them if that is not
hex. The page shows one page of the list at a time.

    {"checks": [[id, severity]], "texts": [...], "addresses": [...], "names_of": {address: name}, "total": n,
     "findings": {"check": [...], "fabric": [...], "server": [...], "message": [...], "seq": [...], "at": [...], ...},
     "messages": {"of": [...], ...}, "hops": {"of": [...], ...}}

Times are microseconds since `epoch`; -1 stands for null in index columns.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.audit.check_guides import SEVERITIES
from dovetail.audit.schemas import BY_NAME
from dovetail.audit.server_names import name_server_briefly, name_servers_in
from dovetail.audit.tables import Tables
from dovetail.model.hop import Hop
from dovetail.report.arrays import micros
from dovetail.report.causes import Finding, group_by_cause
from dovetail.report.evidence import HopSeen
from dovetail.report.text import name_address, show

MAX_FINDINGS = 100_000
MAX_TRACE_HOPS = 150_000
MAX_HOPS_PER_TRACE = 60
MAX_TRACED_MESSAGES = 100_000
MAX_UNSORTED = 50_000
"""How many findings beyond twice the limit are held before they are sorted and truncated."""
_NONE = -1
_FAILED = ("rejected", "undeliverable", "expired")
_MESSAGE_FIELDS = ("id", "type", "sender", "recipients", "signer", "signature")


@dataclass(slots=True)
class Pool:
    """Texts stored once; `add` returns the index of one."""

    places: dict[str, int] = field(default_factory=dict)

    def add(self, text: str | None) -> int:
        """The index of the text, -1 for none. Unsafe characters are escaped for display."""
        return _NONE if text is None else self.places.setdefault(show(text), len(self.places))


def read_worst(tables: Tables, limit: int = MAX_FINDINGS, where: ds.Expression | None = None) -> tuple[pa.Table, int]:
    """The first `limit` findings in the order of `order_findings`, and their total number.

    The table is read batch by batch: memory depends on `limit`, not on the number of findings.
    """
    schema = BY_NAME["findings"].arrow.remove_metadata()
    kept, total = schema.empty_table(), 0
    if "findings" not in tables.names:
        return kept, total
    for batch in tables.batches("findings", schema.names, where):
        total += batch.num_rows
        kept = pa.concat_tables([kept, pa.Table.from_batches([batch]).cast(schema)])
        if kept.num_rows >= 2 * limit + MAX_UNSORTED:
            kept = order_findings(kept, limit)
    return order_findings(kept, limit), total


def order_findings(findings: pa.Table, limit: int = MAX_FINDINGS) -> pa.Table:
    """The worst first, then by check and time; at most `limit`."""
    ranks = pc.fill_null(pc.index_in(findings["severity"], value_set=pa.array(SEVERITIES)), len(SEVERITIES))
    order = pc.sort_indices(
        findings.append_column("rank", ranks),
        sort_keys=[("rank", "ascending"), ("check", "ascending"), ("at", "ascending"), ("message", "ascending")],
    )
    return findings.take(order[:limit])


def addresses_of(findings: pa.Table) -> list[bytes]:
    """The messages that findings are about, without duplicates, in their order."""
    return [address for address in pc.unique(findings["message"]).to_pylist() if address is not None]


def encode_findings(
    findings: pa.Table,
    messages: dict[bytes, dict[str, Any]],
    hops: dict[bytes, list[HopSeen]],
    *,
    total: int,
) -> dict[str, Any]:
    """The data for the page's script; `findings` in display order."""
    texts = Pool()
    addresses = addresses_of(findings)
    servers = list_servers_of(findings, hops)
    numbers = {address: number for number, address in enumerate(addresses)}
    checks: dict[tuple[str, str], int] = {}
    for pair in zip(findings["check"].to_pylist(), findings["severity"].to_pylist(), strict=True):
        checks.setdefault(pair, len(checks))
    epoch = pc.min(micros(findings["at"])).as_py() if findings.num_rows else None
    return {
        "total": total,
        "epoch": epoch or 0,
        "checks": [list(pair) for pair in checks],
        "findings": {
            "check": [
                checks[pair]
                for pair in zip(findings["check"].to_pylist(), findings["severity"].to_pylist(), strict=True)
            ],
            "fabric": [texts.add(fabric) for fabric in findings["fabric"].to_pylist()],
            "server": [texts.add(server) for server in servers],
            "cause": _causes(findings, servers),
            "message": [numbers.get(address, _NONE) for address in findings["message"].to_pylist()],
            "seq": findings["seq"].to_pylist(),
            "at": _since(micros(findings["at"]).to_pylist(), epoch or 0),
            "detail": [texts.add(detail and name_servers_in(detail)) for detail in findings["detail"].to_pylist()],
        },
        "messages": _encode_messages(addresses[:MAX_TRACED_MESSAGES], messages, texts, epoch or 0),
        "hops": _encode_hops(addresses, hops, texts, epoch or 0),
        "names": {
            texts.add(server): show(name_server_briefly(server))
            for server in dict.fromkeys([*servers, *(hop.server for seen in hops.values() for hop in seen)])
            if server is not None
        },
        "names_of": _names_of(findings, numbers),
        "addresses": [base64.b64encode(address).decode().rstrip("=") for address in addresses],
        "texts": list(texts.places),
    }


def _names_of(findings: pa.Table, numbers: dict[bytes, int]) -> dict[int, str]:
    """How the fabrics display the addresses that are not displayed in hex."""
    fabrics = dict(zip(findings["message"].to_pylist(), findings["fabric"].to_pylist(), strict=True))
    names = ((address, name_address(address, fabrics[address] or "")) for address in numbers)
    return {numbers[address]: name for address, name in names if name != address.hex()}


def list_servers_of(findings: pa.Table, hops: dict[bytes, list[HopSeen]]) -> list[str | None]:
    """Where each finding occurred: at the server it names, else where its message stopped or was first seen."""
    pairs = zip(findings["server"].to_pylist(), findings["message"].to_pylist(), strict=True)
    return [server or stopped_at(hops.get(message, [])) for server, message in pairs]


def stopped_at(hops: Sequence[HopSeen | Hop]) -> str | None:
    """The server where a message failed, else the first that saw it; the hops are in order of time."""
    failed = (hop.server for hop in hops if hop.stage in _FAILED)
    return next(failed, hops[0].server if hops else None)


def _causes(findings: pa.Table, servers: Sequence[str | None]) -> list[int]:
    columns = (findings[name].to_pylist() for name in ("check", "message", "detail"))
    rows = zip(*columns, servers, strict=True)
    return group_by_cause(
        [Finding(check, server or "", message, detail or "") for check, message, detail, server in rows]
    )


def _encode_messages(
    addresses: Iterable[bytes], messages: dict[bytes, dict[str, Any]], texts: Pool, epoch: int
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in ("of", *_MESSAGE_FIELDS, "size", "created", "expires")}
    for number, address in enumerate(addresses):
        row = messages.get(address)
        if row is None:
            continue
        columns["of"].append(number)
        for name in _MESSAGE_FIELDS:
            value = row[name]
            columns[name].append(texts.add(", ".join(value) if isinstance(value, list) else value))
        columns["size"].append(row["size"])
        columns["created"] += _since([row["created_us"]], epoch)
        columns["expires"] += _since([row["expires_us"]], epoch)
    return columns


def _encode_hops(
    addresses: Iterable[bytes], hops: dict[bytes, list[HopSeen]], texts: Pool, epoch: int
) -> dict[str, list[Any]]:
    """Hops of the worst findings first, up to the page's limit; `cut` are messages with more hops than shown."""
    columns: dict[str, list[Any]] = {name: [] for name in ("of", "server", "seq", "at", "stage", "with", "reason")}
    cut: list[tuple[int, int]] = []
    for number, address in enumerate(addresses):
        seen = hops.get(address, [])
        if len(columns["of"]) + min(len(seen), MAX_HOPS_PER_TRACE) > MAX_TRACE_HOPS:
            cut.append((number, len(seen)))
            continue
        if len(seen) > MAX_HOPS_PER_TRACE:
            cut.append((number, len(seen)))
        for hop in seen[:MAX_HOPS_PER_TRACE]:
            columns["of"].append(number)
            columns["server"].append(texts.add(hop.server))
            columns["seq"].append(hop.seq)
            columns["at"].append(hop.at_us - epoch)
            columns["stage"].append(texts.add(hop.stage))
            columns["with"].append(texts.add(hop.counterpart))
            columns["reason"].append(texts.add(hop.reason))
    return {**columns, "cut": [list(pair) for pair in cut]}


def _since(times: Iterable[int | None], epoch: int) -> list[int | None]:
    return [None if at is None else at - epoch for at in times]
