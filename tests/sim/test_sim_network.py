"""Datagrams between processes: delay, loss, duplication, order, partitions."""

from itertools import pairwise

import pytest
from sim_cores import add, send

from dovetail.model.errors import LocalProtocolError
from dovetail.sim import SECOND_US, Link, World
from dovetail.sim.network import MAX_DATAGRAM_BYTES

MANY = 4000


def world_with(link, *names, seed=1):
    world = World(seed, link=link)
    for name in names or ("a", "b"):
        add(world, name)
    return world


def send_many(world, count=MANY, gap_us=1000):
    for number in range(count):
        send(world, "a", ("b", number.to_bytes(4)), after_us=number * gap_us)
    world.run(3600 * SECOND_US)
    return [(now, int.from_bytes(data)) for now, _, data in world.processes["b"].core.received]


def assert_about(share, expected):
    # four standard deviations of a binomial share of MANY
    assert abs(share - expected) < 4 * (expected * (1 - expected) / MANY) ** 0.5


def test_latency_is_drawn_from_its_whole_range():
    got = send_many(world_with(Link(latency_us=(100, 200))), gap_us=1000)
    start = World(1).now
    delays = [now - start - number * 1000 for now, number in got]
    assert len(got) == MANY
    assert (min(delays), max(delays)) == (100, 200)
    assert abs(sum(delays) / MANY - 150) < 5


def test_without_reordering_the_order_is_kept_whatever_the_latency():
    got = send_many(world_with(Link(latency_us=(0, 500_000))), gap_us=10)
    assert [number for _, number in got] == list(range(MANY))


def test_share_of_loss():
    world = world_with(Link(loss=0.3))
    got = send_many(world)
    assert_about(1 - len(got) / MANY, 0.3)
    assert world.network.counts.lost == MANY - len(got)
    assert world.network.counts.sent == MANY


def test_share_of_duplicates_which_never_come_first():
    world = world_with(Link(duplicate=0.2))
    numbers = [number for _, number in send_many(world)]
    assert_about(len(numbers) / MANY - 1, 0.2)
    assert world.network.counts.duplicated == len(numbers) - MANY
    assert list(dict.fromkeys(numbers)) == list(range(MANY))


def test_share_of_reordering():
    world = world_with(Link(latency_us=(10, 10), reorder=0.1, reorder_us=100_000))
    numbers = [number for _, number in send_many(world, gap_us=50)]
    assert sorted(numbers) == list(range(MANY))
    overtaken = sum(later < earlier for earlier, later in pairwise(numbers))
    assert_about(world.network.counts.reordered / MANY, 0.1)
    assert overtaken > MANY * 0.05


def test_another_seed_has_other_luck_and_the_same_seed_the_same():
    first, again, other = (send_many(world_with(Link(loss=0.5), seed=seed), 200) for seed in (1, 1, 2))
    assert first == again
    assert {number for _, number in first} != {number for _, number in other}


def test_a_new_place_does_not_shift_the_luck_of_others():
    alone = send_many(world_with(Link(loss=0.5)), 200)
    world = world_with(Link(loss=0.5), "0", "a", "aa", "b", "c")
    for number in range(200):
        send(world, "c", ("b", b""), ("a", b""), after_us=number * 777)
        send(world, "a", ("c", b""), ("0", b""), after_us=number * 777)
    send_many(world, 200)
    from_a = [(now, int.from_bytes(data)) for now, sender, data in world.processes["b"].core.received if sender == "a"]
    assert from_a == alone


def test_each_direction_of_each_pair_has_its_own_luck():
    world = world_with(Link(loss=0.5), "a", "b", "c")
    for number in range(64):
        send(world, "a", ("b", bytes([number])), ("c", bytes([number])))
        send(world, "b", ("c", bytes([number])))
    world.run(SECOND_US)

    def luck(source, destination):
        return [data for _, sender, data in world.processes[destination].core.received if sender == source]

    assert luck("a", "b") != luck("a", "c") != luck("b", "c")


