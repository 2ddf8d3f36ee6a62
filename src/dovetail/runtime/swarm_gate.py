"""The gate between seeing and sending: turns are kept until the journal has what was observed in them.

Theory of operation. A turn is what came of one feeding of the core: events and datagrams. Only when its observations
are journaled are the application told and the datagrams sent. While a commit is under way, further turns gather and
share the next one, so the disk's waiting costs latency and not throughput. With `MAX_KEPT` events and datagrams kept
the gate is crowded, and the shell feeds nothing more until it opens again. Turns themselves are not counted: the
quicker a peer reads, the less comes of each, and it would stand still where it has hardly begun.

- A full disk, or a queue at its bound, closes the gate: nothing is sent, so nothing is acknowledged or relayed. The
  commit is tried again until there is room. Datagrams that were held for longer than `MAX_HELD_S` are dropped then:
  the swarm's signature has rotated since, and the swarm repairs what is lost.
- Any other failure is for good: it is unknown what is durable. The gate stays closed, what is kept is dropped, and the
  shell is told once.
- With `relaxed` durability nothing is waited for, except one turn a second: only that tells of a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from dovetail.model.errors import JournalBusy, JournalError
from dovetail.model.hop import Observation
from dovetail.swarm.events import Event
from dovetail.swarm.peer_exchange import Endpoint

MAX_KEPT: Final = 16_384
"""Events and datagrams: those of some thousand messages, which is what one commit takes at once."""
MAX_HELD_S: Final = 10.0
RETRY_S: Final = 0.2
PROBE_S: Final = 1.0

log = logging.getLogger("dovetail.swarm")


class Journal(Protocol):
    """What the gate needs of a journal."""

    async def append_async(self, observations: Sequence[Observation]) -> int: ...

    def write(self, observations: Sequence[Observation]) -> None: ...


class Turn(NamedTuple):
    """What came of one feeding of the core, and when, by the loop's clock."""

    events: list[Event]
    datagrams: list[tuple[Endpoint, bytes]]
    at_s: float


class JournalGate:
    """Keeps turns, and lets them go in order. For use inside one event loop."""

    def __init__(
        self,
        journal: Journal | None,
        *,
        is_full: bool,
        let_go: Callable[[list[Turn]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._journal = journal
        self._is_full = is_full
        self._let_go = let_go
        self._on_failure = on_failure
        self._kept: list[Turn] = []
        self._kept_size = 0
        self._committing: asyncio.Task[None] | None = None
        self._probe_s = 0.0
        self._is_closing = False
        self.failure: Exception | None = None
        """Why the gate is closed for good."""
        self.is_waiting = False
        """Whether the journal has no room at present."""

    @property
    def is_crowded(self) -> bool:
        """Whether no more should be fed."""
        return self._kept_size >= MAX_KEPT

    def put(self, turn: Turn) -> None:
        """Keep a turn; it is let go now or later, or never after a failure."""
        if self.failure is None:
            self._kept.append(turn)
            self._kept_size += len(turn.events) + len(turn.datagrams)
            if self._committing is None:
                self._pass_on()

    async def settle(self) -> None:
        """Wait until everything so far is journaled and let go; raises what closed the gate for good."""
        while self._committing is not None:
            await asyncio.shield(self._committing)
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Wait for what is kept; where the journal has no room, it is dropped."""
        self._is_closing = True
        if self._committing is not None:
            await self._committing

    def fail(self, error: Exception) -> None:
        """Close for good: nothing that is kept, or that comes, is let go any more."""
        if self.failure is None:
            self._drop(error)
            self._on_failure(error)

    def _pass_on(self) -> None:
        """Let go at once where nothing has to be waited for, else in a task."""
        if self._journal is None or (self._is_full and not any(turn.events for turn in self._kept)):
            self._open(self._take())
            return
        now_s = asyncio.get_running_loop().time()
        if not self._is_full and now_s < self._probe_s:
            try:
                self._journal.write(_observations(self._kept))
            except JournalBusy:
                pass
            except JournalError as error:
                self.fail(error)
                return
            else:
                self._open(self._take())
                return
        self._probe_s = now_s + PROBE_S
        self._committing = asyncio.get_running_loop().create_task(self._commit(self._journal))

    async def _commit(self, journal: Journal) -> None:
        """Commit what is kept, again and again until nothing is left."""
        try:
            while self._kept:
                turns = self._take()
                observations = _observations(turns)
                if observations:
                    await self._append(journal, observations)
                self._open(turns)
        except JournalError as error:
            self.fail(error)
        except Exception as error:
            log.exception("the swarm cannot go on")
            self.fail(error)
        finally:
            self._committing = None

    async def _append(self, journal: Journal, observations: list[Observation]) -> None:
        """Append, waiting for room as long as it takes, or until the gate closes."""
        while self.failure is None:
            try:
                await journal.append_async(observations)
                break
            except JournalError as error:
                if not error.retriable:
                    raise
                if self._is_closing:
                    log.warning("%d observations could not be journaled at the end: %s", len(observations), error)
                    self._drop(error)
                elif not self.is_waiting:
                    log.warning("the journal cannot take hops now, the swarm waits: %s", error)
                    self.is_waiting = True
            await asyncio.sleep(RETRY_S)
        if self.is_waiting:
            self.is_waiting = False
            log.warning("the journal takes hops again")

    def _take(self) -> list[Turn]:
        turns, self._kept, self._kept_size = self._kept, [], 0
        return turns

    def _open(self, turns: list[Turn]) -> None:
        if self.failure is not None:
            return
        oldest_s = asyncio.get_running_loop().time() - MAX_HELD_S
        if turns[0].at_s < oldest_s:
            turns = [turn if turn.at_s >= oldest_s else turn._replace(datagrams=[]) for turn in turns]
        self._let_go(turns)

    def _drop(self, error: Exception) -> None:
        self.failure = error
        self._take()


def _observations(turns: list[Turn]) -> list[Observation]:
    return [event for turn in turns for event in turn.events if type(event) is Observation]
