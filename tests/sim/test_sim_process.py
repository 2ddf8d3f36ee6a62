"""A process's turn: journal before send, crashes at every boundary, pause, full disk, timers, clocks."""

import pytest
from sim_cores import Mailbox, add, note, send

from dovetail.model.errors import JournalFull, LocalProtocolError, UsageError
from dovetail.sim import SECOND_US, CrashPoint, Link, MemoryJournal, ProcessOptions, World
from dovetail.sim.damage import Damage
from dovetail.sim.journal import RETRY_US
from dovetail.sim.process import MAX_WAITING_DATAGRAMS

LINK = Link(latency_us=(1000, 1000))


def journaling_echo():
    return Mailbox(is_journaling=True, echo=True)


def crash_world(point, *, observed=None):
    """a asks b, which journals and answers four times; b crashes in that turn."""
    world = World(1, link=LINK)
    add(world, "a")
    observer = None if observed is None else lambda place, event, now: observed.append(event)
    add(world, "b", Mailbox, observer=observer)
    world.command("b", lambda core, now: (core.tell(note("kept", now), "told"), core.send(*[("a", b"x")] * 4)))
    world.crash_on_append("b", 1, point, restart_after_us=SECOND_US)
    world.run(10 * SECOND_US)
    return world


@pytest.mark.parametrize(
    ("point", "hops", "sent", "told"),
    [
        (CrashPoint.BEFORE_COMMIT, 0, 0, []),
        (CrashPoint.AFTER_COMMIT, 1, 0, []),
        (CrashPoint.MID_SEND, 1, 2, []),
        (CrashPoint.AFTER_SEND, 1, 4, []),
    ],
)
def test_crash_point_decides_what_is_left(point, hops, sent, told):
    observed = []
    world = crash_world(point, observed=observed)
    assert len(world.hops()["b"]) == hops
    assert len(world.processes["a"].core.received) == sent
    assert observed == told
    assert world.processes["b"].is_up
    assert world.processes["b"].life == 1


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_disk_that_fails_ends_the_process_which_starts_again(durability):
    world = World(1, link=LINK)
    add(world, "a")
    add(world, "b", Mailbox, durability=durability)
    world.fail_disk("b")
    for text in ("lost", "kept"):
        world.command("b", lambda core, now, text=text: (core.tell(note(text, now)), core.send(("a", b"x"))))
        world.run(5 * SECOND_US)
    assert [hop.raw for hop in world.hops()["b"]] == [b"kept"]
    assert world.processes["b"].life == 1
    assert len(world.processes["a"].core.received) == (1 if durability == "full" else 2)


def test_a_slow_disk_delays_what_is_sent_and_loses_nothing():
    world = World(1, link=LINK)
    add(world, "a")
    add(world, "b", Mailbox)
    world.slow_disk("b", 3 * SECOND_US, SECOND_US)
    world.command("b", lambda core, now: (core.tell(note("kept", now)), core.send(("a", b"x"))))
    world.run(2 * SECOND_US)
    assert not world.processes["a"].core.received
    world.run(2 * SECOND_US)
    assert len(world.processes["a"].core.received) == len(world.hops()["b"]) == 1


def test_damage_needs_journals_in_files():
    world = World(1)
    add(world, "a")
    with pytest.raises(UsageError, match="in memory"):
        world.damage_disk("a", Damage.FLIPPED)


def test_turn_is_feed_journal_send_tell_arm():
    order = []

    class Noting(Mailbox):
        def receive_datagram(self, data, sender, now):
            order.append("feed")
            self.tell("event", note("x", now))
            self.send(("a", b""))

        def to_send(self):
            order.append("send")
            return super().to_send()

        def next_timer(self):
            order.append("arm")

    class Noted(MemoryJournal):
        def append(self, observations, /):
            order.append("journal")
            return super().append(observations)

    world = World(1, link=LINK, journal_factory=lambda place, server: Noted(server))
    add(world, "a")
    add(world, "b", Noting, observer=lambda *_: order.append("tell"))
    world.run(1)
    order.clear()
    send(world, "a", ("b", b""))
    world.run(SECOND_US)
    assert order == ["feed", "journal", "send", "tell", "arm"]


def test_process_that_its_observer_crashes_is_told_nothing_more():
    told = []

    def observe(name, event, now):
        told.append(event)
        world.crash(name, restart_after_us=1)

    world = World(1, link=LINK)
    place = add(world, "b", observer=observe)
    world.command("b", lambda core, now: core.tell(note("x", now), "first", "second"))
    world.run(SECOND_US)
    assert (place.journal.size, place.counts.crashes, told) == (1, 1, ["first"])


def test_inputs_behind_a_command_that_crashes_the_place_are_gone():
    world = World(1, link=LINK)
    add(world, "a")
    place = add(world, "b")
    world.pause("b", SECOND_US)
    world.command("b", lambda core, now: (world.crash("b"), world.restart("b")))
    send(world, "a", ("b", b"behind"))
    world.run(2 * SECOND_US)
    assert (place.life, place.core.received) == (1, [])


