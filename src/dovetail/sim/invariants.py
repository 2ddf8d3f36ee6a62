"""Checks over journals that hold in every fabric; they return findings and never raise.

Each check takes the hops of one server in journal order. A fabric adds its own checks in the same form.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dovetail.model.address import Address
from dovetail.model.hop import Hop, Stage

_OUTWARD = (Stage.DELIVERED, Stage.ECHOED, Stage.FORWARDED, Stage.REDELIVERED, Stage.SERVED)
_INWARD = (Stage.CREATED, Stage.ACCEPTED)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule: where, and what is wrong. `seq` is None if no single hop is at fault."""

    rule: str
    server: str
    seq: int | None
    detail: str


Check = Callable[[Sequence[Hop]], list[Finding]]
Owed = tuple[str, str]
"""A message (id, URI or address) and one of the recipients it was addressed to when it was accepted."""


def check_sequence(hops: Sequence[Hop]) -> list[Finding]:
    """Check that `seq` counts from 0 without gaps."""
    return [
        _finding("sequence", hop, f"seq {hop.seq}, expected {expected}")
        for expected, hop in enumerate(hops)
        if hop.seq != expected
    ]


def check_time(hops: Sequence[Hop]) -> list[Finding]:
    """Check that `at` never goes backwards."""
    return [
        _finding("time", later, f"at {later.at_us}, {earlier.at_us - later.at_us} us before the hop ahead of it")
        for earlier, later in itertools.pairwise(hops)
        if later.at_us < earlier.at_us
    ]


def check_one_server(hops: Sequence[Hop]) -> list[Finding]:
    """Check that all hops of a journal name the same server and fabric."""
    return [
        _finding("one_server", hop, f"{hop.fabric} hop of {hop.server} in the journal of {hops[0].server}")
        for hop in hops
        if (hop.server, hop.fabric) != (hops[0].server, hops[0].fabric)
    ]


def check_bytes_once(hops: Sequence[Hop]) -> list[Finding]:
    """Check that at most one hop has the bytes and the size of a message."""
    findings = []
    kept: dict[Address, int] = {}
    for hop in hops:
        if hop.raw is None and hop.size is None:
            continue
        if hop.message in kept:
            findings.append(
                _finding("bytes_once", hop, f"bytes of {hop.message.hex()} again, first {kept[hop.message]}")
            )
        else:
            kept[hop.message] = hop.seq
    return findings


def check_reasons(hops: Sequence[Hop]) -> list[Finding]:
    """Check that every refusal has a reason."""
    return [
        _finding("reasons", hop, f"{hop.message.hex()} was rejected without a reason")
        for hop in hops
        if hop.stage is Stage.REJECTED and hop.reason is None
    ]


def check_origin(hops: Sequence[Hop]) -> list[Finding]:
    """Check that every outgoing message was accepted or created here before."""
    findings = []
    known: set[Address] = set()
    for hop in hops:
        if hop.stage in _INWARD:
            known.add(hop.message)
        elif hop.stage in _OUTWARD and hop.message not in known:
            findings.append(_finding("origin", hop, f"{hop.message.hex()} was {hop.stage} but not accepted or created"))
    return findings


def check_taken_once(hops: Sequence[Hop]) -> list[Finding]:
    """Check that no message is accepted, created, or delivered to a counterpart twice, even after a crash."""
    findings = []
    seen: dict[tuple[Address, bool, str | None], int] = {}
    for hop in hops:
        if hop.stage not in (*_INWARD, Stage.DELIVERED):
            continue
        is_inward = hop.stage in _INWARD
        key = (hop.message, is_inward, None if is_inward else hop.counterpart)
        if key in seen:
            findings.append(_finding("taken_once", hop, f"{hop.message.hex()} was {hop.stage} at {seen[key]} before"))
        else:
            seen[key] = hop.seq
    return findings


def check_one_outcome(owed: Mapping[Owed, str], outcomes: Counter[Owed]) -> list[Finding]:
    """Check that every accepted message has exactly one final outcome for each of its recipients.

    This holds in every fabric; `owed` maps to the server that must record the outcome. Unexpected outcomes are
    findings too.
    """
    return [
        Finding(
            rule="one_outcome",
            server=owed.get((message, recipient), ""),
            seq=None,
            detail=f"{message} for {recipient} has {outcomes[message, recipient]} outcomes",
        )
        for message, recipient in sorted(owed.keys() | outcomes.keys())
        if outcomes[message, recipient] != 1
    ]


GENERAL: tuple[Check, ...] = (
    check_sequence,
    check_time,
    check_one_server,
    check_bytes_once,
    check_reasons,
    check_origin,
)
"""Checks that hold for every journal of every fabric."""


def check_journals(
    journals: Mapping[str, Iterable[Hop]] | Iterable[Iterable[Hop]], checks: Sequence[Check] = GENERAL
) -> list[Finding]:
    """All findings of all checks, journal by journal."""
    findings: list[Finding] = []
    for journal in journals.values() if isinstance(journals, Mapping) else journals:
        hops = list(journal)
        for check in checks:
            findings.extend(check(hops))
    return findings


def _finding(rule: str, hop: Hop, detail: str) -> Finding:
    return Finding(rule=rule, server=hop.server, seq=hop.seq, detail=detail)
