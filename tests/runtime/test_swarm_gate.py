"""The gate: nothing is let go before it is journaled, waiting where there is no room, ending where there is no hope."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dovetail.model.errors import JournalBusy, JournalDamaged, JournalError, JournalFull
from dovetail.model.hop import Observation, Stage
from dovetail.runtime import swarm_gate
from dovetail.runtime.swarm_gate import MAX_KEPT, JournalGate, Turn
from dovetail.runtime.swarm_node import SwarmNode
from dovetail.swarm.events import PeerLinked
from dovetail.swarm.settings import SwarmSettings
from system.pcp_site import until


def observation(number: int) -> Observation:
    return Observation(at_us=number, stage=Stage.ACCEPTED, message=bytes([number]) * 32)


class Disk:
    """A journal that does what it is told: `error` is raised while it is set; closed, it lets callers wait."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.commits: list[list[Observation]] = []
        self.written: list[list[Observation]] = []
        self.attempts = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def append_async(self, observations) -> int:
        self.attempts += 1
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        self.commits.append(list(observations))
        return 0

    def write(self, observations) -> None:
        if self.error is not None:
            raise self.error
        self.written.append(list(observations))


class Bench:
    def __init__(self, *, is_full: bool = True) -> None:
        self.disk = Disk()
        self.gone: list[Turn] = []
        self.failures: list[Exception] = []
        self.gate = JournalGate(self.disk, is_full=is_full, let_go=self.gone.extend, on_failure=self.failures.append)

    def put(self, number: int, *events) -> Turn:
        events = [observation(number), *events]
        turn = Turn(events, [("192.0.2.1:9", bytes([number]))], asyncio.get_running_loop().time())
        self.gate.put(turn)
        return turn


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(swarm_gate, "RETRY_S", 0.01)


def test_turns_gather_while_a_commit_is_under_way_and_share_the_next(monkeypatch):
    monkeypatch.setattr(swarm_gate, "MAX_KEPT", 24)

    async def run() -> None:
        bench = Bench()
        bench.disk.is_open.clear()
        turns = [bench.put(0)]
        await asyncio.sleep(0)
        # two events and a datagram each
        turns += [bench.put(number, PeerLinked("x", True)) for number in range(1, 8)]
        assert not bench.gate.is_crowded
        turns.append(bench.put(8, PeerLinked("x", True)))
        assert bench.gate.is_crowded
        assert bench.gone == []
        bench.disk.is_open.set()
        await bench.gate.settle()
        assert bench.gone == turns
        assert bench.disk.commits == [[observation(0)], [observation(number) for number in range(1, 9)]]
        assert not bench.gate.is_crowded


def test_one_large_turn_crowds_the_gate_and_many_small_ones_do_not():
    async def run() -> None:
        bench = Bench()
        bench.disk.is_open.clear()
        bench.put(0)
        await asyncio.sleep(0)
        for number in range(200):
            bench.put(number)
        assert not bench.gate.is_crowded
        bench.gate.put(Turn([], [("192.0.2.1:9", b"x")] * MAX_KEPT, asyncio.get_running_loop().time()))
        assert bench.gate.is_crowded
        bench.gate.fail(JournalError("gone"))
        assert not bench.gate.is_crowded
        bench.disk.is_open.set()
        await bench.gate.close()

    asyncio.run(run())


def test_a_turn_without_events_waits_for_nothing_unless_others_wait():
    async def run() -> None:
        bench = Bench()
        bench.disk.is_open.clear()
        silent = Turn([], [("192.0.2.1:9", b"hello")], asyncio.get_running_loop().time())
        bench.gate.put(silent)
        assert bench.gone == [silent]
        first = bench.put(1)
        bench.gate.put(silent)
        assert bench.gone == [silent]
        bench.disk.is_open.set()
        await bench.gate.settle()
        assert bench.gone == [silent, first, silent]

    asyncio.run(run())


@pytest.mark.parametrize("error", [JournalFull("no room"), JournalBusy("at its bound")])
def test_without_room_everything_is_held_back_and_goes_on_when_there_is_room(error, caplog):
    async def run() -> None:
        bench = Bench()
        bench.disk.error = error
        turns = [bench.put(1), bench.put(2)]
        await asyncio.sleep(0.1)
        assert bench.gate.is_waiting
        assert (bench.gone, bench.failures) == ([], [])
        assert bench.disk.attempts > 2
        bench.disk.error = None
        await bench.gate.settle()
        assert bench.gone == turns
        assert not bench.gate.is_waiting

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the journal cannot take hops now, the swarm waits",
        "the journal takes hops again",
    ]


def test_datagrams_that_were_held_too_long_are_dropped_and_their_events_told(monkeypatch):
    monkeypatch.setattr(swarm_gate, "MAX_HELD_S", 0.1)

    async def run() -> None:
        bench = Bench()
        bench.disk.error = JournalFull("no room")
        old = bench.put(1)
        await asyncio.sleep(0.15)
        young = bench.put(2)
        bench.disk.error = None
        await bench.gate.settle()
        assert bench.gone == [old._replace(datagrams=[]), young]

    asyncio.run(run())