def test_all_observations_of_a_turn_are_one_append():
    world = World(1)
    place = add(world, "a")
    world.command("a", lambda core, now: core.tell(note("x", now), note("y", now)))
    world.run(1)
    assert (place.disk.appends, place.journal.size) == (1, 2)


def test_core_is_rebuilt_from_its_journal_with_other_luck():
    boots = []

    def factory(boot):
        boots.append((boot.life, boot.now, [hop.raw for hop in boot.journal.hops()], boot.random.random()))
        return Mailbox()

    world = World(1)
    start = world.now
    world.add_process("a", factory, server="swarm://test/a", options=ProcessOptions(commit_us=(0, 0)))
    world.command("a", lambda core, now: core.tell(note("x", now)))
    world.schedule(10, lambda: world.crash("a", restart_after_us=5))
    world.run(SECOND_US)
    assert [boot[:3] for boot in boots] == [(0, start, []), (1, start + 15, [b"x"])]
    assert boots[0][3] != boots[1][3]


def test_what_comes_while_a_place_is_down_is_missed():
    world = World(1, link=LINK)
    add(world, "a")
    add(world, "b")
    world.crash("b")
    send(world, "a", ("b", b"early"))
    send(world, "b", ("a", b"no core to ask"))
    world.run(SECOND_US)
    world.restart("b")
    send(world, "a", ("b", b"late"))
    world.run(SECOND_US)
    assert [data for _, _, data in world.processes["b"].core.received] == [b"late"]
    assert world.processes["b"].counts.missed == 2


def test_crash_of_a_dead_place_and_a_stale_restart_change_nothing():
    world = World(1)
    place = add(world, "a")
    world.crash("a", restart_after_us=SECOND_US)
    world.crash("a", restart_after_us=1)
    world.run(2)
    assert not place.is_up
    world.restart("a")
    world.restart("a")
    world.crash("a")
    world.run(2 * SECOND_US)
    assert not place.is_up, "the first crash's restart is not for the second"
    assert (place.counts.crashes, place.life) == (2, 1)


def test_dead_places_timer_does_not_fire_in_the_next_life():
    world = World(1)
    place = add(world, "a")
    world.command("a", lambda core, now: core.timers_us.append(now + 100))
    world.schedule(50, lambda: world.crash("a", restart_after_us=1))
    world.run(SECOND_US)
    assert place.core.fired == []


