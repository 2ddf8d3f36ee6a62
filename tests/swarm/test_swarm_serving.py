"""Answers to pulls: readings 13 and 14, and the bounds against amplification."""

from __future__ import annotations

import random

import pytest

from dovetail.swarm.contacts import AMPLIFICATION, Contact
from dovetail.swarm.dag import Dag
from dovetail.swarm.late_messages import LateMessages
from dovetail.swarm.limits import TokenBucket
from dovetail.swarm.queries import PullHashes, PullRange, RangeList, decode_message
from dovetail.swarm.refusals import RateLimited
from dovetail.swarm.serving import OVERHEAD_BYTES, Serving
from swarm.test_swarm_dag import EPOCH, entry
from swarm.vectors import named, of_layer

NOW = 1_000_000


def contact(*, validated: bool = True, received: int = 0) -> Contact:
    made = Contact("192.0.2.1:9", 0, TokenBucket(1e9, 1e9), TokenBucket(10, 20))
    made.is_validated, made.received_bytes = validated, received
    return made


def filled(*times: int, ttl: int = 10) -> Dag:
    dag = Dag(EPOCH)
    for number, at in enumerate(times):
        dag.add(entry(f"m{number:04}", at, ttl=ttl))
    return dag


def made(dag: Dag, push_limit: int) -> Serving:
    return Serving(dag, push_limit, LateMessages(random.Random(1), 60_000))


def listed(serving: Serving, start: int, end: int, now: int = NOW) -> tuple[RangeList, int]:
    answer, pushed = serving.answer_range(PullRange(b"tick", start, end), contact(), now)
    return decode_message(answer), len(pushed)


def test_a_range_is_always_answered_with_a_list_that_may_be_empty():
    answer, pushed = listed(made(filled(), 4), 0, 10)
    assert (answer.ticket, answer.start_ms, answer.end_ms, answer.hashes, pushed) == (b"tick", 0, 10, (), 0)


def test_few_messages_are_pushed_and_too_many_only_listed():
    assert listed(made(filled(1, 2, 3, 4), 4), 0, 10)[1] == 4
    assert listed(made(filled(1, 2, 3, 4, 5), 4), 0, 10)[1] == 0


