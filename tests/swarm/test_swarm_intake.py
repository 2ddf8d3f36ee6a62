"""Many datagrams at once: processed as if each had come alone, and each observed before it is relayed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from dovetail.model.hop import Observation, Stage
from dovetail.swarm.content import message_address, with_nonce, work_of
from dovetail.swarm.events import MessageAccepted
from dovetail.swarm.obfuscation import encode_obfuscated
from dovetail.swarm.packet import encode_packet
from dovetail.swarm.peer_exchange import Hello, encode_hello
from dovetail.swarm.queries import encode_pull_range
from swarm.peers import START, Bench, refer

ALICE, BOB, CAROL = "192.0.2.1:9", "192.0.2.2:9", "192.0.2.3:9"


def linked() -> Bench:
    bench = Bench()
    for number, endpoint in enumerate((ALICE, BOB, CAROL), 1):
        bench.link(endpoint, number)
    bench.events.clear()
    return bench


def unsolved(bench: Bench, message: bytes) -> bytes:
    """The same message with a nonce without work."""
    target = bench.peer.rules.pow_target
    others = (with_nonce(message, nonce) for nonce in range(99))
    return next(other for other in others if int.from_bytes(work_of(other)) >= target)


def mixed_datagrams(bench: Bench, chance: random.Random) -> list[bytes]:
    """Content new, known, too late, without work, lacking references, masked, truncated; requests, hellos, junk."""
    now_ms = START // 1000
    fresh = [bench.content(b"%d" % number) for number in range(8)]
    messages = [
        *fresh,
        fresh[0],
        bench.content(b"old", age_ms=20 * 60_000),
        unsolved(bench, fresh[1]),
        bench.content(b"child", references=refer(b"never seen", fresh[2])),
        bench.content(bytes(3000)),
        b"\x79\x10\x05",
        b"\x79\x44",
        encode_pull_range(b"ask!", now_ms - 1000, now_ms),
        encode_hello(Hello(b"tick", b"\x01" * 20, 0)),
    ]
    packets = [encode_packet(message, bench.signer, now_ms, chance.getrandbits(4)) for message in messages]
    packets += [b"", b"\x62", chance.randbytes(200), *encode_obfuscated(packets[3], [(40, 77)]), packets[5][:20]]
    chance.shuffle(packets)
    return packets


@pytest.mark.parametrize("seed", range(10))
def test_datagrams_that_come_together_are_taken_in_as_if_each_had_come_alone(seed):
    together, alone = linked(), linked()
    datagrams = mixed_datagrams(together, random.Random(seed))
    together.peer.receive_datagrams(datagrams, ALICE, START)
    sent_together = together.drain()
    sent_alone = [sent for data in datagrams for sent in alone.feed_raw(data, ALICE)]
    assert together.peer.status() == alone.peer.status()
    assert together.peer.status().accepted >= 9
    assert len(together.peer.status().refused) >= 4
    assert Counter(sent_together) == Counter(sent_alone)
    assert Counter(map(repr, together.events)) == Counter(map(repr, alone.events))


def test_datagrams_of_several_senders_are_taken_in_in_their_order():
    mixed, alone = linked(), linked()
    datagrams = mixed_datagrams(mixed, random.Random(3))
    frames = [(data, (ALICE, BOB)[number % 5 == 2], False) for number, data in enumerate(datagrams)]
    mixed.peer.receive_frames(frames, START)
    sent_mixed = mixed.drain()
    sent_alone = [sent for data, sender, _ in frames for sent in alone.feed_raw(data, sender)]
    assert mixed.peer.status() == alone.peer.status()
    assert Counter(sent_mixed) == Counter(sent_alone)


def test_each_is_observed_and_told_before_it_is_relayed_and_in_the_order_of_arrival():
    bench = linked()
    messages = [bench.content(b"%d" % number) for number in range(20)]
    bench.peer.receive_datagrams(
        [encode_packet(message, bench.signer, START // 1000, 3) for message in messages], ALICE, START
    )
    sent = bench.drain()
    for receiver in (BOB, CAROL):
        assert [message for to, message in sent if to == receiver] == messages
    assert not [message for to, message in sent if to == ALICE]
    stages = defaultdict(list)
    for event in bench.events:
        if isinstance(event, Observation):
            stages[event.message].append(event.stage)
    expected = [Stage.ACCEPTED, Stage.DELIVERED, Stage.FORWARDED]
    assert stages == {message_address(message): expected for message in messages}
    assert [event.content.payload for event in bench.seen(MessageAccepted)] == [b"%d" % n for n in range(20)]
