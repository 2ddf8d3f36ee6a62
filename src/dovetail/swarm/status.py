"""State and counters of a peer, for `dovetail swarm status`, metrics and tests."""

from __future__ import annotations

import msgspec


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Current state and counters since the start."""

    uri: str
    swarm: str
    forward: list[str]
    backward: list[str]
    plain: list[str]
    contacts: int
    strangers: int
    messages: int
    held_bytes: int
    tips: int
    missing: int
    crowded_out: int
    unconfirmed: int
    accepted: int
    duplicates: int
    late_answers: int
    refused: dict[str, int]
    refused_journaled: int
    received_bytes: int
    received_datagrams: int
    sent_bytes: dict[str, int]
    sent_datagrams: int
