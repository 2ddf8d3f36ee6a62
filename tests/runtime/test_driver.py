"""The driver's promise: nothing leaves that the journal does not hold, and no input is lost."""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.address import address_of
from dovetail.model.errors import JournalDamaged, JournalError, JournalFull
from dovetail.model.hop import Observation, Stage
from dovetail.model.wire import CloseLink, SendFrames
from dovetail.runtime import driver
from dovetail.runtime.driver import CALL_BYTES, FRAME_BYTES, Driver, Health, TurnStats


def observe(data: bytes, now: int, stage: Stage = Stage.ACCEPTED) -> Observation:
    return Observation(at_us=now, stage=stage, message=address_of(data), raw=data)


class FakeClock:
    """Calls wait until the test runs them."""

    def __init__(self) -> None:
        self.time = 1000
        self.soon = []
        self.timers = []

    def now(self):
        return self.time

    def call_soon(self, action):
        self.soon.append(action)

    def call_at(self, when, action):
        timer = FakeTimer(when, action)
        self.timers.append(timer)
        return timer

    def run(self):
        """Run the scheduled turns, and those that they schedule."""
        while self.soon:
            self.soon.pop(0)()

    def advance(self, to):
        self.time = to
        due = [timer for timer in self.timers if timer.when <= to]
        self.timers = [timer for timer in self.timers if timer.when > to]
        for timer in due:
            timer.action()


class FakeTimer:
    def __init__(self, when, action) -> None:
        self.when = when
        self.action = action

    def cancel(self):
        self.action = lambda: None


class FakeJournal:
    """Commits wait until the test finishes them, or finish immediately."""

    def __init__(self, *, at_once=False) -> None:
        self.at_once = at_once
        self.stalled = None
        self.commits = []
        self.durable = set()
        self._pending = []

    def commit(self, observations, done):
        self.commits.append(list(observations))
        self._pending.append((observations, done))
        if self.at_once:
            self.finish()

    @property
    def is_busy(self):
        return bool(self._pending)

    def finish(self, error=None):
        observations, done = self._pending.pop(0)
        if error is None:
            self.durable.update(observation.message for observation in observations)
        done(error)


class FakeTransport:
    def __init__(self, journal=None) -> None:
        self.sent = []
        self.reading = []
        self.too_early = []
        self.made_at = []
        self.gone = set()
        self._journal = journal

    def send(self, outgoing, made_at):
        self.made_at.append(made_at)
        for item in outgoing:
            links = item.links if isinstance(item, SendFrames) else (item.link,)
            if links[0] in self.gone:
                continue
            self.sent.append(item)
            if isinstance(item, SendFrames) and self._journal is not None:
                self.too_early += [data for data in item.frames if address_of(data) not in self._journal.durable]

    def set_reading(self, wanted):
        self.reading.append(wanted)

    @property
    def frames(self):
        return [(item.links[0], data) for item in self.sent if isinstance(item, SendFrames) for data in item.frames]


class EchoCore:
    """Observes each frame as accepted and sends it back; on hand-over it observes `delivered`, as a broker does."""

    def __init__(self, *, observes_hand_over=True) -> None:
        self.fed = []
        self.timer = None
        self.log = []
        self._observes_hand_over = observes_hand_over
        self._events = []
        self._pending = []
        self._handed = []

    def receive_frames(self, frames, now):
        for data, link, _ in frames:
            if data == b"poison":
                raise ValueError("cannot handle it")
            self.fed.append((data, link))
            self._events += [observe(data, now), ("fed", data)]
            self._pending.append((link, data))

    def handle_timer(self, now):
        self.log.append(("timer", now))
        self.timer = None

    def next_timer(self):
        return self.timer

    def events(self):
        handed, self._handed = self._handed, []
        events, self._events = self._events, []
        return events + [observe(data, 0, Stage.DELIVERED) for data in handed]

    def to_send(self):
        pending, self._pending = self._pending, []
        if self._observes_hand_over:
            self._handed += [data for _, data in pending]
        return [SendFrames((link,), [data]) for link, data in pending]

    def receive_broken(self, link, now):
        self.log.append(("broken", link))
        self._pending = [entry for entry in self._pending if entry[0] != link]

    def receive_paused(self, link, unsent_bytes, now):
        self.log.append(("paused", link, unsent_bytes))
        self._handed = self._handed[: len(self._handed) - unsent_bytes]

    def receive_resumed(self, link, now):
        self.log.append(("resumed", link))

    def receive_closed(self, link, now):
        self.log.append(("closed", link))
        self._pending = [entry for entry in self._pending if entry[0] != link]


