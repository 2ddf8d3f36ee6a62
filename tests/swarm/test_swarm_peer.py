"""The peer: bytes in, events and bytes out, clause by clause, and every kind of bad input."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest

from dovetail.model.errors import LocalProtocolError
from dovetail.model.hop import Hop, Observation, Reason, Stage
from dovetail.sim import MemoryJournal
from dovetail.swarm import contacts, fragments, pull
from dovetail.swarm.content import (
    Content,
    Reference,
    decode_content,
    encode_content,
    message_address,
    with_nonce,
    work_of,
)
from dovetail.swarm.events import CollisionFound, CycleFound, GapFilled, GapFound, GapGivenUp, MessageAccepted
from dovetail.swarm.explain import explain_message
from dovetail.swarm.gossip import MAX_REPEATS, OVERLAP_MS
from dovetail.swarm.intake import FIRST_PUSHES
from dovetail.swarm.obfuscation import encode_obfuscated, is_obfuscated
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import Answer, Hello, encode_answer, encode_hello
from dovetail.swarm.queries import (
    PullHashes,
    PullRange,
    RangeList,
    encode_pull_hashes,
    encode_pull_range,
    encode_range_list,
)
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.repair import LATE_REPEAT_PEERS, REPEAT_PEERS
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from swarm.peers import SECOND, SETTINGS, START, Bench, exchanged, refer, sent_by, solved, uep12

ALICE, BOB, CAROL = "192.0.2.1:9", "192.0.2.2:9", "192.0.2.3:9"


def bench_with_links(**options) -> Bench:
    bench = Bench(**options)
    bench.link(ALICE, 1)
    bench.link(BOB, 9)
    return bench


# -- content messages


def test_content_is_accepted_delivered_and_relayed_to_the_forward_links_but_not_back():
    bench = bench_with_links()
    message = bench.content(b"hello")
    sent = bench.feed(message, ALICE)
    assert [(to, data) for to, data in sent if data[:2] == b"\x79\x10"] == [(BOB, message)]
    (accepted,) = bench.observed(Stage.ACCEPTED)
    assert accepted.raw == message
    assert accepted.counterparts == (f"swarm://test/{'01' * 20}",)
    assert accepted.expires_us == START + 10 * 60 * SECOND
    (forwarded,) = bench.observed(Stage.FORWARDED)
    assert forwarded.counterparts == (f"swarm://test/{'09' * 20}",)
    assert [one.message for one in bench.observed(Stage.DELIVERED)] == [accepted.message]
    assert [one.content.payload for one in bench.seen(MessageAccepted)] == [b"hello"]


def test_without_an_application_nothing_is_said_to_be_delivered():
    bench = bench_with_links()
    bench.peer.has_application = False
    bench.feed(bench.content(b"hello"), ALICE)
    assert len(bench.observed(Stage.ACCEPTED)) == 1
    assert bench.observed(Stage.DELIVERED) == bench.seen(MessageAccepted) == []


def test_content_is_accepted_once_however_often_it_comes():
    bench = bench_with_links()
    message = bench.content(b"hello")
    for sender in (ALICE, BOB, ALICE):
        bench.feed(message, sender)
    assert len(bench.observed(Stage.ACCEPTED)) == 1
    assert bench.peer.status().duplicates == 2


def test_content_from_an_unknown_source_names_its_endpoint():
    bench = Bench()
    bench.feed(bench.content(b"x"), CAROL)
    assert bench.observed(Stage.ACCEPTED)[0].counterparts == (f"udp://{CAROL}",)


def test_few_mtu_sized_messages_travel_as_fragments():
    bench = bench_with_links()
    message = bench.content(bytes(5000))
    sent = []
    for piece in fragments.encode_fragments(encode_packet(message, bench.signer, bench.now // 1000, 0)):
        sent += bench.feed_raw(piece, ALICE)
    assert (BOB, message) in sent
    assert len(bench.observed(Stage.ACCEPTED)) == 1


def test_ttl_0_is_relayed_and_delivered_but_never_listed_served_or_referred_to():
    bench = bench_with_links()
    message = bench.content(b"now", ttl=0, references=(Reference(b"missing!", 0),))
    assert (BOB, message) in bench.feed(message, ALICE)
    bench.feed(message, BOB)
    assert len(bench.seen(MessageAccepted)) == 1
    bench.now += SECOND
    pulled = bench.feed(encode_pull_hashes([message_address(message)[:8]]), ALICE)
    assert pulled == []
    (listed,) = uep12(bench.feed(encode_pull_range(b"tick", 0, 1 << 47), ALICE), ALICE, RangeList)
    assert listed.hashes == ()
    assert decode_content(bench.peer.compose(b"", 5, bench.now)).references == ()
    assert bench.peer.status().missing == 0


def test_reserved_bits_are_relayed_and_served_as_they_came():
    bench = bench_with_links()
    content = Content(timestamp_ms=bench.now // 1000, ttl_epochs=10, payload=b"odd", reserved=21)
    message = solved(SETTINGS, content)
    assert message[19] == 21 << 3
    assert (BOB, message) in bench.feed(message, ALICE)
    assert (ALICE, message) in bench.feed(encode_pull_hashes([message_address(message)[:8]]), ALICE)


# -- refusals


@pytest.mark.parametrize(
    "message",
    [
        Bench().content(b"bare"),
        encode_pull_hashes([b"12345678"]),
        encode_pull_range(b"tick", 0, 10),
        encode_range_list(b"tick", 0, 10, []),
    ],
    ids=["content", "pull hashes", "pull range", "list"],
)
def test_a_message_that_is_not_inside_the_swarm_header_is_refused(message):
    bench = bench_with_links()
    bench.feed_raw(message, ALICE)
    bench.assert_refused(Reason.BAD_INDICATOR)
    assert bench.peer.status().messages == 0


def test_refusals_come_in_the_order_of_the_reading():
    settings = SwarmSettings(name="test", work=100, max_ttl_epochs=100)
    now_ms = START // 1000
    rules = settings.rules

    def full(count: int, ttl: int, ahead_ms: int, *, is_solved: bool = True) -> bytes:
        edges = tuple(Reference(bytes([number]) * 8, 0) for number in range(count))
        content = Content(timestamp_ms=now_ms + ahead_ms, ttl_epochs=ttl, references=edges)
        found = solved(settings, content)
        nonce = decode_content(found).pow_nonce
        return (
            found
            if is_solved
            else next(
                with_nonce(found, nonce + step) for step in range(1, 99) if not is_good(with_nonce(found, nonce + step))
            )
        )

    def is_good(data: bytes) -> bool:
        return int.from_bytes(work_of(data)) < rules.pow_target

    # each has all the faults of those after it and none of those before
    steps = [
        (bytes(11_257), Reason.TOO_LARGE),
        (b"\x78", Reason.TRUNCATED),
        (b"\x78\x30", Reason.BAD_INDICATOR),
        (b"\x79\x30", Reason.UNKNOWN_OPCODE),
        (b"\x79\x10\x06", Reason.UNSUPPORTED_VERSION),
        (b"\x79\x10\x05" + bytes(15), Reason.TRUNCATED),
        (b"\x79\x10\x05" + bytes(16) + b"\x07", Reason.BAD_REFERENCE_COUNT),
        (b"\x79\x10\x05" + bytes(16) + b"\x04" + bytes(39), Reason.TRUNCATED),
        (full(4, 101, 60_001, is_solved=False), Reason.BAD_PROOF_OF_WORK),
        (full(4, 101, 60_001), Reason.TTL_TOO_LONG),
        (full(4, 100, 60_001), Reason.FROM_FUTURE),
        (full(4, 1, -60_000), Reason.LIFETIME_OVER),
    ]
    for message, reason in steps:
        with pytest.raises(Refusal) as caught:
            explain_message(message, rules, now_ms)
        assert caught.value.reason is reason
        if len(message) >= 2 and len(message) < 11_257:
            bench = Bench(settings)
            bench.feed(message)
            bench.assert_refused(reason)
    accepted = Bench(settings)
    accepted.feed(full(4, 100, 60_000))
    assert accepted.peer.status().messages == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"age_ms": -61_000}, Reason.FROM_FUTURE),
        ({"age_ms": 601_000}, Reason.LIFETIME_OVER),
        ({"ttl": 101}, Reason.TTL_TOO_LONG),
    ],
)
def test_content_that_is_not_acceptable_now_is_refused_and_not_relayed(change, reason):
    bench = bench_with_links()
    message = bench.content(**change)
    assert bench.feed(message, ALICE) == []
    bench.assert_refused(reason)
    (rejected,) = bench.observed(Stage.REJECTED)
    assert (rejected.message, rejected.raw) == (message_address(message), message)
    assert bench.observed(Stage.ACCEPTED) == []


def test_wrong_work_is_refused():
    bench = bench_with_links(settings=SwarmSettings(name="test", work=1000))
    message = bench.content(b"x")
    wrong = with_nonce(message, decode_content(message).pow_nonce + 1)
    assert bench.feed(wrong, ALICE) == []
    bench.assert_refused(Reason.BAD_PROOF_OF_WORK)


@pytest.mark.parametrize("count", [5, 6, 7])
def test_reference_counts_five_to_seven_are_refused(count):
    bench = Bench()
    data = bytearray(bench.content(bytes(100)))
    data[19] = count
    bench.feed(bytes(data))
    bench.assert_refused(Reason.BAD_REFERENCE_COUNT)


def test_another_version_is_refused_and_not_relayed():
    bench = bench_with_links()
    data = bytearray(bench.content())
    data[2] = 6
    assert bench.feed(bytes(data), ALICE) == []
    bench.assert_refused(Reason.UNSUPPORTED_VERSION)


def test_every_truncation_of_a_valid_datagram_is_refused_or_another_message():
    bench = Bench()
    message = bench.content(b"", references=(Reference(b"12345678", 0),))
    packet = encode_packet(message, bench.signer, bench.now // 1000, 1)
    for size in range(len(packet)):
        bench.feed_raw(packet[:size])
    assert bench.observed(Stage.ACCEPTED) == []
    assert sum(bench.peer.status().refused.values()) == len(packet)


def test_random_datagrams_are_refused_with_bounded_journal_and_memory():
    bench, chance = Bench(), random.Random(3)
    heads = [b"", b"\x62", b"\x66", bench.signer.headers(bench.now // 1000)[2], bench.signer.headers(0)[2]]
    for number in range(5000):
        tail = bytes(chance.getrandbits(8) for _ in range(chance.randrange(60)))
        head = heads[number % len(heads)]
        if number % 10 == 3:
            tail = bytes([0x79, chance.choice((0x10, 0x11, 0x20, 0x21)), 5]) + tail
        bench.feed_raw(head + tail, f"203.0.113.{number % 250}:{number}")
    status = bench.peer.status()
    assert sum(status.refused.values()) > 4000
    assert len(bench.observed(Stage.REJECTED)) == status.refused_journaled <= 60
    assert status.strangers <= contacts.MAX_STRANGERS
    assert len(bench.peer._assembler) <= fragments.MAX_PENDING


def test_another_swarm_and_an_old_signature_are_unknown():
    bench = Bench()
    message = bench.content()
    other = SwarmSigner(SwarmSettings(name="other").key)
    bench.feed_raw(encode_packet(message, other, bench.now // 1000, 0))
    bench.feed_raw(encode_packet(message, SwarmSigner(SETTINGS.key), bench.now // 1000 - 60_000, 0))
    bench.assert_refused(Reason.UNKNOWN_SWARM, 2)
    assert bench.peer.status().strangers == 0


def test_a_private_swarm_hears_only_its_secret():
    private = SwarmSettings(name="test", work=4, secret="11" * 20)
    bench = Bench(private)
    bench.feed_raw(encode_packet(bench.content(), SwarmSigner(SETTINGS.key), bench.now // 1000, 0))
    assert bench.peer.status().refused == {"unknown_swarm": 1}
    bench.feed(bench.content())
    assert len(bench.observed(Stage.ACCEPTED)) == 1


def test_a_flood_of_refusals_cannot_fill_the_journal():
    bench = Bench()
    data = bytearray(bench.content())
    data[2] = 9
    for _ in range(20_000):
        bench.feed(bytes(data))
    assert bench.peer.status().refused == {"unsupported_version": 20_000}
    assert len(bench.observed(Stage.REJECTED)) == 50


def test_one_bad_message_never_blocks_good_ones():
    bench = bench_with_links()
    for number in range(200):
        good = bench.content(b"good %d" % number)
        bench.feed(good[:-3] if number % 7 == 0 else good, ALICE)
        bench.feed(good, ALICE)
    assert len({one.message for one in bench.observed(Stage.ACCEPTED)}) >= 200


# -- odd graphs, made with a weak hash


def weak_hash(data: bytes) -> bytes:
    """The payload up to a colon is the hash of the message."""
    name = decode_content(data).payload.split(b":")[0]
    return name.ljust(8, b".")[:8] + hashlib.sha256(data).digest()[8:]


def weak_bench() -> Bench:
    return Bench(address_of_message=weak_hash)


def named(bench: Bench, payload: bytes, *refers: bytes, age_ms: int = 0) -> bytes:
    return bench.content(payload, age_ms=age_ms, references=tuple(Reference(name.ljust(8, b"."), 0) for name in refers))


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("ttl", [0, 1])
def test_what_expired_by_a_clock_that_was_wrong_is_held_again_and_not_accepted_again(ttl, is_restarted):
    bench = bench_with_links()
    message = bench.content(b"once", ttl=ttl)
    bench.feed(message, ALICE)
    bench.wait(61)
    assert bench.peer.status().messages == 0
    again = restarted(bench, 0) if is_restarted else bench
    again.now -= 31 * SECOND
    assert (BOB, message) not in again.feed(message, ALICE)
    events = bench.events + (again.events if is_restarted else [])
    assert [event.stage for event in events if isinstance(event, Observation)].count(Stage.ACCEPTED) == 1
    assert len([event for event in events if isinstance(event, MessageAccepted)]) == 1
    assert again.peer.status().messages == (1 if ttl else 0)
    pulled = again.feed(encode_pull_hashes([message_address(message)[:8]]), BOB)
    assert [data for to, data in pulled if to == BOB] == ([message] if ttl else [])


def test_self_reference_is_refused():
    bench = weak_bench()
    bench.link(ALICE, 1)
    bench.link(BOB, 9)
    assert bench.feed(named(bench, b"me", b"me"), BOB) == []
    bench.assert_refused(Reason.SELF_REFERENCE)
    assert bench.peer.status().messages == 0


def test_a_cycle_is_kept_reported_and_pulled_once():
    bench = weak_bench()
    for number, endpoint in ((1, ALICE), (9, BOB)):
        bench.link(endpoint, number)
    circle = {
        name: named(bench, name, refers, age_ms=age)
        for name, refers, age in ((b"a", b"c", 3), (b"b", b"a", 2), (b"c", b"b", 1))
    }
    bench.feed(circle[b"a"], ALICE)
    pulled: list[bytes] = []
    for _ in range(600):
        for to, message in bench.wait(0.1):
            if message[:2] == b"\x79\x20":
                (query,) = uep12([(to, message)], to, PullHashes)
                pulled += query.hashes
                for msg_hash in query.hashes:
                    bench.feed(circle[msg_hash.rstrip(b".")], to)
    assert pulled == [b"c.......", b"b......."]
    (cycle,) = bench.seen(CycleFound)
    assert len(cycle.path) == 3
    assert bench.peer.status().messages == 3
    assert bench.peer.status().missing == 0


def test_a_collision_is_evidence_and_overwrites_nothing():
    bench = weak_bench()
    bench.feed(named(bench, b"same:one"))
    bench.feed(named(bench, b"same:two"))
    (collision,) = bench.seen(CollisionFound)
    assert collision.first != collision.second
    bench.link(ALICE, 1)
    served = uep12(bench.feed(encode_pull_hashes([b"same...."]), ALICE), ALICE, Content)
    assert {content.payload for content in served} == {b"same:one", b"same:two"}


# -- missing references


def test_a_missing_reference_is_pulled_from_the_peer_that_sent_the_referrer():
    bench = bench_with_links()
    parent = bench.content(b"parent", age_ms=10)
    child = bench.content(b"child", references=refer(parent))
    bench.feed(child, ALICE)
    sent = bench.wait(0.4)
    assert uep12(sent, ALICE, PullHashes) == [PullHashes((message_address(parent)[:8],))]
    assert uep12(sent, BOB, PullHashes) == []
    assert len(bench.seen(GapFound)) == 1
    bench.feed(parent, ALICE)
    (pulled,) = bench.observed(Stage.PULLED)
    assert pulled.message == message_address(parent)
    assert len(bench.seen(GapFilled)) == 1
    assert bench.peer.status().missing == 0


def test_a_reference_that_must_have_expired_is_not_pulled():
    bench = bench_with_links()
    gone = Reference(b"longgone", 11)
    bench.feed(bench.content(b"child", ttl=10, references=(gone,)), ALICE)
    assert bench.peer.status().missing == 0
    saturated = Reference(b"maybe...", -0x8000)
    bench.feed(bench.content(b"child 2", ttl=10, references=(saturated,)), ALICE)
    assert bench.peer.status().missing == 1


@pytest.mark.exhaustive
def test_a_thousand_unknown_references_cost_bounded_memory_and_datagrams_and_are_given_up():
    bench = bench_with_links()
    for number in range(1000):
        edges = tuple(Reference(bytes([4, edge]) + number.to_bytes(6), 0) for edge in range(4))
        bench.feed(bench.content(references=edges), ALICE)
    assert bench.peer.status().missing == PeerSettings().max_wanted // pull.SOURCES
    sent = bench.wait(120)
    pulls = [message for _, message in sent if message[:2] == b"\x79\x20"]
    assert bench.peer.status().missing == 0
    assert len(bench.seen(GapGivenUp)) == PeerSettings().max_wanted // pull.SOURCES
    assert sum(message[2] for message in pulls) <= PeerSettings().max_wanted // pull.SOURCES * pull.MAX_ATTEMPTS
    given_up = [one for one in bench.observed(Stage.PULLED) if one.reason is Reason.GIVEN_UP]
    assert len(given_up) == PeerSettings().max_wanted // pull.SOURCES


# -- pulls from others


def test_pulled_messages_are_served_and_journaled():
    bench = bench_with_links()
    messages = [bench.content(b"%d" % number) for number in range(3)]
    for message in messages:
        bench.feed(message, BOB)
    hashes = [message_address(message)[:8] for message in messages]
    sent = bench.feed(encode_pull_hashes([*hashes, b"unknown!"]), ALICE)
    assert [data for to, data in sent if to == ALICE] == messages
    assert len(bench.observed(Stage.SERVED)) == 3


def test_nothing_expired_is_listed_served_or_referred_to_even_before_the_timer():
    bench = bench_with_links()
    short, long = bench.content(b"short", ttl=1), bench.content(b"long", ttl=2)
    bench.feed(short, ALICE)
    bench.feed(long, ALICE)
    bench.now += 60 * SECOND
    pull = encode_pull_hashes([message_address(short)[:8], message_address(long)[:8]])
    assert [message for to, message in bench.feed(pull, BOB) if to == BOB] == [long]
    (listed,) = uep12(bench.feed(encode_pull_range(b"abcd", 0, bench.now // 1000), BOB), BOB, RangeList)
    assert listed.hashes == (message_address(long)[:8],)
    composed = decode_content(bench.peer.compose(b"new", 1, bench.now))
    assert [edge.msg_hash for edge in composed.references] == [message_address(long)[:8]]


def test_a_message_refers_to_none_that_expires_in_the_millisecond_it_is_made():
    bench = bench_with_links()
    bench.feed(bench.content(b"short", ttl=1), ALICE)
    bench.now += 60 * SECOND - 1000
    assert len(decode_content(bench.peer.compose(b"before", 1, bench.now)).references) == 1
    bench.now += 1000
    assert decode_content(bench.peer.compose(b"new", 1, bench.now)).references == ()


def test_255_hashes_repeated_are_served_within_the_share_of_the_source():
    bench = bench_with_links()
    messages = [bench.content(b"%d" % number + bytes(1300)) for number in range(255)]
    for message in messages:
        bench.feed(message, BOB)
    query = encode_pull_hashes([message_address(message)[:8] for message in messages])
    total = sum(len(data) for _ in range(100) for _, data in bench.feed(query, ALICE))
    assert total <= 1_000_000
    assert bench.peer.status().refused == {}
    for _ in range(100):
        bench.feed(query, ALICE)
    assert bench.peer.status().refused["rate_limited"] == 100


def test_a_range_of_all_time_is_answered_with_one_datagram():
    bench = bench_with_links()
    for number in range(500):
        bench.feed(bench.content(age_ms=number), BOB)
    sent = bench.feed(encode_pull_range(b"tick", 0, (1 << 48) - 1), ALICE)
    (answer,) = uep12(sent, ALICE, RangeList)
    assert len(answer.hashes) == 170
    assert [len(data) + 8 <= 1408 for to, data in sent if to == ALICE] == [True]


def test_a_spoofed_source_is_sent_no_more_than_three_times_what_it_sent():
    bench = bench_with_links()
    for number in range(100):
        bench.feed(bench.content(bytes(1000), age_ms=number), BOB)
    victim, received, sent = "203.0.113.7:53", 0, 0
    hashes = [entry.msg_hash for entry in bench.peer.messages_between(0, 1 << 47)]
    for query in [encode_pull_range(b"tick", 0, 1 << 47), encode_pull_hashes(hashes[:1])] * 50:
        received += len(query) + 8
        sent += sum(len(data) + 8 for to, data in bench.feed(query, victim) if to == victim)
    sent += sum(len(data) + 8 for to, data in bench.wait(600) if to == victim)
    assert 0 < sent <= 3 * received


def test_an_endpoint_that_was_only_introduced_gets_a_bounded_number_of_hellos():
    bench = Bench(bootstrap=[ALICE])
    (hello,) = exchanged(bench.wait(0), ALICE, Hello)
    victim = "203.0.113.7:53"
    from dovetail.swarm.peer_exchange import Introduction

    answer = Answer(hello.ticket, b"toke", b"\x01" * 20, 0, (Introduction(b"\x07" * 20, victim),))
    bench.feed(encode_answer(answer), ALICE)
    sent = [data for to, data in bench.wait(600) if to == victim]
    assert 1 <= len(sent) <= 4


# -- lists


def test_a_list_with_a_foreign_ticket_is_refused():
    bench = bench_with_links()
    bench.feed(encode_range_list(b"fake", 0, 10, [b"invented"]), ALICE)
    assert bench.peer.status().refused == {"unknown_ticket": 1}
    assert bench.peer.status().missing == 0


def ask(bench: Bench) -> tuple[str, PullRange]:
    """Wait until the peer pulls a range from someone."""
    for _ in range(100):
        for to, message in bench.wait(0.2):
            if message[:2] == b"\x79\x21":
                return to, uep12([(to, message)], to, PullRange)[0]
            if message[:2] == b"\x70\x01":
                (hello,) = exchanged([(to, message)], to, Hello)
                number = {ALICE: 1, BOB: 9}[to]
                bench.feed(encode_answer(Answer(hello.ticket, b"toke", bytes([number]) * 20, hello.requested & 3)), to)
    raise AssertionError("nobody was asked")


def test_a_list_from_another_peer_than_the_one_asked_is_refused():
    bench = bench_with_links()
    to, question = ask(bench)
    other = BOB if to == ALICE else ALICE
    bench.feed(encode_range_list(question.ticket, question.start_ms, question.end_ms, [b"invented"]), other)
    assert bench.peer.status().refused == {"unknown_ticket": 1}


def test_a_list_that_comes_late_is_used_and_is_no_refusal():
    bench = bench_with_links()
    to, question = ask(bench)
    bench.wait(3)
    msg_hash = message_address(bench.content(b"missing"))[:8]
    late = encode_range_list(question.ticket, question.start_ms, question.end_ms, [msg_hash])
    bench.feed(late, to)
    assert PullHashes((msg_hash,)) in uep12(bench.wait(0.01), to, PullHashes)
    bench.feed(late, to)
    status = bench.peer.status()
    assert (status.late_answers, status.refused) == (2, {})
    assert bench.observed(Stage.REJECTED) == []


def test_a_list_that_comes_again_is_ignored_and_one_from_another_peer_still_refused():
    bench = bench_with_links()
    to, question = ask(bench)
    bench.feed(encode_range_list(question.ticket, question.start_ms, question.end_ms, []), to)
    again = encode_range_list(question.ticket, question.start_ms, question.end_ms, [b"invented"])
    bench.feed(again, to)
    assert bench.peer.status().missing == 0
    assert bench.peer.status().late_answers == 1
    bench.feed(again, BOB if to == ALICE else ALICE)
    assert bench.peer.status().missing == 0
    bench.assert_refused(Reason.UNKNOWN_TICKET)


def test_what_a_list_names_and_is_missing_is_pulled_from_the_lister():
    bench = bench_with_links()
    to, question = ask(bench)
    missing = bench.content(b"missing")
    msg_hash = message_address(missing)[:8]
    bench.feed(encode_range_list(question.ticket, question.start_ms, question.end_ms, [msg_hash]), to)
    assert PullHashes((msg_hash,)) in uep12(bench.wait(0.01), to, PullHashes)


def test_a_list_that_was_cut_is_continued_after_its_end():
    bench = bench_with_links()
    to, question = ask(bench)
    cut = question.start_ms + 1000
    sent = bench.feed(encode_range_list(question.ticket, question.start_ms, cut, []), to)
    (following,) = uep12(sent, to, PullRange)
    assert (following.start_ms, following.end_ms) == (cut + 1, question.end_ms)
    assert following.ticket != question.ticket


def test_the_end_of_a_cut_list_is_asked_for_again_until_the_other_peer_lists_no_more_of_it():
    bench = bench_with_links()
    to, question = ask(bench)
    crowded = question.start_ms + 1000
    for hashes in ([b"m0000001", b"m0000002"], [b"m0000003"], [b"m0000004"]):
        answer = encode_range_list(question.ticket, question.start_ms, crowded, hashes)
        (question,) = uep12(bench.feed(answer, to), to, PullRange)
        assert question.start_ms == crowded
    answer = encode_range_list(question.ticket, crowded, crowded, [b"m0000004"])
    (question,) = uep12(bench.feed(answer, to), to, PullRange)
    assert question.start_ms == crowded + 1


def test_a_peer_that_invents_lists_of_one_millisecond_is_asked_a_bounded_number_of_times():
    bench = bench_with_links()
    to, question = ask(bench)
    crowded = question.start_ms + 1000
    for number in range(MAX_REPEATS + 2):
        answer = encode_range_list(question.ticket, question.start_ms, crowded, [number.to_bytes(8)])
        (question,) = uep12(bench.feed(answer, to), to, PullRange)
    assert question.start_ms == crowded + 1


def test_the_first_question_covers_the_longest_lifetime_and_the_tolerated_future():
    bench = bench_with_links()
    _, question = ask(bench)
    assert question.start_ms <= bench.now // 1000 - 100 * 60_000 + 25_000
    assert question.end_ms >= bench.now // 1000 + 60_000 - 25_000


# -- publishing


def test_publishing_creates_and_pushes_to_all_links_and_again_until_it_is_seen_to_have_arrived():
    bench = bench_with_links()
    message = solved(SETTINGS, decode_content(bench.peer.compose(b"mine", 10, bench.now)))
    address = bench.peer.publish_solved(message, bench.now)
    assert {to for to, data in bench.drain() if data == message} == {ALICE, BOB}
    assert [one.message for one in bench.observed(Stage.CREATED)] == [address]
    assert bench.peer.publish_solved(message, bench.now) == address
    assert len(bench.observed(Stage.CREATED)) == 1
    assert [to for to, data in bench.wait(2.1) if data == message]
    bench.feed(message, ALICE)
    assert not [to for to, data in bench.wait(60) if data == message]


def test_the_first_push_goes_to_others_too_where_links_are_few():
    bench = bench_with_links()
    others = [f"192.0.2.{number}:9" for number in range(20, 40)]
    for number, endpoint in enumerate(others, 20):
        bench.link(endpoint, number, 0)
    receivers = published_to(bench)
    assert len(receivers) == len(set(receivers)) == FIRST_PUSHES
    assert {ALICE, BOB} < set(receivers) <= {ALICE, BOB, *others}
    bench.feed(bench.content(b"another"), ALICE)
    (relayed,) = bench.observed(Stage.FORWARDED)[1:]
    assert len(relayed.counterparts) == 1


def test_a_push_after_a_long_pause_goes_to_more_peers():
    bench = bench_with_links()
    for number in range(20, 40):
        bench.link(f"192.0.2.{number}:9", number, 0)
    published_to(bench)
    bench.wait(40)
    counts = [len(push.counterparts) for push in bench.observed(Stage.FORWARDED)]
    assert [count for count, _ in itertools.groupby(counts)] == [FIRST_PUSHES, REPEAT_PEERS, LATE_REPEAT_PEERS]


def published_to(bench: Bench) -> list[str]:
    message = solved(SETTINGS, decode_content(bench.peer.compose(b"mine", 10, bench.now)))
    bench.peer.publish_solved(message, bench.now)
    return [to for to, data in bench.drain() if data == message]


def test_pushing_again_ends_when_somebody_refers_to_the_message():
    bench = bench_with_links()
    message = solved(SETTINGS, decode_content(bench.peer.compose(b"mine", 10, bench.now)))
    bench.peer.publish_solved(message, bench.now)
    bench.now += 1000
    bench.feed(bench.content(b"theirs", references=refer(message)), BOB)
    assert not [to for to, data in bench.wait(60) if data == message]


def test_an_own_message_that_nobody_was_seen_to_have_expires():
    bench = Bench()
    message = solved(SETTINGS, decode_content(bench.peer.compose(b"mine", 1, bench.now)))
    address = bench.peer.publish_solved(message, bench.now)
    bench.wait(61)
    assert [one.message for one in bench.observed(Stage.EXPIRED)] == [address]


def test_a_new_message_refers_to_the_tips_with_their_epoch_difference():
    bench = bench_with_links()
    older = bench.content(b"older", ttl=10, age_ms=5)
    bench.feed(older, ALICE)
    (edge,) = decode_content(bench.peer.compose(b"new", 12, bench.now)).references
    assert (edge.msg_hash, edge.epoch_diff) == (message_address(older)[:8], 2)


@pytest.mark.parametrize(("older_ttl", "ttl", "expected"), [(1, 65535, 0x7FFF), (65535, 1, -0x8000)])
def test_a_message_whose_epoch_difference_overflows_is_composed_and_its_referee_pulled(older_ttl, ttl, expected):
    settings = SwarmSettings(name="test", work=4, max_ttl_epochs=65535)
    composing, receiving = Bench(settings), Bench(settings)
    older = composing.content(b"older", age_ms=1, ttl=older_ttl)
    composing.feed(older)
    newer = solved(settings, decode_content(composing.peer.compose(b"newer", ttl, composing.now)))
    (edge,) = decode_content(newer).references
    assert (edge.msg_hash, edge.epoch_diff) == (message_address(older)[:8], expected)
    receiving.link(ALICE, 1)
    receiving.feed(newer, ALICE)
    (pull,) = uep12(receiving.wait(0.5), ALICE, PullHashes)
    assert pull.hashes == (message_address(older)[:8],)


def test_what_cannot_be_published_is_said_to_the_caller():
    bench = Bench(settings=SwarmSettings(name="test", work=1 << 30))
    with pytest.raises(LocalProtocolError, match="ttl of 1441"):
        bench.peer.compose(b"", 1441, bench.now)
    with pytest.raises(LocalProtocolError, match="11257"):
        bench.peer.compose(bytes(11_237), 1, bench.now)
    with pytest.raises(LocalProtocolError, match="work"):
        bench.peer.publish_solved(bench.peer.compose(b"", 1, bench.now), bench.now)
    with pytest.raises(LocalProtocolError, match="opcode"):
        bench.peer.publish_solved(b"\x79\x11", bench.now)


def test_a_bootstrap_peer_is_asked_until_it_answers_however_little_came_from_it():
    bench = Bench(bootstrap=[ALICE])
    bench.wait(1)
    # its own hello reaches us, but no answer to ours
    bench.feed(encode_hello(Hello(b"tick", b"\x01" * 20, 0)), ALICE)
    bench.wait(60)
    later = exchanged(bench.wait(60), ALICE, Hello)
    assert len(later) > 5
    bench.feed(encode_answer(Answer(later[-1].ticket, b"gave", b"\x01" * 20, 0)), ALICE)
    assert bench.peer._contacts.find(ALICE).is_validated


# -- obfuscation, per peer


def test_a_peer_that_masks_its_datagrams_is_answered_masked():
    bench = bench_with_links()
    message = bench.content(b"masked")
    packet = encode_packet(encode_pull_range(b"tick", 0, 9), bench.signer, bench.now // 1000, 0)
    bench.peer.receive_datagrams(encode_obfuscated(packet, [(40, 77)]), ALICE, bench.now)
    ((to, data),) = sent_by(bench.peer)
    assert to == ALICE
    assert is_obfuscated(data)
    bench.peer.receive_datagrams((encode_packet(message, bench.signer, bench.now // 1000, 0),), BOB, bench.now)
    assert {to: is_obfuscated(data) for to, data in sent_by(bench.peer)} == {ALICE: True}


# -- restart


def test_everything_unexpired_is_back_after_a_restart_and_nothing_else():
    bench = bench_with_links()
    journal = MemoryJournal("swarm://test/x")
    short, long = bench.content(b"short", ttl=1), bench.content(b"long", ttl=10)
    early = bench.content(b"early", age_ms=-61_000)
    for message in (early, short, long):
        bench.feed(message, ALICE)
    bench.now += 2 * SECOND
    bench.feed(early, ALICE)
    own = solved(SETTINGS, decode_content(bench.peer.compose(b"own", 10, bench.now)))
    bench.peer.publish_solved(own, bench.now)
    bench.drain()
    journal.append([event for event in bench.events if hasattr(event, "stage")])
    again = Bench(now=bench.now + 61 * SECOND)
    hops: list[Hop] = list(journal.hops())
    assert again.peer.restore(hops, again.now) == 3
    assert again.peer.addresses() == {message_address(message) for message in (early, long, own)}
    again.feed(long)
    assert again.seen(MessageAccepted) == []


def restarted(bench: Bench, after_us: int) -> Bench:
    journal = MemoryJournal("swarm://test/x")
    journal.append([event for event in bench.events if hasattr(event, "stage")])
    again = bench_with_links(now=bench.now + after_us)
    again.peer.restore(list(journal.hops()), again.now)
    return again


def published(bench: Bench, payload: bytes) -> bytes:
    own = solved(SETTINGS, decode_content(bench.peer.compose(payload, 10, bench.now)))
    bench.peer.publish_solved(own, bench.now)
    bench.drain()
    return own


def test_an_own_message_that_may_never_have_been_sent_is_pushed_again_after_a_restart():
    bench = bench_with_links()
    own = published(bench, b"own")
    again = restarted(bench, SECOND)
    assert again.peer.status().unconfirmed == 1
    assert own in [message for _, message in again.wait(2)]
    assert restarted(bench, 121 * SECOND).peer.status().unconfirmed == 0


def test_an_own_message_that_others_had_before_the_restart_is_not_pushed_again():
    bench = bench_with_links()
    served, referred = published(bench, b"served"), published(bench, b"referred")
    bench.feed(encode_pull_hashes([message_address(served)[:8]]), ALICE)
    bench.now += SECOND
    bench.feed(bench.content(b"child", references=refer(referred)), ALICE)
    assert restarted(bench, SECOND).peer.status().unconfirmed == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_came_late_is_named_to_whoever_asks_for_later_times(is_restarted):
    bench = bench_with_links()
    late, in_time = bench.content(b"late", age_ms=OVERLAP_MS + 1), bench.content(b"in time", age_ms=OVERLAP_MS)
    for message in (late, in_time):
        bench.feed(message, ALICE)
    if is_restarted:
        bench = restarted(bench, SECOND)
    now_ms = bench.now // 1000
    (answer,) = uep12(bench.feed(encode_pull_range(b"tick", now_ms - 10, now_ms), ALICE), ALICE, RangeList)
    assert answer.hashes == (message_address(late)[:8],)
    assert (answer.start_ms, answer.end_ms) == (decode_content(late).timestamp_ms, now_ms)


# -- the verbs


def test_a_new_peer_without_bootstrap_waits_quietly():
    bench = Bench()
    assert bench.wait(30) == []
    assert isinstance(bench.peer.next_timer(), int)


def test_two_peers_find_each_other_and_exchange_what_they_have():
    ends = {
        name: Peer(SETTINGS, bytes([number]) * 20, random.Random(number), START, bootstrap=[other])
        for name, number, other in (("a", 1, "b"), ("b", 2, "a"))
    }
    message = solved(SETTINGS, Content(timestamp_ms=START // 1000, ttl_epochs=9, payload=b"x"))
    ends["a"].publish_solved(message, START)
    for step in range(100):
        now = START + step * SECOND // 20
        for name, peer in ends.items():
            peer.handle_timer(now)
            peer.events()
            for to, data in sent_by(peer):
                ends[to].receive_datagrams((data,), name, now)
    assert ends["b"].addresses() == ends["a"].addresses() == {message_address(message)}
    assert [len(peer.status().forward) for peer in ends.values()] == [1, 1]
    assert encode_content(decode_content(message)) == message
