"""Random and mutated input: real messages of all kinds, and small damage to them."""

from __future__ import annotations

import random

from dovetail.swarm.fragments import encode_fragments
from dovetail.swarm.obfuscation import encode_obfuscated
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.peer_exchange import Answer, Hello, Introduction, encode_answer, encode_hello
from dovetail.swarm.queries import encode_pull_hashes, encode_pull_range, encode_range_list
from swarm.peers import Bench, refer

INTERESTING = (0, 1, 2, 4, 5, 7, 8, 0x10, 0x11, 0x20, 0x21, 0x62, 0x66, 0x70, 0x79, 0x7F, 0x80, 0xDF, 0xE0, 0xFE, 0xFF)


def messages(bench: Bench) -> list[bytes]:
    """One of each kind that a peer may get, UEP-12 and peer exchange."""
    now_ms = bench.now // 1000
    first = bench.content(b"first")
    introductions = tuple(Introduction(bytes([n]) * 20, f"198.51.100.{n}:9") for n in range(6))
    return [
        first,
        bench.content(b"child", references=refer(first, b"unknown")),
        bench.content(b"", ttl=0),
        bench.content(bytes(3000)),
        bench.content(b"old", age_ms=10**6),
        encode_pull_hashes([bytes([n]) * 8 for n in range(20)]),
        encode_pull_range(b"tick", now_ms - 10**5, now_ms),
        encode_range_list(b"tick", now_ms - 10**5, now_ms, [bytes([n]) * 8 for n in range(20)]),
        encode_hello(Hello(b"tick", b"\x01" * 20, 7, b"prov")),
        encode_hello(Hello(b"tock", bench.peer.address, 7)),
        encode_answer(Answer(b"tick", b"toke", b"\x02" * 20, 3, introductions)),
    ]


def damage(data: bytes, chance: random.Random) -> bytes:
    """The same bytes with some small changes, truncated, repeated, or followed by other bytes."""
    changed = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        if not changed:
            break
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice(INTERESTING)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + chance.randrange(1, 9)]
            case 4:
                changed[at:at] = chance.randbytes(chance.randrange(1, 40))
            case 5:
                changed += changed[at : at + 300]
    return bytes(changed)


def datagrams(message: bytes, signer: SwarmSigner, now_ms: int, chance: random.Random) -> list[bytes]:
    """A message in its layers, each of which may be damaged, missing or out of order."""
    packet = encode_packet(message, signer, now_ms, chance.randrange(16))
    if chance.random() < 0.1:
        packet = damage(packet, chance)
    pieces = encode_fragments(packet) if packet else [b""]
    if chance.random() < 0.2:
        pieces = [damage(piece, chance) for piece in pieces]
        chance.shuffle(pieces)
    if chance.random() < 0.2:
        draws = ((chance.randrange(64), chance.randrange(256)) for _ in pieces)
        pieces = [encode_obfuscated(piece, [draw])[0] for piece, draw in zip(pieces, draws, strict=True) if piece]
    return pieces or [chance.randbytes(chance.randrange(100))]
