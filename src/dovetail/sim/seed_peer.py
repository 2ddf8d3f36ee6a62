"""A swarm peer with only UEP-12 over UEP-10: no peer exchange, and a list only for many messages.

It stands for other implementations. Its neighbours are those it was given and the first that sent it something. It
relays new messages to them, pulls missing references from the peer that sent the referrer, and asks one neighbour after
another for everything. It answers every peer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from dovetail.model.address import Address
from dovetail.model.hop import Hop, Observation, Stage
from dovetail.model.wire import Datagrams, Frame, Outgoing
from dovetail.swarm.acceptance import Acceptance, Entry, read_entry
from dovetail.swarm.content import Content, MsgHash, encode_content, expiration_ms, is_expired, message_address
from dovetail.swarm.dag import Dag
from dovetail.swarm.packet import SwarmSigner, decode_packet, encode_packet
from dovetail.swarm.queries import (
    MAX_HASHES,
    MAX_HASHES_SENT,
    PullHashes,
    PullRange,
    RangeList,
    decode_message,
    encode_pull_hashes,
    encode_pull_range,
    encode_range_list,
)
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.settings import SwarmSettings
from dovetail.swarm.uri import endpoint_uri

ASK_US = 2_000_000
MAX_NEIGHBOURS = 8
FEW = 4
"""A range with at most this many messages is answered with the messages only."""


class SeedPeer:
    """A core for the simulated world, with the verbs of `dovetail.swarm.peer.Peer`."""

    def __init__(self, swarm: SwarmSettings, neighbours: Sequence[str], source: random.Random, now: int) -> None:
        self.rules = swarm.rules
        self._signer = SwarmSigner(swarm.key, swarm.slot_slack)
        self._acceptance = Acceptance(swarm.rules)
        self._dag = Dag(swarm.epoch_ms)
        self._neighbours = list(neighbours)
        self._random = source
        self._due_us = now
        self._turn = 0
        self._tickets: dict[bytes, tuple[str, int]] = {}
        self._taken: set[Address] = set()
        """Everything it ever had; what comes again after a clock was set back is not new."""
        self._events: list[object] = []
        self._outgoing: list[Outgoing] = []

    # -- input and output

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Handle datagrams; everything that is not UEP-12 is ignored."""
        for data, sender, _ in frames:
            self._receive(data, sender, now)

    def _receive(self, data: bytes, sender: str, now: int) -> None:
        self._dag.expire(now // 1000)
        try:
            message = decode_packet(data, self._signer, now // 1000)
            decoded = decode_message(message)
            if isinstance(decoded, Content):
                self._accept(self._acceptance.admit(message, message_address(message), now // 1000), sender, now)
        except Refusal:
            return
        if sender not in self._neighbours and len(self._neighbours) < MAX_NEIGHBOURS:
            self._neighbours.append(sender)
        match decoded:
            case PullHashes(hashes):
                for msg_hash in hashes:
                    self._send(sender, [entry.raw for entry in self._dag.by_hash(msg_hash)], now)
            case PullRange():
                self._answer(decoded, sender, now)
            case RangeList() if decoded.ticket in self._tickets:
                self._receive_list(decoded, sender, now)

    def handle_timer(self, now: int) -> None:
        """Ask the next neighbour for everything."""
        self._dag.expire(now // 1000)
        if now < self._due_us:
            return
        self._due_us = now + ASK_US
        self._turn += 1
        if self._neighbours:
            end_ms = now // 1000 + self.rules.max_future_ms
            self._ask(self._neighbours[self._turn % len(self._neighbours)], 0, end_ms, now)

    def next_timer(self) -> int:
        """When to call `handle_timer`."""
        return self._due_us

    def events(self) -> list[object]:
        """Observations since the last call."""
        events, self._events = self._events, []
        return events

    def to_send(self) -> list[Outgoing]:
        """Datagrams to send now."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    # -- for the scenario

    def compose(self, payload: bytes, ttl_epochs: int, now: int) -> bytes:
        """A message without its proof of work."""
        now_ms = now // 1000
        self._dag.expire(now_ms)
        expires_ms = expiration_ms(now_ms, ttl_epochs, self.rules.epoch_ms)
        references = self._dag.choose_references(now_ms, expires_ms)
        return encode_content(
            Content(timestamp_ms=now_ms, ttl_epochs=ttl_epochs, references=references, payload=payload)
        )

    def publish_solved(self, message: bytes, now: int) -> Address:
        """Publish a solved message."""
        entry = self._acceptance.admit(message, message_address(message), now // 1000)
        self._store(entry, Stage.CREATED, (), now)
        for neighbour in self._neighbours:
            self._send(neighbour, [message], now)
        return entry.address

    def restore(self, hops: Iterable[Hop], now: int) -> None:
        """Add the unexpired messages of the journal."""
        for hop in hops:
            if hop.raw is not None:
                self._taken.add(hop.message)
                entry = read_entry(hop.raw, hop.message, self.rules.epoch_ms)
                if not is_expired(entry.expires_ms, now // 1000):
                    self._dag.add(entry)

    def addresses(self) -> set[Address]:
        """All unexpired messages."""
        return self._dag.addresses()

    # -- UEP-12

    def _accept(self, entry: Entry, sender: str, now: int) -> None:
        if entry.address in self._dag:
            return
        if entry.address in self._taken:
            self._dag.add(entry)
            return
        missing = self._store(entry, Stage.ACCEPTED, (endpoint_uri(sender),), now)
        for neighbour in self._neighbours:
            if neighbour != sender:
                self._send(neighbour, [entry.raw], now)
        self._pull(missing, sender, now)

    def _store(self, entry: Entry, stage: Stage, counterparts: tuple[str, ...], now: int) -> Sequence[MsgHash]:
        missing = self._dag.add(entry).missing
        self._taken.add(entry.address)
        self._events.append(
            Observation(
                at_us=now,
                stage=stage,
                message=entry.address,
                counterparts=counterparts,
                raw=entry.raw,
                expires_us=entry.expires_ms * 1000,
            )
        )
        return missing

    def _answer(self, query: PullRange, sender: str, now: int) -> None:
        matched = list(self._dag.between(query.start_ms, query.end_ms))
        if len(matched) <= FEW:
            self._send(sender, [entry.raw for entry in matched], now)
            return
        end_ms = query.end_ms if len(matched) <= MAX_HASHES_SENT else matched[MAX_HASHES_SENT].timestamp_ms - 1
        hashes = [entry.msg_hash for entry in matched if entry.timestamp_ms <= end_ms][:MAX_HASHES]
        self._send(sender, [encode_range_list(query.ticket, query.start_ms, end_ms, hashes)], now)

    def _receive_list(self, answer: RangeList, sender: str, now: int) -> None:
        asked, end_ms = self._tickets.pop(answer.ticket)
        if asked != sender:
            return
        self._pull([msg_hash for msg_hash in answer.hashes if not self._dag.by_hash(msg_hash)], sender, now)
        if answer.end_ms < end_ms:
            self._ask(sender, answer.end_ms + 1, end_ms, now)

    def _pull(self, hashes: Sequence[MsgHash], peer: str, now: int) -> None:
        if hashes:
            self._send(peer, [encode_pull_hashes(hashes[:MAX_HASHES_SENT])], now)

    def _ask(self, peer: str, start_ms: int, end_ms: int, now: int) -> None:
        ticket = int(self._random.random() * 2**32).to_bytes(4)
        self._tickets = {ticket: (peer, end_ms)}
        self._send(peer, [encode_pull_range(ticket, start_ms, end_ms)], now)

    def _send(self, peer: str, messages: Iterable[bytes], now: int) -> None:
        for message in messages:
            subband = int(self._random.random() * 16)
            packet = encode_packet(message, self._signer, now // 1000, subband)
            self._outgoing.append(Datagrams(peer, (packet,)))
