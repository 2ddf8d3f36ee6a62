"""Whole swarms in the simulated world, from seeds; the long ones run in `make soak`."""

from __future__ import annotations

import hashlib

import pytest

from dovetail.model.hop import Stage
from dovetail.sim import SECOND_US
from dovetail.swarm.content import Content, message_address
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.peer import Peer
from dovetail.swarm.settings import SwarmSettings
from swarm.peers import solved
from swarm.swarm_world import SETTINGS, SwarmWorld
from swarm.sybil import Sybil

pytestmark = pytest.mark.exhaustive

WARM_UP = 20


def settled(seed: int, peers: int, **options) -> SwarmWorld:
    world = SwarmWorld(seed, peers, **options)
    world.run(WARM_UP)
    return world


def assert_converges(world: SwarmWorld, within: float) -> None:
    assert world.seconds_to_converge(within) < within


def assert_nothing_expired_was_served(world: SwarmWorld) -> None:
    for name in world.names:
        expires = {}
        for hop in world.world.processes[name].hops():
            if hop.raw is not None and hop.stage in (Stage.ACCEPTED, Stage.CREATED):
                timestamp = int.from_bytes(hop.raw[11:17], "little")
                ttl = int.from_bytes(hop.raw[17:19], "little") or 1
                expires[hop.message] = (timestamp + ttl * world.settings.epoch_ms) * 1000
            if hop.stage in (Stage.SERVED, Stage.FORWARDED):
                assert hop.at_us < expires[hop.message]