class PlainCore(EchoCore):
    """A core that does not observe the hand-over."""

    receive_broken = None

    def __init__(self) -> None:
        super().__init__(observes_hand_over=False)


class Bench:
    def __init__(
        self, core=None, *, durability="full", at_once=False, journaled=True, driver_class=Driver, **options
    ) -> None:
        self.is_full = durability == "full"
        self.core = core or EchoCore()
        self.clock = FakeClock()
        self.journal = FakeJournal(at_once=at_once) if journaled else None
        self.transport = FakeTransport(self.journal)
        self.told = []
        self.failures = []
        self.driver = driver_class(
            self.core,
            self.journal,
            self.transport,
            self.clock,
            durability=durability,
            on_events=self.told.extend,
            on_failure=self.failures.append,
            **options,
        )

    def turn(self):
        self.clock.run()

    def finish(self, error=None):
        self.journal.finish(error)
        self.clock.run()

    def settle(self):
        self.turn()
        while self.journal is not None and self.journal.is_busy:
            self.finish()

    def stages(self):
        return [[observation.stage for observation in commit] for commit in self.journal.commits]


# -- commit before send


def test_full_sends_and_tells_nothing_before_the_commit_is_done():
    bench = Bench()
    bench.driver.receive(b"x", "a")
    assert bench.core.fed == [], "fed at the end of the turn"
    bench.turn()
    assert bench.stages() == [[Stage.ACCEPTED]]
    assert (bench.transport.sent, bench.told) == ([], [])
    bench.finish()
    assert bench.transport.frames == [("a", b"x")]
    assert bench.told == [("fed", b"x")], "observations are for the journal only"


def test_full_journals_the_hand_over_after_it_happened():
    bench = Bench()
    bench.driver.receive(b"x", "a")
    bench.turn()
    bench.finish()
    assert bench.stages() == [[Stage.ACCEPTED], [Stage.DELIVERED]]
    assert not bench.driver.is_idle
    bench.finish()
    assert bench.driver.is_idle


def test_relaxed_puts_intake_and_hand_over_into_one_write():
    bench = Bench(durability="relaxed", at_once=True)
    bench.driver.receive(b"x", "a")
    bench.turn()
    assert bench.stages() == [[Stage.ACCEPTED, Stage.DELIVERED]]
    assert bench.transport.frames == [("a", b"x")]
    assert bench.driver.is_idle


def test_relaxed_waits_where_the_journal_has_no_room():
    bench = Bench(durability="relaxed", stats=(stats := TurnStats()))
    bench.driver.receive(b"x", "a")
    bench.turn()
    assert bench.transport.frames == [("a", b"x")]
    assert (bench.told, stats.delayed) == ([], 1)
    bench.driver.receive(b"y", "a")
    bench.turn()
    assert bench.core.fed == [(b"x", "a")]
    bench.settle()
    assert bench.transport.frames == [("a", b"x"), ("a", b"y")]


def test_without_a_journal_nothing_is_waited_for():
    bench = Bench(PlainCore(), journaled=False)
    bench.driver.receive(b"x", "a")
    bench.turn()
    assert bench.transport.frames == [("a", b"x")]
    assert bench.driver.is_idle


def test_turn_without_observations_needs_no_commit():
    class Silent(PlainCore):
        def receive_frames(self, frames, now):
            self._pending += [(link, data) for data, link, _ in frames]

    bench = Bench(Silent())
    bench.driver.receive(b"x", "a")
    bench.turn()
    assert bench.journal.commits == []
    assert bench.transport.frames == [("a", b"x")]