def test_partition_swallows_what_is_sent_meanwhile_only():
    world = world_with(Link(latency_us=(1000, 1000)), "a", "b", "c")
    send(world, "a", ("b", b"under way"))
    world.run(500)
    cut = world.partition([["a"], ["b"]])
    send(world, "a", ("b", b"cut"), ("c", b"cut: c is in neither group"))
    send(world, "c", ("b", b"cut too"))
    world.run(5000)
    world.heal(cut)
    send(world, "a", ("b", b"healed"))
    world.run(5000)
    assert [data for _, _, data in world.processes["b"].core.received] == [b"under way", b"healed"]
    assert world.processes["c"].core.received == []
    assert world.network.counts.cut == 3


def test_places_of_one_side_and_those_named_nowhere_reach_each_other():
    world = world_with(Link(), "a", "b", "c", "d")
    world.partition([["a", "b"]])
    send(world, "a", ("b", b"same side"))
    send(world, "c", ("d", b"the rest"), ("a", b"cut"))
    world.run(SECOND_US)
    assert [len(world.processes[name].core.received) for name in "abd"] == [0, 1, 1]


def test_each_partition_is_healed_by_itself():
    world = world_with(Link(), "a", "b", "c")
    first = world.partition([["a"]])
    second = world.partition([["b"]])
    world.heal(first)
    assert not world.network.is_cut("a", "c")
    assert world.network.is_cut("a", "b")
    world.heal(second)
    assert not world.network.is_cut("a", "b")
    world.partition([["a"]])
    world.partition([["c"]])
    world.heal()
    assert not world.network.is_cut("a", "c")


def test_partition_of_a_stranger_is_refused():
    with pytest.raises(LocalProtocolError, match="'x'"):
        world_with(Link()).partition([["x"]])


def test_one_direction_of_one_pair_can_be_overridden():
    world = world_with(Link(latency_us=(10, 10)))
    world.network.set_link("a", "b", Link(loss=1.0))
    send(world, "a", ("b", b"lost"))
    send(world, "b", ("a", b"arrives"))
    world.run(SECOND_US)
    assert world.processes["b"].core.received == []
    assert [data for _, _, data in world.processes["a"].core.received] == [b"arrives"]


def test_weather_rules_over_all_links_until_it_ends():
    world = world_with(Link(latency_us=(10, 10)))
    world.network.set_link("a", "b", Link(latency_us=(20, 20)))

    def arrival():
        sent_at = world.now
        send(world, "a", ("b", b""))
        world.run(SECOND_US)
        return world.processes["b"].core.received[-1][0] - sent_at

    assert arrival() == 20
    storm = world.network.add_weather(Link(latency_us=(700, 700)))
    worse = world.network.add_weather(Link(latency_us=(900, 900)))
    assert arrival() == 900
    world.network.end_weather(worse)
    assert arrival() == 700
    world.network.end_weather(storm)
    assert arrival() == 20


def test_datagram_to_nobody_is_counted_and_gone():
    world = world_with(Link())
    send(world, "a", ("nobody", b""))
    world.run(SECOND_US)
    assert world.network.counts.unroutable == 1


def test_datagram_beyond_udp_is_an_error_of_ours():
    world = world_with(Link())
    send(world, "a", ("b", bytes(MAX_DATAGRAM_BYTES + 1)))
    with pytest.raises(LocalProtocolError, match="65508 bytes"):
        world.run(SECOND_US)


@pytest.mark.parametrize(
    "fields", [{"latency_us": (5, 4)}, {"latency_us": (-1, 4)}, {"loss": 1.1}, {"duplicate": -0.1}, {"reorder_us": -1}]
)
def test_link_that_cannot_be_is_refused(fields):
    with pytest.raises(ValueError, match="expected"):
        Link(**fields)
