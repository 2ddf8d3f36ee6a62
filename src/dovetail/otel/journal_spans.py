"""Follows one journal and builds spans from its hops, in bounded memory.

If a hop's message has no open span, because the follower was restarted or the hop is late, all hops of the message are
looked up: so a journal gives the same spans however often, and from whatever hop, it is read.

If replies name their request by an id that is only in its bytes, the ids of the messages of the last `WINDOW_HOPS` hops
are remembered; a reply later than that starts its own trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.fabrics import fabric_named
from dovetail.journal.reader import JournalReader
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.fabric import Thread
from dovetail.model.hop import Hop, Stage
from dovetail.otel.spans import OpenSpan, Span, Subject, build_span, read_subject, split

MAX_OPEN_HOPS = 100_000
"""Maximum number of hops in open spans; beyond it the oldest spans are closed early."""
WINDOW_HOPS = 100_000
SLICE_HOPS = 2_000


@dataclass(slots=True)
class _Open:
    """An open span, the hop and local time at which it was opened, and its message."""

    span: OpenSpan
    from_seq: int
    at_s: float
    subject: Subject
    answered: Address | None


class JournalSpans:
    """Spans of one journal; call `read` repeatedly, and close it when done."""

    def __init__(self, reader: JournalReader, *, settle_s: float, position: int | None) -> None:
        """Start at a position, or at the end."""
        self._reader = reader
        self._fabric = fabric_named(reader.identity.fabric)
        self._keeps_ids = self._fabric.thread is Thread.EXCHANGE
        self._settle_s = settle_s
        self._settle_us = round(settle_s * 1_000_000)
        self.server = reader.identity.server
        self.position = reader.size if position is None else min(position, reader.size)
        self._open: dict[Address, _Open] = {}
        self._closed: list[Span] = []
        self._held = 0
        self._newest_us = 0
        self._ids: dict[bytes, tuple[int, Address]] = {}
        if self._keeps_ids:
            for hop in reader.hops(max(0, self.position - WINDOW_HOPS), self.position):
                if hop.raw is not None:
                    self._remember(hop, read_subject(hop.raw, self.server, self._fabric))

    @property
    def done(self) -> int:
        """Where to resume after a restart: hops before this position are in spans already returned."""
        return next((each.from_seq for each in self._open.values()), self.position)

    def read(self, now_s: float) -> tuple[list[Span], bool]:
        """Read a slice of new hops; returns the complete spans, and whether the end was reached."""
        before = self.position
        for hop in self._reader.hops(before, before + SLICE_HOPS):
            self.position = hop.seq + 1
            if hop.stage not in (Stage.PURGED, Stage.NOTED):
                self._take(hop, now_s)
        self._close_due(now_s)
        closed, self._closed = self._closed, []
        return closed, self.position - before < SLICE_HOPS

    def finish(self) -> list[Span]:
        """Close all spans, including those that could still get hops."""
        for address in list(self._open):
            self._close(address)
        closed, self._closed = self._closed, []
        return closed

    def _take(self, hop: Hop, now_s: float) -> None:
        self._newest_us = max(self._newest_us, hop.at_us)
        opened = self._open.get(hop.message)
        if opened is not None and hop.at_us - opened.span.start_us <= self._settle_us:
            before = len(opened.span.hops)
            opened.span.add(hop)
            self._held += len(opened.span.hops) - before
            return
        if opened is not None:
            self._close(hop.message)
        self._begin(hop, now_s)

    def _begin(self, hop: Hop, now_s: float) -> None:
        if hop.size is not None:
            span, raw = OpenSpan(is_later=False), hop.raw
            span.add(hop)
        else:
            # not the hop that first saw the message: it continues a span, or starts a later one
            known = [each for each in self._reader.hops_of(hop.message) if each.seq <= hop.seq]
            span, raw = split(known, self._settle_us)[-1], self._reader.raw(hop.message)
        subject = read_subject(raw, self.server, self._fabric)
        if self._keeps_ids and hop.size is not None:
            self._remember(hop, subject)
        self._held += len(span.hops)
        self._open[hop.message] = _Open(span, hop.seq, now_s, subject, self._find_answered(hop, subject.answered))

    def _remember(self, hop: Hop, subject: Subject) -> None:
        """Remember the id of a new message, and forget those that are too old."""
        if subject.key is not None:
            self._ids.setdefault(subject.key, (hop.seq, hop.message))
        while self._ids and (oldest := next(iter(self._ids.items())))[1][0] < hop.seq - WINDOW_HOPS:
            del self._ids[oldest[0]]

    def _find_answered(self, hop: Hop, key: bytes | None) -> Address | None:
        if key is None:
            return None
        if self._keeps_ids:
            seq, address = self._ids.get(key, (hop.seq, None))
            return address if hop.seq - WINDOW_HOPS <= seq < hop.seq else None
        return Address(key) if len(key) == ADDRESS_BYTES else None

    def _close_due(self, now_s: float) -> None:
        """Close spans that are old by their hops or by the clock, and the oldest if too many are open."""
        for address, each in list(self._open.items()):
            is_old = now_s - each.at_s >= self._settle_s or self._newest_us - each.span.start_us > self._settle_us
            if not is_old and self._held <= MAX_OPEN_HOPS:
                return
            self._close(address)

    def _close(self, address: Address) -> None:
        each = self._open.pop(address)
        self._held -= len(each.span.hops)
        is_here = each.answered is not None and self._reader.message(each.answered) is not None
        span = build_span(each.span, self._fabric, each.subject, each.answered, is_answered_here=is_here)
        self._closed.append(span)