def test_what_is_sent_is_dated_by_when_it_was_fed():
    bench = Bench()
    bench.driver.receive(b"x", "a")
    bench.turn()
    bench.clock.time = 5000
    bench.finish()
    assert bench.transport.made_at == [1000]


STEPS = ["frame", "call", "close", "turn", "finish", "timer"]


def find_broken_promises(bench: Bench, steps: list[str]) -> list[str]:
    """Run the steps, settle, and report what the driver must not have done."""
    sent, gone = [], bench.transport.gone
    for number, step in enumerate(steps):
        link = f"link {number % 3} {len(gone)}"
        match step:
            case "frame":
                sent.append((b"%d" % number, link))
                bench.driver.receive(*sent[-1])
            case "call":
                sent.append((b"call %d" % number, f"call {number}"))
                bench.driver.call(lambda now, each=sent[-1]: bench.core.receive_frames([(*each, False)], now))
            case "close":
                gone.add(link := sent[-1][1] if sent else link)
                bench.driver.receive_closed(link, lambda now, link=link: bench.core.receive_closed(link, now))
            case "turn":
                bench.turn()
            case "finish" if bench.journal.is_busy:
                bench.finish()
            case "timer":
                bench.core.timer = bench.clock.time + 10
                bench.clock.advance(bench.clock.time + 20)
    bench.settle()
    found = [f"{data!r} left before its commit" for data in bench.transport.too_early if bench.is_full]
    if not bench.driver.is_idle:
        found.append("it does not come to rest")
    if bench.core.fed != sent:
        found.append("not everything was fed, in order")
    expected = [(link, data) for data, link in sent if link not in gone]
    if [frame for frame in bench.transport.frames if frame[0] not in gone] != expected:
        found.append("not everything was sent, in order")
    delivered = [o.raw for commit in bench.journal.commits for o in commit if o.stage is Stage.DELIVERED]
    if delivered != [data for _, data in bench.transport.frames]:
        found.append("a delivered hop has no frame that left")
    return found


@pytest.mark.parametrize("durability", ["full", "relaxed"])
@settings(deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=40))
def test_whatever_the_order_nothing_leaves_early_and_nothing_is_lost(durability, steps):
    assert find_broken_promises(Bench(durability=durability), steps) == []


class SendsBeforeTheCommit(Driver):
    """A mutant."""

    def _turn(self):
        self._feed(self._clock.now())
        outgoing = self._core.to_send()
        if outgoing:
            self._transport.send(outgoing, 0)
        super()._turn()


class DoesNotSayThatALinkBroke(Driver):
    """A mutant."""

    def receive_closed(self, link, tell):
        self.call(tell)


@pytest.mark.parametrize(
    ("mutant", "finding"),
    [(SendsBeforeTheCommit, "left before its commit"), (DoesNotSayThatALinkBroke, "has no frame that left")],
)
def test_drivers_that_break_the_promise_are_found(mutant, finding):
    found = []
    for seed in range(10):
        chance = random.Random(seed)
        steps = [STEPS[int(chance.random() * len(STEPS))] for _ in range(40)]
        assert find_broken_promises(Bench(), steps) == []
        found += find_broken_promises(Bench(driver_class=mutant), steps)
    assert any(finding in each for each in found)


# -- input during a commit


def test_inputs_wait_for_the_commit_and_share_the_next():
    bench = Bench(PlainCore())
    bench.driver.receive(b"1", "a")
    bench.turn()
    for data in (b"2", b"3"):
        bench.driver.receive(data, "a")
        bench.turn()
    assert bench.core.fed == [(b"1", "a")]
    bench.finish()
    assert [len(commit) for commit in bench.journal.commits] == [1, 2]


def test_calls_keep_their_place_among_the_frames():
    bench = Bench(PlainCore())
    order = bench.core.fed
    bench.driver.call(lambda now: order.append("first"))
    bench.driver.receive(b"1", "a")
    bench.driver.call(lambda now: order.append(now))
    bench.driver.call(lambda now: order.append("third"))
    bench.driver.receive(b"2", "a")
    bench.turn()
    assert order == ["first", (b"1", "a"), 1000, "third", (b"2", "a")]


