"""Faults in the swarm: messages of a stranger that break a rule, and a peer that joins late."""

from __future__ import annotations

import socket

from dovetail.demo.faults import Fault, Kind, Ledger
from dovetail.demo.swarm import TTL_EPOCHS, Swarm
from dovetail.model.address import Address
from dovetail.runtime.clock import now_us
from dovetail.runtime.swarm_udp import parse_endpoint
from dovetail.swarm.content import (
    HASH_BYTES,
    Content,
    MsgHash,
    Reference,
    check_work,
    encode_content,
    message_address,
    with_nonce,
)
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.pow import HashlibSearch, solve
from dovetail.swarm.refusals import BadProofOfWork

_NOTHING = MsgHash(bytes.fromhex("0badc0de0badc0de"))


class SwarmFaults:
    """Injects faults into one swarm."""

    def __init__(self, swarm: Swarm, ledger: Ledger) -> None:
        self._swarm = swarm
        self._ledger = ledger
        self._signer = SwarmSigner(swarm.settings.key)

    async def arrive_late(self) -> None:
        """A peer joins after many messages were published."""
        missed = len(self._swarm.expected)
        peer = await self._swarm.join()
        self._note(Kind.LATE_PEER, f"a peer joins after {missed} messages", server=peer.peer.uri)

    def cheat(self) -> None:
        """A message without the work that the swarm requires."""
        message = self._compose(b"buy now", ())
        nonce = 0
        while _is_worked(with_nonce(message, nonce), self._swarm.settings.rules.pow_target):
            nonce += 1
        address = self._send(with_nonce(message, nonce))
        self._note(Kind.WRONG_WORK, "a message without its proof of work", address, self._swarm.peers[0].peer.uri)

    def turn_back(self) -> None:
        """A message that refers to a newer one: what every cycle needs."""
        young = self._solved(b"second", ())
        old = self._solved(b"first", (_refer(message_address(young)),), age_ms=4_000)
        addresses = [self._send(young), self._send(old)]
        self._swarm.expected.update(addresses)
        self._note(Kind.AGAINST_TIME, "a message refers to one that is 4 s younger than itself", addresses[1])

    def refer_to_nothing(self) -> None:
        """A message that refers to one that does not exist."""
        address = self._send(self._solved(b"as I said before", (Reference(_NOTHING, 0),)))
        self._swarm.expected.add(address)
        self._note(Kind.DANGLING, "a message refers to one that nobody has", address)

    def _compose(self, payload: bytes, references: tuple[Reference, ...], age_ms: int = 0) -> bytes:
        timestamp_ms = now_us() // 1000 - age_ms
        return encode_content(
            Content(timestamp_ms=timestamp_ms, ttl_epochs=TTL_EPOCHS, references=references, payload=payload)
        )

    def _solved(self, payload: bytes, references: tuple[Reference, ...], age_ms: int = 0) -> bytes:
        message = self._compose(payload, references, age_ms)
        solved = solve(message, self._swarm.settings.rules.pow_target, 0, HashlibSearch())
        assert solved is not None
        return solved

    def _send(self, message: bytes) -> Address:
        """Send directly to one peer: the relay models loss, not the stranger."""
        now_ms = now_us() // 1000
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(
                encode_packet(message, self._signer, now_ms, 3), parse_endpoint(self._swarm.peers[0].endpoints[0])
            )
        return message_address(message)

    def _note(self, kind: Kind, what: str, address: Address | None = None, server: str | None = None) -> None:
        messages = () if address is None else (address.hex(),)
        self._ledger.note(Fault(kind=kind, fabric="swarm", what=what, at_us=now_us(), server=server, messages=messages))


def _refer(address: Address) -> Reference:
    return Reference(MsgHash(address[:HASH_BYTES]), 0)


def _is_worked(message: bytes, target: int) -> bool:
    try:
        check_work(message, target)
    except BadProofOfWork:
        return False
    return True
