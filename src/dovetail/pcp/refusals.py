"""Refused messages: observed, answered and logged one by one up to a rate; above it, counted and noted as such.

Otherwise a client could fill the journal with garbage. So in each second only a limited number of refusals per client,
and of all together, is handled in full. The rest is neither answered nor observed individually: at the end of the
second the broker notes in the journal how many messages of whom it refused, their bytes and the reasons, and tells each
sender in one error message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dovetail.model.address import address_of
from dovetail.model.hop import Reason, Stage
from dovetail.pcp.codec_v1 import salvage_frame
from dovetail.pcp.decision import Answer, Refuse
from dovetail.pcp.envelope import salvage
from dovetail.pcp.events import ClientRefused
from dovetail.pcp.outbound import Outbound
from dovetail.pcp.replies import Replies
from dovetail.pcp.session import Session
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.vocabulary import REFUSALS_SAMPLED

WINDOW_US = 1_000_000
MAX_NOTED_CLIENTS = 100
OTHERS = "others"


class _Client:
    """The refusals of one client in this second: how many, and those that are only counted."""

    __slots__ = ("bytes", "count", "session", "skipped")

    def __init__(self) -> None:
        self.session: Session
        self.count = 0
        self.bytes = 0
        self.skipped: Counter[str] = Counter()


class Refusals:
    """Handles what a broker refuses; `skipped` counts, by reason, what was not handled in full."""

    def __init__(
        self, settings: PcpSettings, outbound: Outbound, replies: Replies, keeps_body: Callable[[str], bool]
    ) -> None:
        self._outbound = outbound
        self._replies = replies
        self._keeps_body = keeps_body
        self._evidence_bytes = settings.evidence_bytes
        self._per_client = settings.refusals_per_s
        self._in_all = settings.total_refusals_per_s
        self._clients: dict[str, _Client] = {}
        self._count = 0
        self._ends_us = 0
        self._is_noting = False
        self.skipped: Counter[str] = Counter()

    @property
    def due_us(self) -> int | None:
        """When to note what was only counted."""
        return self._ends_us if self._is_noting else None

    def refuse(self, session: Session, raw: bytes, refusal: Refuse, now: int) -> None:
        """Observe a refusal and answer the sender according to the protocol."""
        reason, detail, answer = refusal
        if answer is not Answer.ASSOCIATION_REFUSED and not self._admit(session, reason, len(raw), now):
            return
        message_id = self._observe(session, raw, reason, detail, len(raw), now)
        match answer:
            case Answer.NOTHING:
                pass
            case Answer.ERROR:
                self._replies.refuse(session, message_id, detail, now)
            case Answer.UNAUTHORIZED:
                self.report_client(session, session.address_for_replies, reason, detail)
                self._replies.deny(session, message_id, now)
            case Answer.ASSOCIATION_REFUSED:
                self.report_client(session, session.address_for_replies, reason, detail)
                self._replies.associate(session, message_id or "", now, detail)

    def report_client(self, session: Session, uri: str, reason: Reason, detail: str) -> None:
        """Report a refused client, to be logged and counted."""
        event = ClientRefused(connection=session.connection, uri=uri, reason=reason, detail=detail)
        self._outbound.events.append(event)

    def refuse_part(self, session: Session, raw: bytes, reason: Reason, size: int, now: int) -> None:
        """Observe the refusal of a message of which only this part arrived."""
        if self._admit(session, reason, len(raw), now):
            self._observe(session, raw, reason, f"refused after {len(raw)} bytes of {size}", size, now)

    def note(self, now: int) -> None:
        """Note what was only counted, once its second is over, or if the clock was set back since."""
        if self._ends_us - WINDOW_US <= now < self._ends_us:
            return
        if self._is_noting:
            skipped = [(uri, client) for uri, client in self._clients.items() if client.skipped]
            for uri, client in skipped[:MAX_NOTED_CLIENTS]:
                self._write(uri, client.bytes, client.skipped, now)
                if not client.session.is_closing:
                    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(client.skipped.items()))
                    detail = f"{client.skipped.total()} more messages refused within a second: {reasons}"
                    self._replies.refuse(client.session, None, detail, now)
            if len(skipped) > MAX_NOTED_CLIENTS:
                rest = [client for _, client in skipped[MAX_NOTED_CLIENTS:]]
                self._write(
                    OTHERS, sum(each.bytes for each in rest), sum((each.skipped for each in rest), Counter()), now
                )
        self._clients.clear()
        self._count = 0
        self._is_noting = False

    def _write(self, uri: str, size: int, skipped: Counter[str], now: int) -> None:
        noted = {"client": uri, "count": skipped.total(), "bytes": size, "reasons": dict(sorted(skipped.items()))}
        self._replies.note(REFUSALS_SAMPLED, noted, now)

    def _admit(self, session: Session, reason: Reason, size: int, now: int) -> bool:
        """True if this refusal is handled in full."""
        self.note(now)
        if not self._clients:
            self._ends_us = now + WINDOW_US
        uri = session.address_for_replies
        client = self._clients.get(uri)
        if client is None:
            client = self._clients[uri] = _Client()
        client.session = session
        client.count += 1
        self._count += 1
        if client.count <= self._per_client and self._count <= self._in_all:
            return True
        client.skipped[reason.value] += 1
        client.bytes += size
        self.skipped[reason.value] += 1
        self._is_noting = True
        return False

    def _observe(self, session: Session, raw: bytes, reason: Reason, detail: str, size: int, now: int) -> str | None:
        """Returns the id of the message if readable."""
        salvaged = salvage(raw) if session.version == 2 else salvage_frame(raw)
        address = address_of(raw)
        sender = session.address_for_replies
        kept = raw[: self._evidence_bytes] if self._keeps_body(salvaged.message_type) else None
        self._outbound.observe(Stage.REJECTED, address, (sender,), now, reason, kept, size)
        self._outbound.log_rejected(address, salvaged, sender, size, reason, detail)
        return salvaged.id