def test_link_lost_while_a_commit_is_under_way_is_told_at_once_and_again_in_order():
    bench = Bench()
    bench.driver.receive(b"1", "a")
    bench.driver.receive(b"2", "b")
    bench.turn()
    bench.driver.receive(b"last words", "a")
    bench.driver.receive_closed("a", lambda now: bench.core.receive_closed("a", now))
    assert bench.core.log == [("broken", "a")]
    bench.settle()
    assert bench.core.log == [("broken", "a"), ("closed", "a")]
    assert (b"last words", "a") in bench.core.fed
    assert ("a", b"1") not in bench.transport.frames
    assert (Stage.DELIVERED, b"1") not in [(o.stage, o.raw) for commit in bench.journal.commits for o in commit]


def test_link_lost_between_turns_is_told_in_order_only():
    for core in (EchoCore(), PlainCore()):
        bench = Bench(core)
        bench.driver.receive(b"1", "a")
        bench.driver.receive_closed("a", lambda now, core=core: core.receive_closed("a", now))
        bench.settle()
        assert bench.core.log == [("closed", "a")]


def test_core_that_does_not_observe_the_hand_over_needs_not_know_at_once():
    bench = Bench(PlainCore())
    bench.driver.receive(b"1", "a")
    bench.turn()
    bench.driver.receive_closed("a", lambda now: bench.core.receive_closed("a", now))
    bench.settle()
    assert bench.core.log == [("closed", "a")]


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_what_a_link_did_not_take_is_told_before_the_hand_over_is_observed(durability):
    bench = Bench(durability=durability, at_once=True)
    send = bench.transport.send

    def send_and_fill(outgoing, made_at):
        send(outgoing, made_at)
        bench.driver.receive_paused("a", 1)

    bench.transport.send = send_and_fill
    bench.driver.receive(b"1", "a")
    bench.turn()
    assert bench.core.log == [("paused", "a", 1)]
    assert [stage for commit in bench.stages() for stage in commit] == [Stage.ACCEPTED]


def test_paused_and_resumed_links_are_told_at_once_and_the_timer_is_due():
    bench = Bench()
    bench.driver.receive(b"1", "a")
    bench.turn()
    bench.driver.receive_paused("b", 7)
    bench.driver.receive_resumed("b")
    assert bench.core.log == [("paused", "b", 7), ("resumed", "b")], "while a commit is under way"
    bench.settle()
    assert bench.core.log[2:] == [("timer", 1000)]
    bench.driver.receive_resumed("b")
    bench.settle()
    assert bench.core.log[3:] == [("resumed", "b"), ("timer", 1000)]


def test_core_that_does_not_observe_the_hand_over_is_not_told_of_full_links():
    bench = Bench(PlainCore())
    bench.driver.receive_paused("a", 1)
    bench.driver.receive_resumed("a")
    assert (bench.core.log, bench.driver.is_idle) == ([], True)


# -- bounds


def test_inbox_over_its_bound_stops_reading_until_it_is_fed():
    bench = Bench(max_inbox_bytes=2 * (FRAME_BYTES + 5))
    bench.driver.receive(b"1", "a")
    bench.turn()
    for _ in range(3):
        bench.driver.receive(b"12345", "a")
    assert bench.driver.is_crowded
    assert bench.transport.reading == [False]
    bench.finish()
    assert not bench.driver.is_crowded
    assert bench.transport.reading == [False, True]


def test_datagrams_of_one_sender_are_received_as_each_would_be():
    benches = (
        Bench(PlainCore(), max_inbox_bytes=3 * (FRAME_BYTES + 5)),
        Bench(PlainCore(), max_inbox_bytes=3 * (FRAME_BYTES + 5)),
    )
    seen = []
    for bench, at_once in zip(benches, (True, False), strict=True):
        for datagrams in ([b"1", b"22"], [b"12345"], [b"4", b"5"]):
            if at_once:
                bench.driver.receive_all(datagrams, "a")
            else:
                for data in datagrams:
                    bench.driver.receive(data, "a")
        seen.append(
            (bench.driver.inbox_bytes, bench.driver.is_crowded, [*bench.transport.reading], len(bench.clock.soon))
        )
        bench.turn()
    assert seen[0] == seen[1] == (5 * FRAME_BYTES + 10, True, [False], 1)
    assert benches[0].core.fed == benches[1].core.fed
    assert [data for data, _ in benches[0].core.fed] == [b"1", b"22", b"12345", b"4", b"5"]