def test_a_list_is_cut_between_two_milliseconds_and_reports_its_end():
    serving = made(filled(*[number // 3 for number in range(600)]), 4)
    answer, _ = listed(serving, 0, 1000)
    assert len(answer.hashes) == 168
    assert answer.end_ms == 55
    seen, start = [], 0
    while start <= 1000:
        answer, _ = listed(serving, start, 1000)
        seen += answer.hashes
        start = answer.end_ms + 1
    assert len(seen) == len(set(seen)) == 600


def test_exactly_170_are_sent_whole():
    answer, _ = listed(made(filled(*range(170)), 4), 0, 1000)
    assert (len(answer.hashes), answer.end_ms) == (170, 1000)


def ask(serving: Serving, asker: Contact, ticket: bytes, start: int) -> RangeList:
    return decode_message(serving.answer_range(PullRange(ticket, start, 1000), asker, NOW)[0])


def test_the_messages_of_one_crowded_millisecond_are_listed_in_several_lists():
    serving, asker = made(filled(6, *[7] * 400, 8), 4), contact()
    first = ask(serving, asker, b"0001", 0)
    assert (len(first.hashes), first.end_ms) == (1, 6)
    lists = [ask(serving, asker, b"%04d" % number, 7) for number in range(2, 5)]
    assert [(len(each.hashes), each.end_ms) for each in lists] == [(170, 7), (170, 7), (61, 1000)]
    seen = [msg_hash for each in lists for msg_hash in each.hashes]
    assert len(set(seen)) == len(seen) == 401


def test_a_pull_that_the_network_duplicated_gets_the_same_list_again():
    serving, asker = made(filled(*[7] * 400), 4), contact()
    ask(serving, asker, b"0001", 7)
    second = ask(serving, asker, b"0002", 7)
    assert ask(serving, asker, b"0002", 7) == second
    assert not set(second.hashes) & set(ask(serving, asker, b"0003", 7).hashes)


def test_another_asker_of_a_crowded_millisecond_begins_at_its_beginning():
    serving, alice, bob = made(filled(*[7] * 400), 4), contact(), contact()
    assert ask(serving, alice, b"0001", 7).hashes == ask(serving, bob, b"0001", 7).hashes


def test_what_came_late_is_listed_before_the_range_but_not_pushed():
    dag = filled(100, 700, 800)
    late = LateMessages(random.Random(1), 60_000)
    late.note(next(dag.between(100, 100)), NOW)
    answer, pushed = listed(Serving(dag, 4, late), 600, 1000)
    assert (answer.start_ms, answer.end_ms) == (100, 1000)
    assert answer.hashes == (b"m0000...", b"m0001...", b"m0002...")
    assert pushed == 2
    answer, pushed = listed(Serving(dag, 4, late), 50, 1000)
    assert (answer.start_ms, len(answer.hashes), pushed) == (50, 3, 3)


def test_a_full_list_has_no_room_for_what_came_late():
    dag = filled(100, *range(600, 780))
    late = LateMessages(random.Random(1), 60_000)
    late.note(next(dag.between(100, 100)), NOW)
    answer, _ = listed(Serving(dag, 4, late), 600, 1000)
    assert (answer.start_ms, answer.end_ms, len(answer.hashes)) == (600, 769, 170)
    answer, _ = listed(Serving(dag, 4, late), 770, 1000)
    assert (answer.start_ms, answer.end_ms, len(answer.hashes)) == (100, 1000, 11)


def test_a_hash_asked_twice_is_served_once():
    serving = made(filled(1, 2), 4)
    assert len(serving.answer_hashes(PullHashes((b"m0000...",) * 255), contact(), NOW)) == 1


def test_queries_of_one_source_are_limited():
    serving, asker = made(filled(1), 4), contact()
    for _ in range(20):
        serving.answer_hashes(PullHashes(()), asker, NOW)
    with pytest.raises(RateLimited):
        serving.answer_hashes(PullHashes(()), asker, NOW)
    serving.answer_hashes(PullHashes(()), asker, NOW + 1_000_000)


def test_what_is_sent_to_an_address_that_has_not_answered_is_bounded():
    serving = made(filled(*range(170)), 4)
    spoofed = contact(validated=False, received=26)
    answer, _ = serving.answer_range(PullRange(b"tick", 0, 1000), spoofed, NOW)
    listed = decode_message(answer)
    assert (len(listed.hashes), listed.end_ms) == (6, 5)
    hashes = tuple(b"m%04d..." % number for number in range(170))
    served = serving.answer_hashes(PullHashes(hashes), spoofed, NOW)
    assert len(answer) + sum(len(one.raw) for one in served) + OVERHEAD_BYTES <= AMPLIFICATION * 26


def test_a_list_that_has_room_for_nothing_is_not_sent():
    serving, spoofed = made(filled(1, 2), 4), contact(validated=False, received=9)
    with pytest.raises(RateLimited):
        serving.answer_range(PullRange(b"tick", 0, 1000), spoofed, NOW)
    assert spoofed.sent_bytes == 0


def test_the_vector_of_the_range_names_what_matches():
    dag = Dag(EPOCH)
    known = [vector for vector in of_layer("uep12") if vector["expect"] == "ok" and vector["opcode"] == 0x10]
    for vector in known:
        dag.add(entry(vector["name"], vector["fields"]["timestamp"], ttl=vector["fields"]["ttl_epoch"]))
    for name in ("pull_range", "pull_range_one_ms"):
        query = decode_message(bytes.fromhex(named(name)["hex"]))
        found = {one.raw.decode() for one in dag.between(query.start_ms, query.end_ms)}
        assert found == set(named(name)["matches"]) & {vector["name"] for vector in known}
