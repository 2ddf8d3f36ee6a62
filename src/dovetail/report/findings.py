"""The findings and their stories as the page carries them: columns of numbers that point into lists of texts.

A hundred thousand findings repeat a few checks, servers and details; a text stands once and costs a small number each
further time. Addresses stand once each, as base64. The page shows one leaf of the list at a time.

    {"checks": [[id, severity]], "texts": [...], "addresses": [...], "total": n,
     "findings": {"check": [...], "fabric": [...], "server": [...], "message": [...], "seq": [...], "at": [...], ...},
     "messages": {"of": [...], ...}, "hops": {"of": [...], ...}}

Times are microseconds since `epoch`; -1 stands for null in columns that point.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.report.arrays import micros
from dovetail.report.causes import Finding, group_by_cause
from dovetail.report.evidence import HopSeen
from dovetail.report.guide import rank_severity
from dovetail.report.text import name_server_briefly, show

MAX_FINDINGS = 100_000
MAX_STORY_HOPS = 150_000
MAX_HOPS_PER_STORY = 60
MAX_STORY_MESSAGES = 100_000
_NONE = -1
_FAILED = ("rejected", "undeliverable", "expired")
_MESSAGE_FIELDS = ("id", "type", "sender", "recipients", "signer", "signature")


@dataclass(slots=True)
class Pool:
    """Texts that stand once; `add` gives the place of one."""

    places: dict[str, int] = field(default_factory=dict)

    def add(self, text: str | None) -> int:
        """Where the text stands, -1 for none. What is shown is harmless: escapes for what cannot be seen."""
        return _NONE if text is None else self.places.setdefault(show(text), len(self.places))


def order_findings(findings: pa.Table, limit: int = MAX_FINDINGS) -> pa.Table:
    """The worst first, then by check and time; at most `limit`."""
    ranks = pa.array([rank_severity(severity) for severity in findings["severity"].to_pylist()], type=pa.int8())
    ordered = findings.append_column("rank", ranks).sort_by(
        [("rank", "ascending"), ("check", "ascending"), ("at", "ascending"), ("message", "ascending")]
    )
    return ordered.drop(["rank"]).slice(0, limit)


def addresses_of(findings: pa.Table) -> list[bytes]:
    """The messages that findings are about, each once, in their order."""
    return [address for address in pc.unique(findings["message"]).to_pylist() if address is not None]


def encode_findings(
    findings: pa.Table,
    messages: dict[bytes, dict[str, Any]],
    hops: dict[bytes, list[HopSeen]],
    *,
    total: int,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """What the page's script reads; `findings` in the order in which they are shown."""
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
            "detail": [texts.add(detail) for detail in findings["detail"].to_pylist()],
        },
        "messages": _encode_messages(addresses[:MAX_STORY_MESSAGES], messages, texts, epoch or 0),
        "hops": _encode_hops(addresses, hops, texts, epoch or 0),
        "names": {
            texts.add(server): show(aliases.get(server) or name_server_briefly(server))
            for server in dict.fromkeys(servers)
            if server is not None
        },
        "addresses": [base64.b64encode(address).decode().rstrip("=") for address in addresses],
        "texts": list(texts.places),
    }


def list_servers_of(findings: pa.Table, hops: dict[bytes, list[HopSeen]]) -> list[str | None]:
    """Where each finding was made: at the server that it names, else where its message stopped or was first seen."""
    pairs = zip(findings["server"].to_pylist(), findings["message"].to_pylist(), strict=True)
    return [server or _stopped_at(hops.get(message, [])) for server, message in pairs]


def _stopped_at(hops: Sequence[HopSeen]) -> str | None:
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
    """Hops of the worst findings first, as many as the page can carry; `cut` are messages with more than are shown."""
    columns: dict[str, list[Any]] = {name: [] for name in ("of", "server", "seq", "at", "stage", "with", "reason")}
    cut: list[tuple[int, int]] = []
    for number, address in enumerate(addresses):
        seen = hops.get(address, [])
        if len(columns["of"]) + min(len(seen), MAX_HOPS_PER_STORY) > MAX_STORY_HOPS:
            cut.append((number, len(seen)))
            continue
        if len(seen) > MAX_HOPS_PER_STORY:
            cut.append((number, len(seen)))
        for hop in seen[:MAX_HOPS_PER_STORY]:
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