def test_calls_count_against_the_bound():
    bench = Bench(max_inbox_bytes=2 * CALL_BYTES)
    for _ in range(3):
        bench.driver.call(lambda now: None)
    assert bench.driver.is_crowded


def test_much_input_is_fed_in_several_turns_in_order_with_calls_and_whoever_waits(monkeypatch):
    monkeypatch.setattr(driver, "MAX_TURN_BYTES", 3 * (FRAME_BYTES + 1))
    core = PlainCore()
    bench = Bench(core, max_inbox_bytes=8 * (FRAME_BYTES + 1))
    order = []
    for number in range(1, 10):
        bench.driver.receive(b"%d" % number, "a")
        bench.driver.call(lambda now, number=number: order.append((number, len(core.fed))))
        bench.driver.when_settled(lambda error, number=number: order.append((number, "settled")))
    bench.turn()
    turns = []
    while bench.journal.is_busy:
        turns.append((len(core.fed), bench.driver.is_crowded))
        bench.finish()
    assert turns == [(3, True), (6, True), (9, False)]
    assert [data for data, _ in core.fed] == [b"%d" % number for number in range(1, 10)]
    each = [[*((n, n) for n in group), *((n, "settled") for n in group)] for group in ((1, 2, 3), (4, 5, 6), (7, 8, 9))]
    assert order == [step for turn in each for step in turn]
    assert bench.transport.reading == [False, True]
    assert (bench.driver.inbox_bytes, bench.driver.is_idle) == (0, True)


# -- errors of a core


def test_frame_that_cannot_be_handled_ends_its_link_and_not_the_batch(caplog):
    bench = Bench(PlainCore(), at_once=True)
    for data, link in ((b"1", "a"), (b"poison", "b"), (b"behind", "b"), (b"2", "a"), (b"poison", "c")):
        bench.driver.receive(data, link)
    bench.turn()
    assert bench.core.fed == [(b"1", "a"), (b"2", "a")]
    closed = [item for item in bench.transport.sent if isinstance(item, CloseLink)]
    assert [(item.link, item.code) for item in closed] == [("b", 1011), ("c", 1011)]
    assert bench.failures == []
    assert "link b is closed" in caplog.text


