"""Two peers with one identity notice each other; an endpoint that leads back to the peer itself is not a conflict."""

from __future__ import annotations

import random

from dovetail.model.hop import Reason, Stage
from dovetail.sim import Boot, ProcessOptions
from dovetail.swarm.contacts import Contacts
from dovetail.swarm.events import IdentityConflict
from dovetail.swarm.handshake import CONFLICT_US, ENOUGH_CONTACTS, MAX_SENT, Handshake
from dovetail.swarm.packet import encode_packet
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import (
    INTRODUCE_OTHERS,
    Answer,
    Hello,
    Introduction,
    encode_answer,
    encode_hello,
)
from dovetail.swarm.settings import PeerSettings
from swarm.peers import Bench, exchanged
from swarm.swarm_world import SwarmWorld

TWIN, ALICE, BOB = "192.0.2.1:9", "192.0.2.2:9", "192.0.2.3:9"
CONFLICT = {str(Reason.DUPLICATE_IDENTITY): 1}


def test_a_hello_with_our_address_is_reported_refused_and_answered():
    bench = Bench()
    (answer,) = exchanged(bench.feed(encode_hello(Hello(b"tick", bench.peer.address, 3)), TWIN), TWIN, Answer)
    assert (answer.ticket, answer.address, answer.granted) == (b"tick", bench.peer.address, 0)
    assert bench.seen(IdentityConflict) == [IdentityConflict(TWIN)]
    bench.assert_refused(Reason.DUPLICATE_IDENTITY)
    assert bench.observed(Stage.REJECTED)[0].counterparts == (f"udp://{TWIN}",)


def test_an_answer_with_our_address_is_reported_and_refused():
    bench = Bench(bootstrap=[TWIN])
    (hello,) = exchanged(bench.wait(0.5), TWIN, Hello)
    bench.feed(encode_answer(Answer(hello.ticket, b"toke", bench.peer.address, 3)), TWIN)
    assert bench.seen(IdentityConflict) == [IdentityConflict(TWIN)]
    bench.assert_refused(Reason.DUPLICATE_IDENTITY)
    assert bench.peer.status().forward == []


def test_a_conflict_is_reported_once_in_a_while_and_counted_each_time():
    bench = Bench()
    for number in range(3):
        bench.feed(encode_hello(Hello(b"%04d" % number, bench.peer.address, 0)), TWIN)
    assert len(bench.seen(IdentityConflict)) == 1
    bench.now += CONFLICT_US
    bench.feed(encode_hello(Hello(b"last", bench.peer.address, 0)), TWIN)
    assert len(bench.seen(IdentityConflict)) == 2
    assert bench.peer.status().refused == {str(Reason.DUPLICATE_IDENTITY): 4}


def test_our_own_hello_that_comes_back_is_no_conflict_and_its_endpoint_is_left_alone():
    bench = Bench(bootstrap=[ALICE])
    (hello,) = exchanged(bench.wait(0.5), ALICE, Hello)
    # the answer to a hello comes from its destination, the hello itself from any address of ours
    assert bench.feed(encode_hello(hello), "198.51.100.9:9") == []
    assert bench.seen(IdentityConflict) == []
    assert bench.peer.status().refused == {}
    bench.peer.publish_solved(bench.content(b"own"), bench.now)
    bench.drain()
    assert [message for to, message in bench.wait(60) if to == ALICE] == []


def test_peers_that_use_one_address_are_introduced_to_each_other():
    bench = Bench()
    bench.link(ALICE, 1)
    token = bench.peer._contacts.find(ALICE).given_token
    bench.link(BOB, 1)
    hello = encode_hello(Hello(b"tick", b"\x01" * 20, 3, token))
    (answer,) = exchanged(bench.feed(hello, ALICE), ALICE, Answer)
    assert answer.introductions == (Introduction(b"\x01" * 20, BOB),)
    asking = encode_hello(Hello(b"tick", b"\x01" * 20, 3 | INTRODUCE_OTHERS, token))
    (answer,) = exchanged(bench.feed(asking, ALICE), ALICE, Answer)
    assert answer.introductions == (Introduction(b"\x01" * 20, BOB),)


def test_an_endpoint_that_is_introduced_with_our_address_is_asked_at_once():
    bench = Bench(bootstrap=[ALICE])
    (hello,) = exchanged(bench.wait(0.5), ALICE, Hello)
    introduction = Introduction(bench.peer.address, TWIN)
    answer = encode_answer(Answer(hello.ticket, b"toke", b"\x01" * 20, 0, (introduction,)))
    assert len(exchanged(bench.feed(answer, ALICE), TWIN, Hello)) == 1


def test_hellos_that_are_recognised_as_our_own_are_bounded():
    contacts = Contacts(bytes(20), "test", random.Random(1), 10**6, 10**6)
    handshake = Handshake(contacts, PeerSettings(), random.Random(2))
    contact = contacts.get_or_add(ALICE, 0)
    for now in range(MAX_SENT + 100):
        handshake.send_hello(contact, now)
    assert len(handshake._sent) == MAX_SENT


def join_twin(swarm: SwarmWorld, name: str, of: str, bootstrap: list[str]) -> None:
    """A peer at its own endpoint, with the key of another one."""
    address = swarm.peer(of).address
    swarm.names.append(name)

    def factory(boot: Boot) -> Peer:
        return Peer(swarm.settings, address, boot.random, boot.now, bootstrap=bootstrap)

    options = ProcessOptions(observer=swarm._observe)
    swarm.world.add_process(name, factory, server=f"swarm://{swarm.settings.name}/{name}", options=options)


def conflicts(swarm: SwarmWorld) -> set[tuple[str, str]]:
    return {(place, event.endpoint) for place, event in swarm.events if isinstance(event, IdentityConflict)}


def test_two_peers_with_one_identity_that_know_only_a_third_one_both_notice():
    swarm = SwarmWorld(3, 4, loss=0.1)
    swarm.run(20)
    join_twin(swarm, "twin", "peer-1", ["peer-0"])
    swarm.run(150)
    assert conflicts(swarm) == {("twin", "peer-1"), ("peer-1", "twin")}


def test_two_peers_with_one_identity_notice_in_a_swarm_where_nobody_asks_for_others():
    swarm = SwarmWorld(5, ENOUGH_CONTACTS + 6)
    swarm.run(60)
    join_twin(swarm, "twin", "peer-1", ["peer-0"])
    swarm.run(150)
    assert conflicts(swarm) == {("twin", "peer-1"), ("peer-1", "twin")}


def test_a_swarm_without_such_peers_reports_none():
    swarm = SwarmWorld(4, 6, loss=0.3)
    swarm.run(200)
    assert conflicts(swarm) == set()


def test_a_peer_that_is_listed_among_its_own_bootstrap_peers_does_not_talk_to_itself():
    bench = Bench(bootstrap=[ALICE])
    own = "203.0.113.5:9"
    sent = []
    for _ in range(300):
        for to, message in bench.wait(0.1):
            sent.append((to, message))
            # it comes back from the endpoint that this peer sends from
            bench.peer.receive_datagrams((encode_packet(message, bench.signer, bench.now // 1000, 1),), own, bench.now)
        sent += bench.drain()
    assert sorted(to for to, _ in sent) == [ALICE, own]
    assert all(message[:2] == b"\x70\x01" for _, message in sent)