@pytest.mark.parametrize("is_full", [True, False])
def test_a_failure_for_good_is_told_once_and_nothing_is_let_go_any_more(is_full):
    async def run() -> None:
        bench = Bench(is_full=is_full)
        bench.disk.error = JournalDamaged("it is damaged")
        bench.put(1)
        bench.put(2)
        with pytest.raises(JournalDamaged):
            await bench.gate.settle()
        bench.disk.error = None
        bench.put(3)
        with pytest.raises(JournalDamaged):
            await bench.gate.settle()
        await bench.gate.close()
        assert [str(error) for error in bench.failures] == ["it is damaged"]
        assert (bench.gone, bench.disk.commits, bench.disk.written) == ([], [], [])

    asyncio.run(run())


def test_a_gate_that_is_closed_for_good_from_outside_lets_go_not_even_what_is_being_committed():
    async def run() -> None:
        bench = Bench()
        bench.disk.is_open.clear()
        bench.put(1)
        await asyncio.sleep(0)
        bench.gate.fail(JournalError("replaced"))
        bench.disk.is_open.set()
        await bench.gate.close()
        assert bench.gone == []
        assert len(bench.failures) == 1

    asyncio.run(run())


def test_a_fault_of_ours_ends_the_gate_too(caplog):
    async def run() -> None:
        bench = Bench()
        bench.disk.error = RuntimeError("a bug")
        bench.put(1)
        with pytest.raises(RuntimeError):
            await bench.gate.settle()
        assert len(bench.failures) == 1

    asyncio.run(run())
    assert "the swarm cannot go on" in caplog.text


def test_closing_without_room_drops_what_is_kept_and_tells_who_waits(caplog):
    async def run() -> None:
        bench = Bench()
        bench.disk.error = JournalFull("no room")
        bench.put(1)
        waiting = asyncio.ensure_future(bench.gate.settle())
        await asyncio.sleep(0.05)
        await bench.gate.close()
        with pytest.raises(JournalFull):
            await waiting
        assert (bench.gone, bench.failures) == ([], [])

    asyncio.run(run())
    assert "1 observations could not be journaled at the end" in caplog.text


def test_relaxed_durability_waits_for_one_turn_a_second_only(monkeypatch):
    monkeypatch.setattr(swarm_gate, "PROBE_S", 0.2)

    async def run() -> None:
        bench = Bench(is_full=False)
        bench.put(1)
        await bench.gate.settle()
        for number in range(2, 6):
            bench.put(number)
        assert len(bench.gone) == 5
        assert (len(bench.disk.commits), len(bench.disk.written)) == (1, 4)
        await asyncio.sleep(0.25)
        bench.put(6)
        await bench.gate.settle()
        assert (len(bench.disk.commits), len(bench.disk.written)) == (2, 4)
        bench.disk.error = JournalBusy("at its bound")
        bench.put(7)
        await asyncio.sleep(0.05)
        assert len(bench.gone) == 6
        bench.disk.error = None
        await bench.gate.settle()
        assert len(bench.gone) == 7
        assert bench.failures == []

    asyncio.run(run())


# -- the node around it

SETTINGS = SwarmSettings(name="gate", work=1)


def test_a_node_whose_journal_fails_ends_its_block_with_the_error(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            assert node.health == (True, "well")
            node._udp.gate.fail(JournalError("gone"))
            assert node.health == (False, "the journal has failed")
            await asyncio.Event().wait()

    with pytest.raises(JournalError, match="gone"):
        asyncio.run(run())


def test_a_block_that_ends_by_itself_at_that_moment_raises_the_error_too(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node._udp.gate.fail(JournalError("gone"))

    with pytest.raises(JournalError, match="gone"):
        asyncio.run(run())


def test_an_error_of_the_block_and_a_cancellation_from_outside_are_not_hidden(tmp_path):
    async def fail() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node._udp.gate.fail(JournalError("gone"))
            raise KeyError("the block's own")

    async def cancelled() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            asyncio.current_task().cancel()
            node._udp.gate.fail(JournalError("gone"))
            await asyncio.Event().wait()

    with pytest.raises(KeyError):
        asyncio.run(fail())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_publisher_that_waits_for_a_journal_that_fails_is_told(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA query_only = ON"))
            try:
                await node.publish(b"never", 5)
            except asyncio.CancelledError:
                asyncio.current_task().uncancel()
                assert node.failure is not None
            with pytest.raises(JournalError):
                await node.publish(b"never either", 5)

    with pytest.raises(JournalError, match="readonly"):
        asyncio.run(run())


def test_a_node_waits_while_there_is_no_room_and_publishes_when_there_is(tmp_path):
    async def run() -> None:
        async with SwarmNode(SETTINGS, tmp_path, threads=1) as node:
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA max_page_count = 1").fetchone())
            publishing = asyncio.ensure_future(node.publish(bytes(10_000), 5))
            await until(lambda: not node.health.is_well, 20)  # its work is to be found first
            assert node.health == (False, "waiting for the disk")
            assert not publishing.done()
            node.journal.call(lambda writer: writer._connection.execute("PRAGMA max_page_count = 100000").fetchone())
            address = await asyncio.wait_for(publishing, 5)
            assert node.journal.raw(address) is not None
            assert node.health == (True, "well")

    asyncio.run(run())