def test_call_that_raises_is_logged_and_the_rest_goes_on(caplog):
    bench = Bench(PlainCore(), at_once=True)
    bench.driver.call(lambda now: 1 // 0)
    bench.driver.receive(b"1", "a")
    bench.turn()
    assert bench.transport.frames == [("a", b"1")]
    assert "an input could not be handled" in caplog.text


# -- waiting until settled


def test_settled_is_told_after_the_turn_that_has_the_input_was_sent():
    bench = Bench(PlainCore())
    told = []
    bench.driver.receive(b"1", "a")
    bench.turn()
    bench.driver.receive(b"2", "a")
    bench.driver.when_settled(lambda error: told.append((error, len(bench.transport.sent))))
    bench.finish()
    assert told == []
    bench.finish()
    assert told == [(None, 2)]


def test_settled_is_told_also_where_nothing_waits():
    bench = Bench(PlainCore())
    told = []
    bench.driver.when_settled(told.append)
    bench.turn()
    assert told == [None]
    assert bench.driver.is_idle


# -- failure and end


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_failed_commit_stops_everything_and_is_told_once(durability):
    bench = Bench(durability=durability)
    told = []
    bench.driver.receive(b"1", "a")
    bench.driver.when_settled(told.append)
    bench.turn()
    bench.driver.receive(b"2", "a")
    bench.driver.when_settled(told.append)
    error = JournalDamaged("it is damaged")
    bench.finish(error)
    bench.driver.fail(JournalError("again"))
    bench.driver.receive(b"3", "a")
    bench.driver.when_settled(told.append)
    bench.turn()
    assert bench.transport.frames == ([] if bench.is_full else [("a", b"1")]), "the turn that failed, and no other"
    assert bench.told == []
    assert bench.failures == [error]
    assert told == [error] * 3
    assert bench.transport.reading == [False]
    assert bench.driver.health is Health.FAILED


def test_failure_from_outside_lets_nothing_go_not_even_what_is_being_committed():
    bench = Bench()
    bench.driver.receive(b"1", "a")
    bench.turn()
    bench.driver.fail(JournalError("replaced"))
    bench.finish()
    assert bench.transport.sent == []
    assert len(bench.failures) == 1


@pytest.mark.parametrize("verb", ["events", "to_send", "next_timer"])
def test_core_that_breaks_stops_the_driver(verb, caplog):
    core = PlainCore()
    setattr(core, verb, lambda: 1 // 0)
    bench = Bench(core, at_once=True)
    bench.driver.receive(b"1", "a")
    bench.turn()
    assert [type(error) for error in bench.failures] == [ZeroDivisionError]
    assert "the driver stops" in caplog.text


def test_input_after_the_end_stays_bounded():
    bench = Bench(max_inbox_bytes=100)
    bench.driver.fail(JournalError("gone"))
    for _ in range(1000):
        bench.driver.receive(b"0123456789", "a")
        bench.driver.receive_all([b"0123456789"], "a")
    assert len(bench.driver._inbox) <= 10
    assert bench.transport.reading == [False]


def test_stopped_driver_does_nothing_more():
    bench = Bench()
    bench.core.timer = 2000
    bench.driver.wake()
    bench.turn()
    bench.driver.receive(b"1", "a")
    told = []
    bench.driver.when_settled(told.append)
    bench.driver.stop()
    bench.turn()
    bench.clock.advance(3000)
    bench.turn()
    bench.driver.when_settled(told.append)
    assert (bench.core.fed, bench.core.log, bench.failures) == ([], [], [])
    assert [str(error) for error in told] == ["stopped before it was settled"] * 2


def test_health_says_what_the_driver_waits_for():
    bench = Bench()
    assert bench.driver.health is Health.OK
    bench.journal.stalled = JournalFull("no room")
    assert bench.driver.health == "waiting for the disk"
    bench.journal.stalled = None
    bench.driver.drain()
    assert bench.driver.health == "draining"
    bench.driver.fail(JournalError("gone"))
    assert bench.driver.health == "failed"


# -- time


def test_start_sends_what_the_core_has_to_say_already_and_sets_the_timer():
    core = PlainCore()
    core.receive_frames([(b"hello", "a", False)], 0)
    core.timer = 1500
    bench = Bench(core, at_once=True)
    bench.driver.wake()
    bench.turn()
    assert bench.transport.frames == [("a", b"hello")]
    bench.clock.advance(1500)
    bench.turn()
    assert core.log == [("timer", 1500)]


def test_timer_is_moved_forward_but_not_back():
    bench = Bench(PlainCore(), at_once=True)
    for due in (5000, 3000, 4000):
        bench.core.timer = due
        bench.driver.wake()
        bench.turn()
    assert [timer.when for timer in bench.clock.timers] == [5000, 3000]
    bench.clock.advance(3000)
    bench.turn()
    assert bench.core.log == [("timer", 3000)], "early, and harmless"


def test_timer_that_fires_during_a_commit_is_handled_after_it():
    bench = Bench(PlainCore())
    bench.core.timer = 1500
    bench.driver.receive(b"1", "a")
    bench.turn()
    bench.finish()
    bench.driver.receive(b"2", "a")
    bench.turn()
    bench.clock.advance(1600)
    bench.turn()
    assert bench.core.log == []
    bench.finish()
    assert bench.core.log == [("timer", 1600)]


def test_logging_is_quiet_for_an_error_of_ours(caplog):
    caplog.set_level(logging.DEBUG)
    bench = Bench()
    bench.driver.fail(JournalError("the caller logs it"))
    assert caplog.text == ""
