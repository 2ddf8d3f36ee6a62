"""Peers with UEP-12 but no peer exchange: pushed to and pulled from when pinned or proved, bounded until then."""

from __future__ import annotations

import pytest

from dovetail.model.hop import Reason, Stage
from dovetail.sim import Boot
from dovetail.sim.seed_peer import SeedPeer
from dovetail.swarm.contacts import AMPLIFICATION
from dovetail.swarm.content import Content, Reference, message_address
from dovetail.swarm.events import PeerLinked, PeerUnlinked
from dovetail.swarm.fragments import encode_fragments
from dovetail.swarm.neighbours import SILENT_US
from dovetail.swarm.packet import encode_packet
from dovetail.swarm.peer_exchange import INTRODUCE_OTHERS, Answer, Hello, Introduction, encode_answer, encode_hello
from dovetail.swarm.queries import (
    PullHashes,
    PullRange,
    RangeList,
    encode_pull_hashes,
    encode_pull_range,
    encode_range_list,
)
from dovetail.swarm.settings import PeerSettings
from swarm.peers import SECOND, SETTINGS, START, Bench, exchanged, uep12
from swarm.swarm_world import SwarmWorld

SEED = "192.0.2.1:9"
OTHER = "192.0.2.2:9"


def endpoint(number: int) -> str:
    return f"192.0.2.{number}:9"


def content_to(sent: list[tuple[str, bytes]], destination: str) -> list[bytes]:
    return [content.payload for content in uep12(sent, destination, Content)]


def prove(bench: Bench, place: str, *, hashes: tuple[bytes, ...] = ()) -> None:
    """Simulate a plain peer that sends a message and answers the challenge."""
    (challenge,) = uep12(bench.feed(bench.content(b"from " + place.encode()), place), place, PullRange)
    bench.feed(encode_range_list(challenge.ticket, challenge.start_ms, challenge.end_ms, hashes), place)


def prove_and_wait(bench: Bench, *places: str) -> list[tuple[str, bytes]]:
    """Plain peers that prove themselves, and then leave all hellos unanswered."""
    for place in places:
        prove(bench, place)
    return bench.wait(12)


# -- proving the address


def test_a_plain_peer_proves_its_address_by_the_ticket_of_a_time_range_pull():
    bench = Bench()
    prove(bench, SEED)
    assert bench.peer._contacts.find(SEED).is_validated
    assert bench.peer.status().refused == {}


@pytest.mark.parametrize(
    "message",
    [
        lambda bench: bench.content(b"hello"),
        lambda bench: bench.content(bytes(2000)),
        lambda bench: encode_pull_hashes([b"whatever"]),
        lambda bench: encode_pull_range(b"tick", 0, 5),
    ],
    ids=["content", "fragmented content", "pull by hash", "pull by time"],
)
def test_every_message_of_the_seed_is_answered_with_a_challenge(message):
    bench = Bench()
    sent = []
    for datagram in layered(bench, message(bench)):
        sent += bench.feed_raw(datagram, SEED)
    assert len(uep12(sent, SEED, PullRange)) == 1