@pytest.mark.parametrize("seed", [1, 2])
def test_20_peers_at_30_percent_loss_converge(seed):
    world = settled(seed, 20, loss=0.3)
    world.traffic(20)
    assert_converges(world, 15)
    assert world.share_within(1) >= 0.98


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_new_peer_gets_all_of_a_millisecond_with_more_messages_than_fit_any_list(loss):
    """None of them refers to another, so only lists can name them."""
    world = settled(1, 3, loss=loss)

    def receive_all(peer: Peer, now: int) -> None:
        for number in range(700):
            content = Content(timestamp_ms=now // 1000, ttl_epochs=60, payload=b"%d" % number)
            message = solved(SETTINGS, content)
            world.published[message_address(message)] = now
            packet = encode_packet(message, SwarmSigner(SETTINGS.key), now // 1000, 0)
            peer.receive_datagrams((packet,), "elsewhere", now)

    world.world.command(world.names[0], receive_all)
    world.run(5)
    world.join("late")
    assert_converges(world, 60)
    assert len(world.peer("late").addresses()) == 700


def test_the_same_seed_gives_the_same_journals():
    def digests(seed: int) -> dict[str, str]:
        world = settled(seed, 8, loss=0.2)
        world.traffic(5)
        world.run(5)
        return world.world.digests()

    assert digests(3) == digests(3)
    assert digests(3) != digests(4)


def test_a_partition_heals():
    world = settled(5, 20, loss=0.1)
    cut = world.world.partition([world.names[:10], world.names[10:]])
    world.traffic(30)
    assert not world.is_converged()
    world.world.heal(cut)
    assert_converges(world, 30)


@pytest.mark.parametrize("seed", range(3))
def test_two_parts_that_have_forgotten_each_other_get_all_that_was_published_while_they_were_apart(seed):
    """All know only one peer, for 30 minutes it is cut off with half of them, and no one publishes afterwards."""
    world = settled(seed, 12, loss=0.1, bootstrap=["peer-0"])
    cut = world.world.partition([world.names[:6], world.names[6:]])
    for name in ("peer-2", "peer-8", "peer-9"):
        world.publish(name)
        world.run(20)
    world.run(1740)
    # the one known to all has long forgotten the others
    known = {contact.endpoint for contact in world.peer("peer-0")._contacts.known}
    assert not known & set(world.names[6:])
    assert not world.is_converged()
    world.world.heal(cut)
    assert_converges(world, 180)


def test_a_joining_peer_gets_everything_unexpired_and_does_not_repeat_it():
    world = settled(6, 10, loss=0.1)
    world.traffic(20, per_second=20)
    assert_converges(world, 15)
    name = world.join()
    assert_converges(world, 30)
    joined = world.peer(name).status()
    assert joined.messages == 400
    assert joined.sent_bytes["relay"] < 100_000


def test_a_crashed_peer_has_everything_back_from_its_journal_and_catches_up():
    world = settled(7, 10, loss=0.1)
    world.traffic(10)
    world.run(3)
    held = world.peer("peer-3").addresses()
    world.world.crash("peer-3", restart_after_us=5 * SECOND_US)
    world.traffic(4)
    world.run(1.001)
    assert held <= world.peer("peer-3").addresses()
    assert_converges(world, 30)


def test_clocks_that_are_off_by_twenty_seconds():
    skews = [(-20, 20, 0, -10, 10)[number % 5] * SECOND_US for number in range(20)]
    world = settled(8, 20, loss=0.1, skews_us=skews)
    world.traffic(20)
    assert_converges(world, 30)


def test_a_clock_that_is_an_hour_ahead_and_set_right_again_costs_nothing_in_the_end():
    world = settled(12, 10, loss=0.1)
    world.traffic(10)
    assert_converges(world, 15)
    world.world.jump_clock("peer-4", 3_700 * SECOND_US)
    world.traffic(10)
    assert world.peer("peer-4").addresses() == set()
    world.world.jump_clock("peer-4", -3_700 * SECOND_US)
    assert_converges(world, 40)


def test_expired_messages_leave_every_peer_and_are_never_served():
    settings = SwarmSettings(name="short", work=2, epoch_ms=5_000, max_ttl_epochs=2)
    world = settled(9, 10, loss=0.2, settings=settings)
    for _ in range(20):
        world.publish(ttl_epochs=1)
        world.run(1)
    world.run(15)
    assert all(peer.addresses() == set() for peer in world.peers)
    assert_nothing_expired_was_served(world)


def test_ttl_0_reaches_most_and_stays_nowhere():
    world = settled(10, 20)
    world.publish(ttl_epochs=0)
    world.run(2)
    (arrived,) = world.arrivals.values()
    assert len(arrived) == 20
    assert all(peer.addresses() == set() for peer in world.peers)


def quiet(seed: int, peers: int) -> SwarmWorld:
    """A world at 30 % loss where all have everything and no one publishes, so no new message refers to another."""
    world = settled(seed, peers, loss=0.3)
    world.traffic(20)
    assert_converges(world, 15)
    world.run(10)
    return world


def assert_a_message_reaches_all_without_its_first_pushes(seed: int, peers: int, silent_s: float) -> None:
    """For `silent_s` all copies of one message are lost, and for 10 s more all those to two peers of three."""
    world = quiet(seed, peers)
    unlucky, start = set(world.names[peers // 3 :]), world.world.now
    payload = world.publish("peer-1")

    def is_lost(_: str, destination: str, data: bytes) -> bool:
        waited_s = (world.world.now - start) / SECOND_US
        return payload in data and waited_s < silent_s + (10 if destination in unlucky else 0)

    world.is_lost = is_lost
    world.run(silent_s + 10)
    assert not unlucky & set(world.arrivals[list(world.published)[-1]])
    assert_converges(world, 30)


def assert_a_message_reaches_all_after_two_partitions(seed: int, peers: int) -> None:
    """It reaches one half of the swarm 40 s after it was composed, while the other half is unreachable."""
    world = quiet(seed, peers)
    first = world.world.partition([["peer-1"]])
    world.publish("peer-1")
    world.run(40)
    second = world.world.partition([world.names[peers // 2 :]])
    world.world.heal(first)
    world.run(15)
    assert not set(world.names[peers // 2 :]) & set(world.arrivals[list(world.published)[-1]])
    world.world.heal(second)
    assert_converges(world, 30)


@pytest.mark.parametrize("silent_s", [0.9, 5, 40])
def test_a_message_whose_first_pushes_are_all_lost_reaches_all(silent_s):
    assert_a_message_reaches_all_without_its_first_pushes(31, 20, silent_s)


@pytest.mark.parametrize("seed", range(4))
def test_a_message_that_comes_late_to_those_who_answer_is_not_overlooked(seed):
    assert_a_message_reaches_all_after_two_partitions(seed, 20)


def sybil_world(seed: int, honest: int, ratio: int) -> SwarmWorld:
    world = SwarmWorld(seed, honest, loss=0.1)
    victims = list(world.names)
    kind = [
        (hashlib.sha256(f"sybil {number}".encode()).digest()[:20], f"sybil-{number}")
        for number in range(ratio * honest)
    ]
    for address, name in kind:

        def factory(boot, address=address):
            return Sybil(world.settings, address, boot.random, boot.now, victims, kind)

        world.world.add_process(name, factory, server=f"swarm://sim/{name}")
    world.run(WARM_UP)
    return world


def test_sybils_at_20_to_1_that_relay_nothing_do_not_keep_honest_peers_apart():
    world = sybil_world(11, 10, 20)
    world.traffic(30)
    assert_converges(world, 60)


# -- make soak


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_50_peers_at_30_percent_loss_converge_within_15_seconds_in_20_of_20_runs():
    for seed in range(20):
        world = settled(seed, 50, loss=0.3)
        before = world.bytes_by_purpose()
        world.traffic(60)
        assert_converges(world, 15)
        repair = world.bytes_by_purpose()["repair"] - before["repair"]
        assert repair <= 0.3 * world.ideal_bytes()
        assert world.share_within(1) >= 0.99


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("silent_s", [0.9, 5, 40])
def test_a_message_whose_first_pushes_are_all_lost_reaches_all_of_50_in_20_of_20_runs(silent_s):
    for seed in range(20):
        assert_a_message_reaches_all_without_its_first_pushes(seed, 50, silent_s)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_message_that_comes_late_reaches_all_of_50_in_20_of_20_runs():
    for seed in range(20):
        assert_a_message_reaches_all_after_two_partitions(seed, 50)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_200_peers_at_30_percent_loss(seed):
    world = settled(seed, 200, loss=0.3)
    before = world.bytes_by_purpose()
    world.traffic(60)
    assert_converges(world, 20)
    assert world.bytes_by_purpose()["repair"] - before["repair"] <= 0.3 * world.ideal_bytes()
    assert world.share_within(1) >= 0.99


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_200_peers_after_a_partition_of_60_seconds(seed):
    world = settled(seed, 200, loss=0.3)
    cut = world.world.partition([world.names[::2], world.names[1::2]])
    world.traffic(60)
    world.world.heal(cut)
    assert_converges(world, 30)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_churn_of_10_percent_a_minute():
    world = settled(1, 50, loss=0.1)
    for minute in range(3):
        for number in range(5):
            victim = world.names[(minute * 17 + number * 7) % 50]
            if world.world.processes[victim].is_up:
                world.world.crash(victim, restart_after_us=30 * SECOND_US)
            world.join()
            world.traffic(12)
    world.run(31)
    assert_converges(world, 30)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_50_peers_with_clocks_off_by_plus_or_minus_20_seconds(seed):
    settings = SwarmSettings(name="sim", work=2, max_ttl_epochs=SETTINGS.max_ttl_epochs, slot_slack=3)
    skews = [(-20, 20)[number % 2] * SECOND_US for number in range(50)]
    world = settled(seed, 50, loss=0.3, skews_us=skews, settings=settings)
    world.traffic(60)
    assert_converges(world, 30)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_20_honest_peers_among_400_sybils(seed):
    world = sybil_world(seed, 20, 20)
    world.traffic(60)
    assert_converges(world, 60)
