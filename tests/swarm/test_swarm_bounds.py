"""Every table of a peer has a bound that holds under a flood, and docs/protocols/swarm.md states it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from dovetail.swarm.contacts import MAX_CONTACTS, MAX_FORGOTTEN, MAX_STRANGERS
from dovetail.swarm.content import Content, Reference, encode_content, message_address
from dovetail.swarm.dag import MAX_AWAITED, MAX_REFERRERS, MAX_UNCOUNTED
from dovetail.swarm.fragments import MAX_PENDING, MAX_PENDING_PER_SOURCE, encode_fragments
from dovetail.swarm.gossip import MAX_PREFERRED
from dovetail.swarm.handshake import MAX_PAST_TICKETS, MAX_SENT
from dovetail.swarm.late_messages import MAX_KEPT
from dovetail.swarm.packet import encode_packet
from dovetail.swarm.peer_exchange import Answer, Hello, Introduction, encode_answer, encode_hello
from dovetail.swarm.pull import MAX_ATTEMPTS, MAX_GIVEN_UP, SOURCES
from dovetail.swarm.queries import PullRange, encode_pull_hashes, encode_pull_range, encode_range_list
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from dovetail.swarm.tickets import MAX_OPEN, MAX_RECENT
from swarm.peers import SECOND, Bench, exchanged, uep12

PAGE = (Path(__file__).parents[2] / "docs" / "protocols" / "swarm.md").read_text()
MAX_WANTED = PeerSettings().max_wanted
FREE = SwarmSettings(name="test", work=1, max_ttl_epochs=1440)


def source(number: int) -> str:
    return f"198.{18 + number // 62_500}.{number // 250 % 250}.{number % 250}:9"


def address(number: int) -> bytes:
    return number.to_bytes(20, "little")


def content(bench: Bench, number: int, *hashes: bytes, age_ms: int = 0) -> bytes:
    references = tuple(Reference(each, 0) for each in hashes)
    timestamp_ms = bench.now // 1000 - age_ms
    return encode_content(Content(timestamp_ms=timestamp_ms, ttl_epochs=60, references=references, pow_nonce=number))


def validate(bench: Bench, number: int) -> None:
    """A peer at its own endpoint that answers with our token."""
    place = source(number)
    (answer,) = exchanged(bench.feed(encode_hello(Hello(b"tick", address(number), 0)), place), place, Answer)
    bench.feed(encode_hello(Hello(b"tick", address(number), 3, answer.token)), place)


def assert_bounded(bench: Bench) -> None:
    peer = bench.peer
    contacts, repair, handshake = peer._contacts, peer._repair, peer._handshake
    wants, tickets, dag = repair.wants, repair.gossip._tickets, peer._dag
    sizes = {
        "contacts": (len(contacts._known), MAX_CONTACTS),
        "strangers": (len(contacts._strangers), MAX_STRANGERS),
        "forgotten": (len(contacts._forgotten), MAX_FORGOTTEN),
        "routes": (len(contacts._routes), MAX_CONTACTS),
        "hellos": (len(handshake._sent), MAX_SENT),
        "hellos of a contact": (max((len(one.past_tickets) for one in contacts), default=0), MAX_PAST_TICKETS),
        "questions": (len(tickets._open), MAX_OPEN),
        "tickets": (len(tickets._recent), MAX_RECENT),
        "preferred": (len(repair.gossip._preferred), MAX_PREFERRED),
        "asked": (len(repair.gossip._asked), 5 * MAX_CONTACTS + 64),
        "tie breaks": (len(repair.gossip._tie_breaks), 5 * MAX_CONTACTS + 64),
        "packets": (len(peer._assembler._pending), MAX_PENDING),
        "packets of a source": (max(peer._assembler._per_source.values(), default=0), MAX_PENDING_PER_SOURCE),
        "wants": (len(wants._wants), MAX_WANTED),
        "wants of a source": (max(map(len, wants._per_source.values()), default=0), MAX_WANTED // SOURCES),
        "given up": (len(wants._given_up), MAX_GIVEN_UP),
        "attempts": (len(wants._queue), MAX_WANTED * 2 * (MAX_ATTEMPTS + 1)),
        "peers of a want": (max((len(one.untried) for one in wants._wants.values()), default=0), MAX_ATTEMPTS),
        "awaited": (len(dag._awaited), MAX_AWAITED),
        "referrers": (max(map(len, dag._awaited.values()), default=0), MAX_REFERRERS),
        "uncounted": (len(dag._uncounted), MAX_UNCOUNTED),
        "late": (len(repair.late_messages), MAX_KEPT),
        "datagrams": (len(peer.to_send()), 0),
        "events": (len(peer.events()), 0),
    }
    assert {name: size for name, size in sizes.items() if size[0] > size[1]} == {}


def test_hellos_from_many_sources_cost_bounded_memory():
    bench = Bench(FREE)
    for number in range(3_000):
        bench.feed(encode_hello(Hello(b"tick", address(number), 7)), source(number))
        if not number % 100:
            bench.wait(0.1)
    assert bench.peer.status().strangers == MAX_STRANGERS
    assert_bounded(bench)


def test_validated_contacts_cost_bounded_memory_and_the_forgotten_ones_too():
    bench = Bench(FREE)
    for number in range(MAX_CONTACTS + MAX_FORGOTTEN + 200):
        validate(bench, number)
    assert bench.peer.status().contacts == MAX_CONTACTS
    assert len(bench.peer._contacts._forgotten) == MAX_FORGOTTEN
    bench.wait(30)
    assert_bounded(bench)


def test_introductions_cost_bounded_memory():
    bench = Bench(FREE, bootstrap=[source(0)])
    for step in range(300):
        for hello in exchanged(bench.wait(1), source(0), Hello):
            others = [Introduction(address(6 * step + each), source(6 * step + each + 1)) for each in range(6)]
            bench.feed(encode_answer(Answer(hello.ticket, b"toke", address(9), 0, tuple(others))), source(0))
    assert_bounded(bench)


def test_unfinished_packets_cost_bounded_memory():
    bench = Bench(FREE)
    for number in range(2_000):
        packet = encode_packet(content(bench, number) + bytes(3000), bench.signer, bench.now // 1000, 1)
        for piece in encode_fragments(packet)[:2]:
            bench.feed_raw(piece, source(number % 400))
    assert len(bench.peer._assembler) == MAX_PENDING
    assert_bounded(bench)


def test_references_that_can_never_be_resolved_cost_bounded_memory():
    bench = Bench(FREE)
    for number in range(12):
        validate(bench, number)
    for number in range(6_000):
        hashes = [(4 * number + each).to_bytes(8) for each in range(4)]
        bench.feed(content(bench, number, *hashes), source(number % 12))
    assert bench.peer.status().missing == MAX_WANTED
    assert len(bench.peer._dag._awaited) == MAX_AWAITED
    assert_bounded(bench)
    bench.wait(120)
    assert_bounded(bench)


def test_a_hash_that_many_peers_name_again_and_again_costs_bounded_memory():
    bench = Bench(FREE)
    for number in range(100):
        validate(bench, number)
    for number in range(3_000):
        bench.feed(content(bench, number, b"missing!"), source(number % 100))
    assert bench.peer.status().missing == 1
    assert_bounded(bench)


def test_messages_that_refer_to_newer_ones_cost_bounded_memory():
    bench = Bench(FREE)
    bench.link(source(1), 1)
    newest = content(bench, 0)
    bench.feed(newest, source(1))
    target = message_address(newest)[:8]
    for number in range(1, 600):
        bench.feed(content(bench, number, target, age_ms=1), source(1))
    assert len(bench.peer._dag._uncounted) == MAX_UNCOUNTED
    assert_bounded(bench)


def test_messages_that_arrive_late_cost_bounded_memory_besides_their_own():
    bench = Bench(FREE)
    bench.link(source(1), 1)
    for number in range(MAX_KEPT + 200):
        bench.feed(content(bench, number, age_ms=10_000), source(1))
    assert len(bench.peer._repair.late_messages) == MAX_KEPT
    assert_bounded(bench)


def test_pulls_and_lists_from_many_sources_cost_bounded_memory():
    bench = Bench(FREE)
    for number in range(3_000):
        place = source(number % 900)
        for message in (
            encode_pull_range(b"%04d" % (number % 10_000), 0, 1 << 47),
            encode_pull_hashes([number.to_bytes(8)] * 3),
            encode_range_list(b"%04d" % (number % 10_000), 0, 5, [number.to_bytes(8)]),
        ):
            bench.feed(message, place)
    assert_bounded(bench)


def test_a_partner_that_lists_without_end_is_wanted_from_within_its_bound():
    bench = Bench(FREE)
    bench.link(source(1), 1)
    bench.peer._contacts.find(source(1)).knows_us = True
    asked = uep12(bench.wait(1), source(1), PullRange)
    for step in range(200):
        if not asked:
            asked = uep12(bench.wait(1), source(1), PullRange)
            continue
        question = asked[-1]
        hashes = [(200 * step + each).to_bytes(8) for each in range(170)]
        answer = encode_range_list(question.ticket, question.start_ms, question.start_ms + 1, hashes)
        asked = uep12(bench.feed(answer, source(1)), source(1), PullRange)
    assert bench.peer.status().missing <= MAX_WANTED // SOURCES
    assert_bounded(bench)


def test_a_clock_that_jumps_leaves_no_table_beyond_its_bound():
    bench = Bench(FREE)
    for number in range(300):
        validate(bench, number)
        bench.feed(content(bench, number, number.to_bytes(8)), source(number))
        bench.now += (-30 if number % 3 else 45) * SECOND
        bench.wait(0.2)
    assert_bounded(bench)


ROWS = re.findall(r"^\| `(\w+)\.(MAX_\w+)` \| ([\d,]+) ", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("module", "name", "value"), ROWS)
def test_the_page_states_the_bounds_of_the_code(module, name, value):
    assert getattr(importlib.import_module(f"dovetail.swarm.{module}"), name) == int(value.replace(",", ""))


def test_the_page_states_every_bound():
    stated = {(module, name) for module, name, _ in ROWS}
    found = set()
    for path in Path(importlib.import_module("dovetail.swarm").__path__[0]).glob("*.py"):
        names = re.findall(r"^(MAX_\w+)(?:: Final)? = ", path.read_text(), re.MULTILINE)
        found |= {(path.stem, name) for name in names}
    timings = {(module, name) for module, name in found if name.endswith(("_US", "_MS"))}
    assert found - timings - stated == set()