def layered(bench: Bench, message: bytes) -> list[bytes]:
    return encode_fragments(encode_packet(message, bench.signer, bench.now // 1000, 0))


def test_a_challenge_covers_the_longest_lifetime_and_is_repeated_after_a_pause():
    bench = Bench()
    (first,) = uep12(bench.feed(bench.content(b"a"), SEED), SEED, PullRange)
    now_ms = bench.now // 1000
    assert (first.start_ms, first.end_ms) == (now_ms - SETTINGS.max_ttl_epochs * 60_000, now_ms + 60_000)
    bench.now += 4 * SECOND
    assert uep12(bench.feed(bench.content(b"b"), SEED), SEED, PullRange) == []
    bench.now += SECOND
    (second,) = uep12(bench.feed(bench.content(b"c"), SEED), SEED, PullRange)
    assert second.ticket != first.ticket


def test_a_list_with_another_ticket_proves_nothing_and_one_that_comes_again_is_no_refusal():
    bench = Bench()
    (challenge,) = uep12(bench.feed(bench.content(b"a"), SEED), SEED, PullRange)
    bench.feed(encode_range_list(b"fake", 0, 1, ()), SEED)
    assert not bench.peer._contacts.find(SEED).is_validated
    assert bench.peer.status().refused == {str(Reason.UNKNOWN_TICKET): 1}
    answer = encode_range_list(challenge.ticket, 0, 1, ())
    bench.feed(answer, OTHER)
    assert not bench.peer._contacts.find(OTHER).is_validated
    bench.feed(answer, SEED)
    bench.feed(answer, SEED)
    assert bench.peer._contacts.find(SEED).is_validated
    assert bench.peer.status().refused == {str(Reason.UNKNOWN_TICKET): 2}
    assert bench.peer.status().late_answers == 1


def test_what_the_list_names_and_is_missing_is_pulled():
    bench = Bench()
    prove(bench, SEED, hashes=(b"missing1",))
    (pull,) = uep12(bench.wait(0.5), SEED, PullHashes)
    assert pull.hashes == (b"missing1",)


def test_strangers_cannot_displace_the_tickets_of_our_questions():
    bench = Bench()
    bench.link(OTHER, 1)
    bench.peer._contacts.find(OTHER).knows_us = True
    (question,) = uep12(bench.wait(0.5), OTHER, PullRange)
    for number in range(400):
        bench.feed(bench.content(b"%d" % number), f"198.51.{number // 200}.{number % 200}:9")
    bench.feed(encode_range_list(question.ticket, question.start_ms, question.end_ms, ()), OTHER)
    assert bench.peer.status().refused == {}


# -- the bound for addresses that have proved nothing


@pytest.mark.parametrize("seconds", [1, 60])
def test_an_address_that_has_proved_nothing_is_sent_at_most_three_times_what_came_from_it(seconds):
    bench = Bench()
    bench.link(OTHER, 1)
    for number in range(30):
        bench.feed(bench.content(b"stored %d" % number, age_ms=number), OTHER)
    received, sent_bytes = 0, 0
    for number in range(20):
        for message in (
            encode_pull_range(b"%04d" % number, 0, START // 1000 + 10**6),
            encode_pull_hashes([message_address(bench.content(b"stored 1", age_ms=1))[:8]] * 3),
            bench.content(b"spoofed %d" % number),
        ):
            received += len(message) + 8
            sent = bench.feed(message, SEED) + bench.wait(seconds / 60)
            sent_bytes += sum(len(each) + 8 for to, each in sent if to == SEED)
            assert sent_bytes <= AMPLIFICATION * received
    assert sent_bytes > received


def test_an_address_that_has_proved_nothing_is_served_within_the_bound():
    """A new peer without messages cannot prove itself by a list: it gets what it pulls step by step."""
    bench = Bench()
    bench.link(OTHER, 1)
    stored = [bench.content(b"stored %d" % number, age_ms=number) for number in range(12)]
    for message in stored:
        bench.feed(message, OTHER)
    got: set[bytes] = set()
    for number in range(60):
        sent = bench.feed(encode_pull_range(b"%04d" % number, 0, START // 1000 + 10**6), SEED)
        (listed,) = uep12(sent, SEED, RangeList) or (None,)
        if listed is not None:
            sent += bench.feed(encode_pull_hashes(listed.hashes), SEED)
        got |= {message for to, message in sent if to == SEED and message[1] == 0x10}
        bench.now += SECOND
    assert got
    assert got <= set(stored)


# -- taking part


def test_a_plain_peer_that_proved_its_address_is_relayed_to_and_asked():
    bench = Bench()
    prove_and_wait(bench, SEED)
    assert bench.peer.status().forward == [f"udp://{SEED}"]
    assert [event.peer for event in bench.seen(PeerLinked)] == [f"udp://{SEED}"]
    bench.link(OTHER, 1)
    assert content_to(bench.feed(bench.content(b"news"), OTHER), SEED) == [b"news"]
    forwarded = [one.counterparts for one in bench.observed(Stage.FORWARDED)]
    assert (f"udp://{SEED}",) in forwarded
    assert uep12(bench.wait(40), SEED, PullRange)


def test_a_plain_peer_that_proved_its_address_is_asked_for_what_another_names_and_does_not_give():
    bench = Bench()
    prove_and_wait(bench, SEED)
    bench.link(OTHER, 1)
    missing = message_address(bench.content(b"missing"))[:8]
    bench.feed(bench.content(b"referrer", references=(Reference(missing, 0),)), OTHER)
    asked = [pull.hashes for pull in uep12(bench.wait(30), SEED, PullHashes)]
    assert (missing,) in asked


def test_a_plain_peer_that_proved_its_address_is_served_whole():
    bench = Bench()
    bench.link(OTHER, 1)
    messages = [bench.content(b"%d" % number + bytes(500)) for number in range(9)]
    for message in messages:
        bench.feed(message, OTHER)
    prove(bench, SEED)
    pull = encode_pull_hashes([message_address(message)[:8] for message in messages])
    assert [message for to, message in bench.feed(pull, SEED) if to == SEED] == messages
    (listed,) = uep12(bench.feed(encode_pull_range(b"tick", 0, START // 1000 + 10**6), SEED), SEED, RangeList)
    assert len(listed.hashes) == 10


def test_a_pinned_peer_that_never_answers_a_hello_is_pushed_to_and_asked():
    bench = Bench(bootstrap=[SEED])
    sent = bench.wait(12)
    assert uep12(sent, SEED, PullRange)
    bench.peer.publish_solved(bench.content(b"own"), bench.now)
    assert content_to(bench.drain(), SEED) == [b"own"]
    bench.link(OTHER, 1)
    assert content_to(bench.feed(bench.content(b"relayed"), OTHER), SEED) == [b"relayed"]
    assert not bench.peer._contacts.find(SEED).is_validated


def test_a_pinned_peer_is_served_whole_before_it_proved_anything():
    bench = Bench(bootstrap=[SEED])
    bench.link(OTHER, 1)
    message = bench.content(bytes(1200))
    bench.feed(message, OTHER)
    pull = encode_pull_hashes([message_address(message)[:8]])
    assert content_to(bench.feed(pull, SEED), SEED) == [bytes(1200)]


def test_own_messages_are_pushed_again_to_plain_peers_until_one_lists_them():
    bench = Bench(bootstrap=[SEED])
    bench.wait(12)
    address = bench.peer.publish_solved(bench.content(b"own"), bench.now)
    bench.drain()
    sent = bench.wait(50)
    assert len(content_to(sent, SEED)) >= 3
    question = uep12(sent, SEED, PullRange)[-1]
    bench.feed(encode_range_list(question.ticket, question.start_ms, question.end_ms, (address[:8],)), SEED)
    assert bench.peer.status().unconfirmed == 0


def test_plain_links_are_bounded_but_pinned_peers_have_theirs_besides():
    pinned = [endpoint(number) for number in range(100, 103)]
    bench = Bench(peer_settings=PeerSettings(plain_links=2), bootstrap=pinned)
    prove_and_wait(bench, *[endpoint(number) for number in range(1, 6)])
    bench.wait(10)
    linked = bench.peer.status().forward
    assert set(linked) > {f"udp://{place}" for place in pinned}
    assert len(linked) == 5


def test_plain_links_take_no_room_from_negotiated_ones():
    bench = Bench(peer_settings=PeerSettings(forward_links=1, spare_links=0))
    prove_and_wait(bench, SEED)
    bench.link(OTHER, 1)
    assert len(bench.peer.status().forward) == 2


def test_a_plain_peer_that_falls_silent_is_no_longer_relayed_to_and_then_forgotten():
    bench = Bench()
    prove_and_wait(bench, SEED)
    bench.wait(SILENT_US // SECOND)
    assert bench.peer.status().forward == []
    assert bench.seen(PeerUnlinked)
    bench.wait(600)
    assert bench.peer._contacts.find(SEED) is None


def test_a_plain_peer_that_is_heard_again_is_relayed_to_again():
    bench = Bench()
    prove_and_wait(bench, SEED)
    bench.wait(SILENT_US // SECOND + 5)
    assert bench.peer.status().forward == []
    bench.feed(bench.content(b"back"), SEED)
    bench.wait(10)
    assert bench.peer.status().forward == [f"udp://{SEED}"]


def test_a_peer_that_answers_a_hello_after_all_is_plain_no_longer():
    bench = Bench()
    sent = prove_and_wait(bench, SEED)
    while not (hellos := exchanged(sent, SEED, Hello)):
        sent = bench.wait(10)
        bench.feed(bench.content(str(bench.now).encode()), SEED)
    bench.feed(encode_answer(Answer(hellos[-1].ticket, b"toke", b"\x01" * 20, 0)), SEED)
    contact = bench.peer._contacts.find(SEED)
    assert (contact.is_plain, contact.is_forward, contact.speaks_exchange) == (False, False, True)


def test_an_endpoint_that_was_only_introduced_and_never_answers_is_not_plain():
    bench = Bench(bootstrap=[OTHER])
    hellos = exchanged(bench.wait(1), OTHER, Hello)
    introduction = Introduction(b"\x09" * 20, SEED)
    bench.feed(encode_answer(Answer(hellos[-1].ticket, b"toke", b"\x01" * 20, 0, (introduction,))), OTHER)
    assert bench.peer._contacts.find(SEED) is not None
    sent = bench.wait(20)
    assert exchanged(sent, SEED, Hello)
    assert uep12(sent, SEED, PullRange) == []
    assert bench.peer._contacts.find(SEED) is None


def test_plain_peers_are_not_introduced_to_others():
    bench = Bench()
    prove_and_wait(bench, SEED)
    bench.link(OTHER, 1)
    (answer,) = exchanged(bench.feed(encode_hello_that_asks(bench), OTHER), OTHER, Answer)
    assert answer.introductions == ()


def encode_hello_that_asks(bench: Bench) -> bytes:
    token = bench.peer._contacts.find(OTHER).given_token
    return encode_hello(Hello(b"tick", b"\x01" * 20, INTRODUCE_OTHERS, token))


# -- in a world


def add_seed_peer(swarm: SwarmWorld, name: str, neighbours: list[str]) -> None:
    swarm.names.append(name)

    def factory(boot: Boot) -> SeedPeer:
        return SeedPeer(swarm.settings, neighbours, boot.random, boot.now)

    swarm.world.add_process(name, factory, server=f"swarm://{swarm.settings.name}/{name}")


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_peer_that_speaks_only_the_seed_gets_and_gives_every_message(loss, is_pinned):
    swarm = SwarmWorld(7, 0, loss=loss)
    if is_pinned:
        add_seed_peer(swarm, "seed", [])
        swarm.bootstrap = ["seed"]
    swarm.join("first")
    swarm.bootstrap = None
    for _ in range(3):
        swarm.join()
    if not is_pinned:
        add_seed_peer(swarm, "seed", ["first"])
    swarm.run(10)
    for _ in range(8):
        swarm.publish("seed")
        swarm.publish("first")
        swarm.run(1)
    swarm.run(60)
    held = [swarm.world.processes[name].core.addresses() for name in swarm.names]
    assert len(swarm.published) == 16
    assert all(addresses >= set(swarm.published) for addresses in held)


def test_a_new_peer_that_speaks_only_the_seed_gets_the_past():
    swarm = SwarmWorld(3, 3)
    swarm.run(10)
    for _ in range(40):
        swarm.publish(swarm.names[0])
        swarm.run(0.1)
    add_seed_peer(swarm, "seed", [swarm.names[0]])
    swarm.run(60)
    assert swarm.world.processes["seed"].core.addresses() >= set(swarm.published)
