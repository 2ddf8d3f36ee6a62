"""Links: balanced, agreed by hellos, ended by silence, replaced if nothing arrives."""

from __future__ import annotations

from dovetail.swarm.contacts import HEARD_MARGIN_MS
from dovetail.swarm.events import PeerLinked, PeerUnlinked
from dovetail.swarm.handshake import LOST_US, MAX_PAST_TICKETS, MAX_UNANSWERED
from dovetail.swarm.peer_exchange import (
    I_RELAY_TO_YOU,
    YOU_RELAY_TO_ME,
    Answer,
    Hello,
    encode_answer,
    encode_hello,
)
from dovetail.swarm.settings import PeerSettings
from swarm.peers import SECOND, Bench, exchanged

ALICE = "192.0.2.1:9"
BOTH = I_RELAY_TO_YOU | YOU_RELAY_TO_ME


class Crowd:
    """Many simulated neighbours that answer every hello and grant every request."""

    def __init__(self, bench: Bench, silent: tuple[str, ...] = ()) -> None:
        self.bench = bench
        self.silent = silent
        self.hellos: list[tuple[str, Hello]] = []

    def run(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            self.answer(self.bench.wait(step))

    def answer(self, sent: list[tuple[str, bytes]]) -> None:
        for to in dict.fromkeys(to for to, _ in sent):
            for hello in exchanged(sent, to, Hello):
                self.hellos.append((to, hello))
                if to not in self.silent:
                    grants = swapped(hello.requested)
                    number = int(to.split(".")[3].split(":")[0])
                    message = encode_answer(Answer(hello.ticket, b"toke", address(number), grants))
                    self.bench.feed(message, to)


def swapped(wishes: int) -> int:
    return (I_RELAY_TO_YOU if wishes & YOU_RELAY_TO_ME else 0) | (YOU_RELAY_TO_ME if wishes & I_RELAY_TO_YOU else 0)


def address(number: int) -> bytes:
    return bytes(19) + bytes([number * 11 % 256])


def endpoint(number: int) -> str:
    return f"192.0.2.{number}:9"


def test_a_peer_seeks_as_many_forward_as_backward_links_on_the_right_sides():
    bench = Bench(bootstrap=[endpoint(number) for number in range(1, 21)])
    Crowd(bench).run(20)
    status = bench.peer.status()
    assert len(status.forward) == len(status.backward) == PeerSettings().forward_links == 5
    for contact in bench.peer._contacts.known:
        assert not contact.is_forward or contact.is_ahead
        assert not contact.is_backward or not contact.is_ahead
    assert len(bench.seen(PeerLinked)) == 10


def test_in_a_small_swarm_one_peer_is_linked_in_both_directions():
    bench = Bench(bootstrap=[endpoint(1)])
    Crowd(bench).run(10)
    status = bench.peer.status()
    assert len(status.forward) == len(status.backward) == 1


def test_nothing_is_granted_before_the_asker_has_shown_a_token():
    bench = Bench()
    (answer,) = exchanged(bench.feed(encode_hello(Hello(b"tick", address(1), BOTH)), ALICE), ALICE, Answer)
    assert (answer.ticket, answer.granted, answer.introductions) == (b"tick", 0, ())
    wrong = Hello(b"tick", address(1), BOTH, b"????")
    (answer,) = exchanged(bench.feed(encode_hello(wrong), ALICE), ALICE, Answer)
    assert answer.granted == 0
    right = Hello(b"tick", address(1), BOTH, answer.token)
    (answer,) = exchanged(bench.feed(encode_hello(right), ALICE), ALICE, Answer)
    assert answer.granted == BOTH


def test_links_beyond_target_and_spare_are_not_granted():
    bench = Bench(peer_settings=PeerSettings(forward_links=2, backward_links=2, spare_links=1))
    for number in range(1, 4):
        bench.link(endpoint(number), number)
    hello = Hello(b"tick", address(9), 0)
    (answer,) = exchanged(bench.feed(encode_hello(hello), endpoint(9)), endpoint(9), Answer)
    wish = Hello(b"tick", address(9), BOTH, answer.token)
    (answer,) = exchanged(bench.feed(encode_hello(wish), endpoint(9)), endpoint(9), Answer)
    assert answer.granted == 0


def test_a_link_that_is_no_longer_wished_ends():
    bench = Bench()
    bench.link(ALICE, 1)
    bench.now += 6_000_000
    bench.feed(encode_hello(Hello(b"tick", b"\x01" * 20, 0)), ALICE)
    assert bench.peer.status().forward == bench.peer.status().backward == []
    assert len(bench.seen(PeerUnlinked)) == 2


def test_a_silent_peer_loses_its_links_and_is_still_asked_now_and_then():
    bench = Bench()
    bench.link(ALICE, 1)
    crowd = Crowd(bench, silent=(ALICE,))
    crowd.run(80, step=0.5)
    assert bench.peer.status().forward == []
    before = len(crowd.hellos)
    crowd.run(60, step=0.5)
    assert 3 <= len(crowd.hellos) - before <= 40


def test_a_backward_link_that_hands_over_nothing_while_others_do_is_ended():
    bench = Bench()
    bench.link(ALICE, 1)
    bench.link(endpoint(2), 2)
    for number in range(10):
        bench.feed(bench.content(b"%d" % number), ALICE)
    Crowd(bench).run(25, step=0.5)
    uris = [contact.endpoint for contact in bench.peer._contacts.backward]
    assert ALICE in uris
    assert endpoint(2) not in uris


def test_an_answer_with_a_foreign_ticket_is_refused():
    bench = Bench(bootstrap=[ALICE])
    bench.wait(0)
    bench.feed(encode_answer(Answer(b"fake", b"toke", address(1), BOTH)), ALICE)
    assert bench.peer.status().refused == {"unknown_ticket": 1}
    assert bench.peer.status().forward == []


def test_answers_that_come_late_or_again_are_counted_and_change_nothing():
    bench = Bench(bootstrap=[ALICE])
    crowd = Crowd(bench, silent=(ALICE,))
    crowd.run(4)
    first, *_, last = [hello for to, hello in crowd.hellos if to == ALICE]
    assert first.ticket != last.ticket
    bench.feed(encode_answer(Answer(first.ticket, b"toke", address(1), BOTH)), ALICE)
    status = bench.peer.status()
    assert (status.late_answers, status.refused, status.forward, status.contacts) == (1, {}, [], 1)
    assert not bench.peer._contacts.find(ALICE).is_validated
    Crowd(bench).run(5)
    (linked,) = bench.peer.status().forward
    tickets = bench.peer._contacts.find(ALICE).past_tickets
    assert len(tickets) <= MAX_PAST_TICKETS
    bench.feed(encode_answer(Answer(tickets[0], b"toke", address(1), 0)), ALICE)
    assert bench.peer.status().forward == [linked]
    assert (bench.peer.status().late_answers, bench.peer.status().refused) == (2, {})


def test_the_answer_to_the_last_hello_is_used_however_late_it_is():
    bench = Bench(bootstrap=[ALICE])
    crowd = Crowd(bench, silent=(ALICE,))
    while len(crowd.hellos) < 4:
        crowd.run(0.1)
    last = crowd.hellos[-1][1]
    while bench.peer._contacts.find(ALICE).unanswered < 4:
        bench.wait(0.1)
    for _ in range(2):
        bench.feed(encode_answer(Answer(last.ticket, b"toke", address(1), BOTH)), ALICE)
    assert bench.peer._contacts.find(ALICE).is_validated
    assert (bench.peer.status().late_answers, bench.peer.status().refused) == (1, {})


def test_one_that_was_silent_for_long_is_asked_for_that_time_and_one_that_was_for_short_is_not():
    bench = Bench(bootstrap=[ALICE])
    crowd = Crowd(bench)
    crowd.run(5)
    contact = bench.peer._contacts.find(ALICE)
    returned = bench.peer._handshake.to_ask
    for silence_s, is_asked in ((LOST_US // SECOND // 2, False), (3 * LOST_US // SECOND, True)):
        contact.watermark_ms = contact.known_until_ms = None
        contact.hello_due_us = bench.now
        began_ms = bench.now // 1000
        crowd.silent = (ALICE,)
        crowd.run(silence_s)
        assert contact.unanswered >= MAX_UNANSWERED
        crowd.silent = ()
        while contact.unanswered:
            crowd.answer(bench.wait(0.01))
            noted = list(returned)
        assert noted == ([contact] if is_asked else [])
    assert began_ms <= contact.known_until_ms + HEARD_MARGIN_MS <= began_ms + 6_000
