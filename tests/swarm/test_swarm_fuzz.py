"""Random and mutated input: every parser refuses or reads it, a peer survives it, and bounds are kept."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dovetail.model.errors import ConfigError
from dovetail.runtime.swarm_udp import format_endpoint, parse_endpoint
from dovetail.swarm.contacts import AMPLIFICATION, MAX_CONTACTS, MAX_FORGOTTEN, MAX_STRANGERS
from dovetail.swarm.content import ContentRules
from dovetail.swarm.explain import explain_fragments, explain_message, explain_obfuscated, explain_packet
from dovetail.swarm.fragments import MAX_PENDING, Assembler, decode_fragment
from dovetail.swarm.obfuscation import decode_obfuscated
from dovetail.swarm.packet import SwarmSigner, decode_packet
from dovetail.swarm.peer_exchange import Answer, Hello, decode_exchange, encode_answer, encode_hello
from dovetail.swarm.queries import decode_message
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.settings import PeerSettings, SwarmSettings, parse_swarm_settings
from swarm.fuzz import damage, datagrams, messages
from swarm.peers import SECOND, START, Bench, exchanged

NOW_MS = START // 1000
SIGNER = SwarmSigner(bytes(20))
PARSERS = {
    "message": decode_message,
    "exchange": decode_exchange,
    "fragment": decode_fragment,
    "assembler": lambda data: Assembler().add(data, None, START),
    "obfuscated": decode_obfuscated,
    "packet": lambda data: decode_packet(data, SIGNER, NOW_MS),
    "explained message": lambda data: explain_message(data, ContentRules(), NOW_MS),
    "explained packet": lambda data: explain_packet(data, SIGNER, NOW_MS, ContentRules()),
    "explained fragments": lambda data: explain_fragments([data]),
    "explained obfuscation": explain_obfuscated,
}


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS.keys())
def test_every_parser_reads_or_refuses_random_and_mutated_bytes(parse):
    chance = random.Random(17)
    seeds = messages(Bench())
    read, details = 0, []
    for _ in range(1500):
        data = damage(chance.choice(seeds), chance) if chance.random() < 0.8 else chance.randbytes(chance.randrange(80))
        if chance.random() < 0.3:
            data = chance.choice(datagrams(data, SIGNER, NOW_MS, chance))
        try:
            parse(data)
            read += 1
        except Refusal as refusal:
            details.append(refusal.detail)
    assert read
    assert details
    assert all(0 < len(detail) < 200 for detail in details)


def test_what_the_peer_exchange_decodes_it_encodes_to_the_same_bytes():
    chance = random.Random(3)
    seeds = [message for message in messages(Bench()) if message[0] == 0x70]
    kinds = Counter()
    for _ in range(3000):
        data = damage(chance.choice(seeds), chance)
        try:
            decoded = decode_exchange(data)
        except Refusal:
            continue
        kinds[type(decoded)] += 1
        if isinstance(decoded, Hello):
            assert encode_hello(decoded) == data
        elif all(one.endpoint.isascii() and one.endpoint.isprintable() for one in decoded.introductions):
            assert encode_answer(decoded) == data
    assert kinds[Hello] > 100
    assert kinds[Answer] > 100


@pytest.mark.parametrize("seed", range(12))
def test_a_peer_survives_random_and_mutated_datagrams(seed):
    chance = random.Random(seed)
    bench = Bench(bootstrap=["192.0.2.250:9"])
    bench.link("192.0.2.251:9", 1)
    seeds = messages(bench)
    received: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for _ in range(250):
        sender = f"198.51.{chance.randrange(3)}.{chance.randrange(250)}:9"
        message = damage(chance.choice(seeds), chance)
        for datagram in datagrams(message, bench.signer, bench.now // 1000, chance):
            received[sender] += len(datagram)
            bench.peer.receive_datagrams((datagram,), sender, bench.now)
        if chance.random() < 0.3:
            bench.now += chance.choice((1, 1000, SECOND, 30 * SECOND, -SECOND, -60 * SECOND))
            bench.peer.handle_timer(bench.now)
        for outgoing in bench.peer.to_send():
            sent[outgoing.endpoint] += sum(map(len, outgoing.datagrams))
        bench.events += bench.peer.events()
    status = bench.peer.status()
    assert sum(status.refused.values()) > 50
    assert status.contacts <= MAX_CONTACTS
    assert status.strangers <= MAX_STRANGERS
    assert status.missing <= PeerSettings().max_wanted
    assert len(bench.peer._assembler) <= MAX_PENDING
    assert len(bench.peer._contacts._forgotten) <= MAX_FORGOTTEN
    for contact in bench.peer._contacts:
        if not contact.is_reachable and contact.received_bytes:
            assert contact.sent_bytes <= AMPLIFICATION * contact.received_bytes
    bench.now = max(bench.now, START) + 600 * SECOND
    bench.peer.handle_timer(bench.now)
    bench.peer.to_send()
    fresh = bench.content(b"after all that")
    bench.link("192.0.2.252:9", 2)
    assert any(message == fresh for _, message in bench.feed(fresh, "192.0.2.253:9"))


@pytest.mark.parametrize("seed", range(4))
def test_what_the_answers_of_a_hostile_peer_say_is_never_believed_beyond_bounds(seed):
    """A peer that answers every hello and pull, with mutated answers and lists."""
    chance = random.Random(seed)
    bench = Bench(bootstrap=["192.0.2.1:9"])
    template = messages(bench)
    for _ in range(200):
        for to, message in bench.wait(1):
            if message[:2] == b"\x70\x01":
                (hello,) = exchanged([(to, message)], to, Hello)
                answer = next(each for each in template if each[:2] == b"\x70\x02")
                bench.feed(damage(answer[:2] + hello.ticket + answer[6:], chance) or b"?", to)
            elif message[:2] == b"\x79\x21":
                listed = next(each for each in template if each[:2] == b"\x79\x11")
                bench.feed(damage(listed[:2] + message[2:6] + listed[6:], chance) or b"?", to)
    status = bench.peer.status()
    assert status.contacts <= MAX_CONTACTS
    assert status.strangers <= MAX_STRANGERS
    assert status.missing <= PeerSettings().max_wanted


def test_settings_files_are_read_or_refused_by_name():
    chance = random.Random(5)
    text = b'name = "fleet"\nepoch_ms = 60000\nmax_ttl_epochs = 1440\nwork = 100000\nsecret = "' + b"ab" * 20 + b'"\n'
    read, texts = 0, []
    for _ in range(1000):
        try:
            assert isinstance(parse_swarm_settings(damage(text, chance), "fleet.toml"), SwarmSettings)
            read += 1
        except ConfigError as error:
            texts.append(str(error))
    assert read > 50
    assert len(texts) > 50
    assert all(text.startswith("fleet.toml: ") and "\n" not in text for text in texts)


def test_settings_that_nest_deeply_or_are_large_are_refused():
    for text in (b"name=" + b"[" * 4000, b"a" + b".a" * 1000 + b"=1", b"epoch_ms=" + b"9" * 5000, b"#" * 8193):
        with pytest.raises(ConfigError, match=r"^fleet\.toml: "):
            parse_swarm_settings(text, "fleet.toml")


def test_endpoints_are_read_or_refused():
    chance = random.Random(6)
    for text in (b"192.0.2.7:4711", b"[2001:db8::7]:4711"):
        for _ in range(1000):
            changed = damage(text, chance).decode("utf-8", "replace")
            try:
                host, port = parse_endpoint(changed)
            except ConfigError:
                continue
            else:
                assert parse_endpoint(format_endpoint((host, port))) == (host, port)
