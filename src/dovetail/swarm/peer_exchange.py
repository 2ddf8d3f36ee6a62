"""Peer exchange: how peers of one swarm find and link each other. Specific to this project, under indicator 0x70.

    hello 0x01   indicator, opcode, ticket:4, proof:4, peer address:20, requested:1
    answer 0x02  indicator, opcode, ticket:4, token:4, peer address:20, granted:1, count:1,
                 count * (address:20, size:1, endpoint)

A hello asks for the peer address and for links. The answer echoes its ticket, which proves that the answering peer
receives at its endpoint. It also contains a token, which the next hello returns as proof, so that the asking peer
proves the same (zero: no token yet). Requested and granted links are complete states, so repeating them is harmless.
An endpoint is text that the runtime can parse, `192.0.2.7:4711` or `[2001:db8::7]:4711`.
"""

from __future__ import annotations

import struct
from typing import Final, NewType

import msgspec

from dovetail.swarm.refusals import BadIndicator, TrailingBytes, Truncated, UnknownOpcode

Endpoint = NewType("Endpoint", str)
PeerAddress = NewType("PeerAddress", bytes)

INDICATOR: Final = 0x70
OPCODE_HELLO: Final = 0x01
OPCODE_ANSWER: Final = 0x02
PEER_ADDRESS_BYTES: Final = 20
MAX_ENDPOINT_BYTES: Final = 64
MAX_INTRODUCTIONS: Final = 6

I_RELAY_TO_YOU: Final = 1
YOU_RELAY_TO_ME: Final = 2
INTRODUCE_OTHERS: Final = 4

_HELLO: Final = struct.Struct("<BB4s4s20sB")
_ANSWER: Final = struct.Struct("<BB4s4s20sBB")
NO_PROOF: Final = bytes(4)
_ENTRY: Final = struct.Struct("<20sB")


class Hello(msgspec.Struct, frozen=True, gc=False):
    """A request to another peer; `requested` are the flags above, from the sender's point of view."""

    ticket: bytes
    address: PeerAddress
    requested: int
    proof: bytes = NO_PROOF


class Introduction(msgspec.Struct, frozen=True, gc=False):
    """The endpoint of another peer."""

    address: PeerAddress
    endpoint: Endpoint


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a hello; `granted` are the flags above, from the answering peer's point of view."""

    ticket: bytes
    token: bytes
    address: PeerAddress
    granted: int
    introductions: tuple[Introduction, ...] = ()


def encode_hello(hello: Hello) -> bytes:
    """The 31 bytes of a hello."""
    return _HELLO.pack(INDICATOR, OPCODE_HELLO, hello.ticket, hello.proof, hello.address, hello.requested)


def encode_answer(answer: Answer) -> bytes:
    """32 bytes, then the introductions."""
    parts = [
        _ANSWER.pack(
            INDICATOR,
            OPCODE_ANSWER,
            answer.ticket,
            answer.token,
            answer.address,
            answer.granted,
            len(answer.introductions),
        )
    ]
    for introduction in answer.introductions:
        endpoint = introduction.endpoint.encode()
        parts.append(_ENTRY.pack(introduction.address, len(endpoint)) + endpoint)
    return b"".join(parts)


def decode_exchange(data: bytes) -> Hello | Answer:
    """Decode a hello or an answer; raises a `Refusal`."""
    if len(data) < 2:
        raise Truncated(f"{len(data)} bytes, expected at least 2")
    if data[0] != INDICATOR:
        raise BadIndicator(f"first byte 0x{data[0]:02x}, expected 0x{INDICATOR:02x}")
    if data[1] == OPCODE_HELLO:
        if len(data) < _HELLO.size:
            raise Truncated(f"{len(data)} bytes, expected {_HELLO.size}")
        if len(data) > _HELLO.size:
            raise TrailingBytes(f"{len(data)} bytes, expected {_HELLO.size}")
        _, _, ticket, proof, address, requested = _HELLO.unpack(data)
        return Hello(ticket, PeerAddress(address), requested, proof)
    if data[1] == OPCODE_ANSWER:
        return _decode_answer(data)
    raise UnknownOpcode(f"opcode 0x{data[1]:02x}, expected 0x01 or 0x02")


def _decode_answer(data: bytes) -> Answer:
    if len(data) < _ANSWER.size:
        raise Truncated(f"{len(data)} bytes, expected at least {_ANSWER.size}")
    _, _, ticket, token, address, granted, count = _ANSWER.unpack_from(data)
    at = _ANSWER.size
    introductions = []
    for _ in range(count):
        if len(data) < at + _ENTRY.size:
            raise Truncated(f"{len(data)} bytes, expected more for {count} introductions")
        other, size = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if size > MAX_ENDPOINT_BYTES or len(data) < at + size:
            raise Truncated(f"endpoint of {size} bytes, expected at most {min(MAX_ENDPOINT_BYTES, len(data) - at)}")
        introductions.append(
            Introduction(PeerAddress(other), Endpoint(data[at : at + size].decode("ascii", "replace")))
        )
        at += size
    if at != len(data):
        raise TrailingBytes(f"{len(data)} bytes, expected {at}")
    return Answer(ticket, token, PeerAddress(address), granted, tuple(introductions[:MAX_INTRODUCTIONS]))


def is_forward_peer(local: PeerAddress, peer: PeerAddress) -> bool:
    """True if messages flow from `local` to `peer`: it is in the half of the ring ahead of us.

    Addresses are 160-bit little-endian numbers on a ring; if exactly opposite, the smaller one is behind.
    """
    ahead = (int.from_bytes(peer, "little") - int.from_bytes(local, "little")) % (1 << 160)
    if ahead == 1 << 159:
        return int.from_bytes(local, "little") < int.from_bytes(peer, "little")
    return 0 < ahead < 1 << 159
