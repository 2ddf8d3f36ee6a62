"""The world as a whole."""

import pytest
from sim_cores import Mailbox, add, note, send

from dovetail.model.errors import LocalProtocolError
from dovetail.sim import SECOND_US, CrashPoint, MemoryJournal, ProcessOptions, World


def test_time_starts_at_a_fixed_instant_and_moves_only_in_run():
    world = World(1)
    assert world.now == 1_767_225_600_000_000
    assert world.run(5)
    assert world.now == 1_767_225_600_000_005
    assert World(1, start_us=7).now == 7


def test_names_are_unique():
    world = World(1)
    add(world, "a")
    with pytest.raises(LocalProtocolError, match="'a'"):
        add(world, "a")


def test_appends_are_counted_from_one():
    world = World(1)
    add(world, "a")
    with pytest.raises(LocalProtocolError, match="append 0"):
        world.crash_on_append("a", 0, CrashPoint.AFTER_COMMIT)


def test_observer_may_ask_for_more_and_gets_it_in_a_later_turn():
    world = World(1)
    log = []

    def observe(place, event, now):
        log.append((event, world.processes[place].journal.size))
        if event == "first":
            world.command(place, lambda core, now: core.tell("second", note("y", now)))

    add(world, "a", observer=observe)
    world.command("a", lambda core, now: core.tell(note("x", now), "first"))
    world.run(SECOND_US)
    assert log == [("first", 1), ("second", 2)]


def test_schedule_is_in_order_of_time():
    world = World(1)
    happened = []
    world.schedule(20, lambda: happened.append("later"))
    world.schedule(10, lambda: happened.append("sooner"))
    world.run(15)
    assert happened == ["sooner"]
    world.run(15)
    assert happened == ["sooner", "later"]


def test_error_in_a_core_says_in_which_world_it_was():
    world = World(42)
    add(world, "a")
    world.command("a", lambda core, now: 1 // 0, after_us=9)
    with pytest.raises(ZeroDivisionError) as caught:
        world.run(SECOND_US)
    assert caught.value.__notes__ == ["in the world of seed 42, 9 us after its start"]


def test_journals_are_opened_by_the_factory_at_each_life_and_closed_at_its_end():
    log = []

    class Disk(MemoryJournal):
        def close(self):
            log.append(("close", self.server))

    disks = {}

    def open_journal(place, server):
        log.append(("open", server))
        return disks.setdefault(place, Disk(server))

    world = World(1, journal_factory=open_journal)
    world.add_process("a", lambda boot: Mailbox(), server="https://a/won", options=ProcessOptions(commit_us=(0, 0)))
    world.command("a", lambda core, now: core.tell(note("x", now)))
    world.run(1)
    world.crash("a")
    assert log == [("open", "https://a/won"), ("close", "https://a/won")]
    [hop] = world.hops()["a"]
    assert (hop.server, hop.fabric) == ("https://a/won", "won")
    assert log[2:] == [("open", "https://a/won"), ("close", "https://a/won")]
    world.restart("a")
    world.close()
    assert log[4:] == [("open", "https://a/won"), ("close", "https://a/won")]


def test_digests_follow_the_journals():
    def digests(text):
        world = World(1)
        add(world, "a")
        add(world, "b")
        world.command("b", lambda core, now: core.tell(note(text, now)))
        world.run(1)
        return world.digests()

    assert digests("x") == digests("x")
    assert digests("x")["a"] == digests("y")["a"]
    assert digests("x")["b"] != digests("y")["b"]


def test_a_datagram_core_hears_nothing_of_streams_and_the_world_goes_on():
    world = World(1)
    add(world, "a")
    world.add_process("b", lambda boot: Mailbox(), server="swarm://test/b")
    send(world, "a", ("b", b"x"))
    assert world.run(SECOND_US)
    assert len(world.processes["b"].core.received) == 1
