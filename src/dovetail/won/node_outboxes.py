"""Owed to other nodes: one outbox per destination, links opened and tried again for as long as anything is owed."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.model.address import Address
from dovetail.model.hop import Stage
from dovetail.model.wire import LinkId, OpenLink
from dovetail.won.events import DestinationChanged
from dovetail.won.ledger import Ledger
from dovetail.won.links import LinkKind
from dovetail.won.outbox import Outbox
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.settings import WonSettings
from dovetail.won.status import QueueStatus


class NodeOutboxes:
    """Sends (m, s1) to the recipients' nodes until their responses came."""

    def __init__(self, ledger: Ledger, settings: WonSettings, output: OutputBuffer, draw: Callable[[], float]) -> None:
        self._ledger = ledger
        self._settings = settings
        self._output = output
        self._draw = draw
        self._boxes: dict[str, Outbox] = {}
        self._busy: dict[str, Outbox] = {}
        self._by_link: dict[LinkId, Outbox] = {}
        self._forwarded: set[Address] = set()
        self._opened = 0

    def restore(self, forwarded: set[Address], now: int) -> None:
        """Everything with s1 and without the other node's response is owed again."""
        for uri, sent in self._ledger.sent.items():
            self._outbox(sent.destination).add(uri)
            if sent.message in forwarded:
                self._forwarded.add(sent.message)
        self._busy = dict(self._boxes)
        for box in self._busy.values():
            self._flush(box, now)

    def is_full(self, node: str) -> bool:
        """True if no more may be owed to a node."""
        return node in self._boxes and self._boxes[node].is_full

    def enqueue(self, uri: str, bundle: bytes, now: int) -> None:
        """A message was stored with s1; `bundle` is the dataset of both."""
        sent = self._ledger.sent[uri]
        box = self._outbox(sent.destination)
        box.add(uri)
        self._busy[box.node] = box
        self._flush(box, now, {uri: bundle})

    def acknowledge(self, uri: str, node: str, message: Address, now: int) -> None:
        """The other node's response came."""
        self._forwarded.discard(message)
        box = self._boxes.get(node)
        if box is not None:
            box.settle(uri)
            self._flush(box, now)
            if not len(box):
                self._busy.pop(node, None)

    def status(self, now: int) -> list[QueueStatus]:
        """What is owed to each node, and since when."""
        return [
            QueueStatus(
                node=box.node,
                length=len(box),
                oldest_ms=max((now // 1000 - self._ledger.sent[uri].since_ms for uri in box.oldest()), default=0),
                is_open=box.is_open,
            )
            for box in self._boxes.values()
        ]

    def opened(self, link: LinkId, now: int) -> None:
        """A link is open."""
        box = self._by_link.get(link)
        if box is not None:
            if box.attempts:
                self._output.emit(DestinationChanged(box.node, True))
            box.opened()
            self._flush(box, now)

    def closed(self, link: LinkId, now: int) -> None:
        """A link ended or could not be opened."""
        box = self._by_link.pop(link, None)
        if box is not None:
            if not box.attempts:
                self._output.emit(DestinationChanged(box.node, False))
            box.lost(now, self._draw())

    def node_of(self, link: LinkId) -> str | None:
        """The destination of a link that was opened from here."""
        box = self._by_link.get(link)
        return box.node if box else None

    def handle_timer(self, now: int) -> None:
        """Open links whose pause is over, send again what had no response for too long."""
        for box in list(self._busy.values()):
            for uri in box.take_overdue(now):
                self._send(box, uri, now, {})
            self._flush(box, now)

    def next_timer(self) -> int | None:
        """When something is due."""
        return min((due for box in self._busy.values() if (due := box.next_timer()) is not None), default=None)

    def _outbox(self, node: str) -> Outbox:
        box = self._boxes.get(node)
        if box is None:
            box = self._boxes[node] = Outbox(node, self._settings)
        return box

    def _flush(self, box: Outbox, now: int, fresh: dict[str, bytes] | None = None) -> None:
        """Open a link if one is needed and its time has come; send what fits into the window."""
        if box.link is None and len(box) and (box.retry_at is None or box.retry_at <= now):
            self._opened += 1
            box.link = f"to {box.node} {self._opened}"
            self._by_link[box.link] = box
            self._output.send(OpenLink(box.link, box.node, LinkKind.NODE.value))
        for uri in box.take(now):
            self._send(box, uri, now, fresh or {})

    def _send(self, box: Outbox, uri: str, now: int, fresh: dict[str, bytes]) -> None:
        sent = self._ledger.sent[uri]
        data = fresh.get(uri) or self._ledger.read_pair(sent)
        if data is None or box.link is None:
            return
        if sent.message not in self._forwarded:
            self._forwarded.add(sent.message)
            self._output.observe_again(Stage.FORWARDED, sent.message, box.node, now)
            self._output.observe_again(Stage.FORWARDED, sent.first_address, box.node, now)
        self._output.send_frame(box.link, data)
