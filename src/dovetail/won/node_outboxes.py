"""Messages that other nodes have yet to answer: one outbox per destination, with a link open while it is not empty.

The number of destinations, the messages of each, and the concurrent dials are bounded. An atom may add a destination
while fewer wait because of it than are free: one atom alone takes at most half of them. A message not answered within
its lifetime is given up, unless its response may be in flight: `handle_timer` reports it to the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dovetail.model.address import Address
from dovetail.model.hop import Stage
from dovetail.model.wire import CloseLink, LinkId, OpenLink
from dovetail.won.events import DestinationChanged
from dovetail.won.ledger import Ledger
from dovetail.won.links import LinkKind
from dovetail.won.outbox import Outbox
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.settings import WonSettings
from dovetail.won.status import QueueStatus
from dovetail.won.timers import Timers

_MAX_LEVEL = 10
_RETRY = ""
"""The timer of the next retry that the rate allows; no node has this name."""


class NodeOutboxes:
    """Sends (m, s1) to the recipients' nodes until their responses arrive."""

    def __init__(self, ledger: Ledger, settings: WonSettings, output: OutputBuffer, draw: Callable[[], float]) -> None:
        self._ledger = ledger
        self._settings = settings
        self._output = output
        self._draw = draw
        self._boxes: dict[str, Outbox] = {}
        self._by_link: dict[LinkId, Outbox] = {}
        self._timers = Timers()
        self._opening: set[LinkId] = set()
        # Destinations waiting to be dialled, by how often they were tried in vain, and those tried before in the order
        # in which they came. One not tried yet, the one of the fewest attempts and the one that waits the longest take
        # turns: many dead destinations delay neither a new one nor one that was lost just now.
        self._by_attempts: list[dict[str, None]] = [{} for _ in range(_MAX_LEVEL + 1)]
        self._tried: dict[str, None] = {}
        self._turn = 0
        self._retry_at = 0
        self._idle: dict[str, None] = {}
        # destinations with waiting messages, and the atom whose message was the first of them
        self._held_by: dict[str, str] = {}
        self._held: Counter[str] = Counter()
        self._forwarded: set[Address] = set()
        self._opened = 0

    def restore(self, forwarded: set[Address], now: int) -> None:
        """Queue everything that has s1 but not the other node's response."""
        for uri, sent in self._ledger.sent.items():
            self._add(uri)
            if sent.message in forwarded:
                self._forwarded.add(sent.message)
        for box in list(self._boxes.values()):
            self._flush(box, now)

    def make_room(self, node: str, atom: str) -> bool:
        """True if an atom may queue one more message for a node; may close an idle link to make room."""
        if node in self._held_by:
            return not self._boxes[node].is_full
        if self._held[atom] >= self._settings.max_destinations - len(self._held_by):
            return False
        return node in self._boxes or len(self._boxes) < self._settings.max_destinations or self._drop_idle()

    def enqueue(self, uri: str, bundle: bytes, now: int) -> None:
        """Queue a message stored with s1; `bundle` is the dataset of both."""
        self._flush(self._add(uri), now, {uri: bundle})

    def acknowledge(self, uri: str, node: str, message: Address, now: int) -> None:
        """The other node's response arrived."""
        box = self._forget(uri, node, message)
        if box is not None:
            box.attempts = 0
            self._flush(box, now)

    def hurry(self, node: str, now: int) -> None:
        """A genuine message arrived from a node: it is reachable again."""
        box = self._boxes.get(node)
        if box is not None:
            box.hurry(now)
            self._flush(box, now)

    def status(self, now: int) -> list[QueueStatus]:
        """The queue of each destination."""
        return [
            QueueStatus(
                node=box.node,
                length=len(box),
                oldest_ms=now // 1000 - self._ledger.sent[box.oldest].since_ms if box.oldest else 0,
                is_open=box.is_open,
            )
            for box in self._boxes.values()
        ]

    def opened(self, link: LinkId, now: int) -> None:
        """A link is open."""
        box = self._by_link.get(link)
        if box is not None:
            self._opening.discard(link)
            if box.attempts:
                self._output.emit(DestinationChanged(box.node, True))
            box.opened()
            self._flush(box, now)
            self._dial_next(now)

    def closed(self, link: LinkId, now: int) -> None:
        """A link ended or could not be opened."""
        box = self._by_link.pop(link, None)
        self._opening.discard(link)
        if box is not None:
            if not box.attempts and len(box):
                self._output.emit(DestinationChanged(box.node, False))
            box.lost(now, self._draw())
            self._set_timer(box)
            self._dial_next(now)

    def node_of(self, link: LinkId) -> str | None:
        """The destination of a link opened from here."""
        box = self._by_link.get(link)
        return box.node if box else None

    def handle_timer(self, now: int) -> list[str]:
        """Open links whose pause is over and resend what had no response for too long; returns messages to give up."""
        expired: list[str] = []
        for node in self._timers.pop_due(now):
            if node == _RETRY:
                self._dial_next(now)
                continue
            box = self._boxes[node]
            while box.oldest is not None and self._expires_at(box, box.oldest) <= now:
                expired.append(box.oldest)
                self._forget(box.oldest, box.node, self._ledger.sent[box.oldest].message)
            for uri in box.take_overdue(now):
                self._send(box, uri, now, {})
            self._flush(box, now)
        return expired

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: pauses end soon, and answers are waited for as if all had been sent now."""
        self._retry_at = now
        for box in list(self._boxes.values()):
            box.handle_clock_step(now)
            self._set_timer(box)
        self._dial_next(now)

    def next_timer(self) -> int | None:
        """When something is due."""
        return self._timers.next()

    def _expires_at(self, box: Outbox, uri: str) -> int:
        end = (self._ledger.sent[uri].since_ms + self._settings.message_lifetime_ms) * 1000
        sent = box.sent_at(uri)
        return end if sent is None else max(end, sent + self._settings.response_timeout_ms * 1000)

    def _set_timer(self, box: Outbox) -> None:
        """Schedule the box for its next timer or the expiry of its oldest message; drop it if it is idle."""
        self._idle.pop(box.node, None)
        if box.oldest is None:
            self._timers.set(box.node, None)
            self._release(box.node)
            if box.link is not None:
                self._idle[box.node] = None
            else:
                self._boxes.pop(box.node, None)
                self._leave_queues(box)
            return
        times = (box.next_timer(), self._expires_at(box, box.oldest))
        self._timers.set(box.node, min(due for due in times if due is not None))

    def _add(self, uri: str) -> Outbox:
        sent = self._ledger.sent[uri]
        node, atom = sent.destination, sent.connection.atom
        box = self._boxes.get(node)
        if box is None:
            box = self._boxes[node] = Outbox(node, self._settings)
        if node not in self._held_by:
            self._held_by[node] = atom
            self._held[atom] += 1
        box.add(uri)
        return box

    def _release(self, node: str) -> None:
        atom = self._held_by.pop(node, None)
        if atom is not None:
            self._held[atom] -= 1
            if not self._held[atom]:
                del self._held[atom]

    def _drop_idle(self) -> bool:
        """Make room for another destination by closing a link with nothing to send."""
        for node in self._idle:
            box = self._boxes.pop(node)
            assert box.link is not None
            self._by_link.pop(box.link, None)
            self._opening.discard(box.link)
            self._output.send(CloseLink(box.link))
            del self._idle[node]
            return True
        return False

    def _forget(self, uri: str, node: str, message: Address) -> Outbox | None:
        self._forwarded.discard(message)
        box = self._boxes.get(node)
        if box is not None:
            box.remove(uri)
        return box

    def _flush(self, box: Outbox, now: int, fresh: dict[str, bytes] | None = None) -> None:
        """Open a link if one is needed and due; send what fits into the window."""
        if box.link is None and len(box) and (box.retry_at is None or box.retry_at <= now):
            box.retry_at = None
            self._wait_for_dial(box)
            self._dial_next(now)
        while (uri := box.take(now)) is not None:
            box.note_size(uri, self._send(box, uri, now, fresh or {}))
        self._set_timer(box)

    def _wait_for_dial(self, box: Outbox) -> None:
        level = 0 if box.is_alive else min(box.attempts, _MAX_LEVEL)
        if box.node not in self._by_attempts[level]:
            self._leave_queues(box)
            self._by_attempts[level][box.node] = None
            if level:
                self._tried[box.node] = None

    def _leave_queues(self, box: Outbox) -> None:
        for queue in (self._tried, *self._by_attempts):
            queue.pop(box.node, None)

    def _dial_next(self, now: int) -> None:
        """Dial as many as may be dialled at once; those that were tried before, only as fast as the rate allows."""
        while len(self._opening) < self._settings.max_dials:
            untried, *others = self._by_attempts
            fewest = next(filter(None, others), {}) if self._retry_at <= now else {}
            queues = (untried, fewest, self._tried if fewest else {})
            if not any(queues):
                break
            self._turn += 1
            queue = queues[self._turn % 3] or queues[(self._turn + 1) % 3] or queues[(self._turn + 2) % 3]
            box = self._boxes[next(iter(queue))]
            self._leave_queues(box)
            if box.link is not None:
                continue
            if queue is not untried:
                self._retry_at = now + 1_000_000 // self._settings.max_retries_per_s
            self._opened += 1
            box.link = f"to {box.node} {self._opened}"
            self._by_link[box.link] = box
            self._opening.add(box.link)
            self._output.send(OpenLink(box.link, box.node, LinkKind.NODE.value))
            self._set_timer(box)
        is_waiting = bool(self._tried) and len(self._opening) < self._settings.max_dials
        self._timers.set(_RETRY, self._retry_at if is_waiting else None)

    def _send(self, box: Outbox, uri: str, now: int, fresh: dict[str, bytes]) -> int:
        """Send a message with its s1; returns the number of bytes."""
        sent = self._ledger.sent[uri]
        data = fresh.get(uri) or self._ledger.read_pair(sent)
        if data is None or box.link is None:
            return 0
        if sent.message not in self._forwarded:
            self._forwarded.add(sent.message)
            self._output.observe_again(Stage.FORWARDED, sent.message, box.node, now)
            self._output.observe_again(Stage.FORWARDED, sent.first_address, box.node, now)
        self._output.send_frame(box.link, data)
        return len(data)