def test_paused_place_takes_everything_in_one_turn_when_it_goes_on():
    world = World(1, link=LINK)
    add(world, "a")
    place = add(world, "b", journaling_echo)
    start = world.now
    world.command("b", lambda core, now: core.timers_us.append(now + 5000))
    world.schedule(1, lambda: world.pause("b", SECOND_US))
    for number in range(3):
        send(world, "a", ("b", bytes([number])), after_us=10 + number)
    world.run(SECOND_US // 2)
    assert place.core.received == []
    world.run(SECOND_US)
    resumed = start + 1 + SECOND_US
    assert place.core.received == [(resumed, "a", bytes([number])) for number in range(3)]
    assert place.core.fired == [(resumed, [start + 5000])], "late, and once"
    assert place.disk.appends == 1
    assert len(world.processes["a"].core.received) == 3


def test_longer_pause_wins_and_a_crash_ends_it():
    world = World(1, link=LINK)
    add(world, "a")
    place = add(world, "b")
    world.pause("b", 2 * SECOND_US)
    world.pause("b", SECOND_US)
    send(world, "a", ("b", b"1"))
    world.run(3 * SECOND_US // 2)
    assert place.core.received == []
    world.crash("b", restart_after_us=1)
    world.run(10)
    world.pause("b", 5_000)
    send(world, "a", ("b", b"2"))
    world.run(10_000)
    assert [data for _, _, data in place.core.received] == [b"2"]


def test_paused_places_buffer_is_bounded():
    world = World(1, link=LINK)
    add(world, "a")
    place = add(world, "b")
    world.pause("b", SECOND_US)
    send(world, "a", *[("b", b"")] * (MAX_WAITING_DATAGRAMS + 5))
    world.run(2 * SECOND_US)
    assert len(place.core.received) == MAX_WAITING_DATAGRAMS
    assert place.counts.overflowed == 5


def test_full_disk_holds_back_the_turn_and_all_input_until_there_is_room():
    world = World(1, link=LINK)
    add(world, "a")
    place = add(world, "b", journaling_echo)
    world.fill_disk("b", SECOND_US)
    send(world, "a", ("b", b"1"))
    send(world, "a", ("b", b"2"), after_us=1000)
    world.run(SECOND_US - 1)
    assert (place.journal.size, world.processes["a"].core.received) == (0, [])
    assert len(place.core.received) == 1
    world.run(SECOND_US)
    assert [hop.raw for hop in place.hops()] == [b"1", b"2"]
    assert [data for _, _, data in world.processes["a"].core.received] == [b"1", b"2"]
    assert place.disk.refused == SECOND_US // RETRY_US


def test_crash_while_the_disk_is_full_forgets_what_was_held_back():
    world = World(1, link=LINK)
    add(world, "a")
    place = add(world, "b", journaling_echo)
    world.fill_disk("b", SECOND_US)
    send(world, "a", ("b", b"1"))
    world.schedule(SECOND_US // 2, lambda: world.crash("b", restart_after_us=1))
    world.run(5 * SECOND_US)
    assert (place.journal.size, world.processes["a"].core.received) == (0, [])


def test_full_disk_during_a_pause():
    world = World(1, link=LINK)
    add(world, "a")
    place = add(world, "b", journaling_echo)
    world.fill_disk("b", SECOND_US)
    send(world, "a", ("b", b"1"))
    world.schedule(SECOND_US // 2, lambda: world.pause("b", 2 * SECOND_US))
    world.run(2 * SECOND_US)
    assert place.journal.size == 0
    world.run(2 * SECOND_US)
    assert place.journal.size == 1
    assert len(world.processes["a"].core.received) == 1


def test_journal_that_says_it_is_full_is_believed():
    class FullOnce(MemoryJournal):
        refusals = 1

        def append(self, observations, /):
            if self.refusals:
                self.refusals -= 1
                raise JournalFull("no room")
            return super().append(observations)

    world = World(1, link=LINK, journal_factory=lambda place, server: FullOnce(server))
    place = add(world, "a")
    world.command("a", lambda core, now: core.tell(note("x", now)))
    world.run(SECOND_US)
    assert (place.disk.refused, place.journal.size) == (1, 1)


def test_timers_fire_when_due_also_if_they_move():
    world = World(1)
    start = world.now
    place = add(world, "a")
    world.command("a", lambda core, now: core.timers_us.extend([now + 500, now + 300, now + 100]))
    world.command("a", lambda core, now: core.timers_us.remove(start + 300), after_us=200)
    world.command("a", lambda core, now: core.timers_us.append(now + 50), after_us=400)
    world.run(SECOND_US)
    assert [each for each in place.core.fired if each[1]] == [(start + at, [start + at]) for at in (100, 450, 500)]


def test_core_that_never_tires_of_its_timer_is_found_out():
    class Restless(Mailbox):
        def next_timer(self):
            return 0

    world = World(1)
    add(world, "restless", Restless)
    with pytest.raises(LocalProtocolError, match="restless wants its timer") as caught:
        world.run(SECOND_US)
    assert "seed 1" in caught.value.__notes__[0]


def test_place_lives_by_its_own_clock():
    world = World(1, link=LINK)
    start = world.now
    add(world, "a")
    place = add(world, "b", skew_us=-3 * SECOND_US, drift_ppm=1000)
    send(world, "a", ("b", b"x"), after_us=SECOND_US)
    world.command("b", lambda core, now: core.timers_us.append(now + 10 * SECOND_US))
    world.run(20 * SECOND_US)
    [(got_us, _, _)] = place.core.received
    assert got_us == start + SECOND_US + 1000 - 3 * SECOND_US + 1001
    [(fired_us, [due_us])] = place.core.fired
    assert fired_us == due_us == start + 7 * SECOND_US
    assert world.now == start + 20 * SECOND_US


@pytest.mark.parametrize(("jump_us", "fires_after_us"), [(600, [1000]), (-600, [1000, 1600]), (5000, [1000])])
def test_timers_are_set_by_the_clock_and_checked_when_they_fire(jump_us, fires_after_us):
    world = World(1)
    start = world.now
    fired = []

    class Watch(Mailbox):
        def handle_timer(self, now):
            fired.append(world.now - start)
            super().handle_timer(now)

    add(world, "a", Watch)
    world.command("a", lambda core, now: core.timers_us.append(now + 1000))
    world.schedule(100, lambda: world.jump_clock("a", jump_us))
    world.run(SECOND_US)
    assert fired == fires_after_us


def test_journal_keeps_its_order_when_the_clock_goes_back():
    world = World(1)
    place = add(world, "a")
    world.command("a", lambda core, now: core.tell(note("x", now)))
    world.schedule(10, lambda: world.jump_clock("a", -SECOND_US))
    world.command("a", lambda core, now: core.tell(note("y", now)), after_us=20)
    world.run(SECOND_US)
    first, second = place.hops()
    assert first.at_us == second.at_us


def test_what_a_core_wants_to_send_at_its_birth_is_sent():
    world = World(1, link=LINK)

    def eager():
        core = Mailbox()
        core.send(("b", b"hello"))
        return core

    add(world, "a", eager)
    add(world, "b")
    world.run(SECOND_US)
    assert len(world.processes["b"].core.received) == 1
