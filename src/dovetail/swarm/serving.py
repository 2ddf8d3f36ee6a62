"""Answers to pulls: what is served, how much of it, and never anything expired or of ttl 0.

A pull by time is always answered with a list, the only acknowledgement there is, and with the messages themselves
when at most `push_limit` match (reading 13). A list is cut only between two milliseconds and says which end it really
covers. Only where one single millisecond has more than 170 messages the list grows, up to 255 and two fragments; what
is beyond that is found by references. A list also names what came here late and lies before the range (`latecomers`);
it then says an earlier start: "the actual time range of messages be included". Answers to one source are bounded
(`Contact.may_send`): a reply may be partial.
"""

from __future__ import annotations

from typing import Final

from dovetail.swarm.contacts import Contact
from dovetail.swarm.dag import Dag, Entry
from dovetail.swarm.late_messages import Latecomers
from dovetail.swarm.packet import HEADER_BYTES
from dovetail.swarm.queries import MAX_HASHES, MAX_HASHES_SENT, PullHashes, PullRange, encode_range_list
from dovetail.swarm.refusals import RateLimited

OVERHEAD_BYTES: Final = HEADER_BYTES + 2


class Serving:
    """Answers from one DAG."""

    def __init__(self, dag: Dag, push_limit: int, latecomers: Latecomers) -> None:
        self._dag = dag
        self._push_limit = push_limit
        self._latecomers = latecomers

    def answer_hashes(self, query: PullHashes, contact: Contact, now: int) -> list[Entry]:
        """The messages to send; raises RateLimited."""
        self._check_rate(contact, now)
        return [
            entry
            for msg_hash in dict.fromkeys(query.hashes)
            for entry in self._dag.by_hash(msg_hash)
            if self._may_serve(entry, contact, now)
        ]

    def answer_range(self, query: PullRange, contact: Contact, now: int) -> tuple[bytes, list[Entry]]:
        """The list to send and the messages to push with it; raises RateLimited."""
        self._check_rate(contact, now)
        entries, end_ms = self._cut(query, now // 1000)
        late = self._latecomers.named_before(query.start_ms, MAX_HASHES_SENT - len(entries), now)
        start_ms = late[0].timestamp_ms if late else query.start_ms
        hashes = [entry.msg_hash for entry in (*late, *entries)]
        answer = encode_range_list(query.ticket, start_ms, end_ms, hashes)
        if not contact.may_send(len(answer) + OVERHEAD_BYTES, now):
            raise RateLimited(f"{contact.endpoint} was sent its share")
        if len(entries) > self._push_limit:
            return answer, []
        return answer, [entry for entry in entries if self._may_serve(entry, contact, now)]

    def _cut(self, query: PullRange, now_ms: int) -> tuple[list[Entry], int]:
        entries: list[Entry] = []
        for entry in self._dag.between(query.start_ms, query.end_ms):
            if entry.expires_ms <= now_ms:
                continue
            if len(entries) >= MAX_HASHES_SENT and entry.timestamp_ms != entries[-1].timestamp_ms:
                return entries, entry.timestamp_ms - 1
            if len(entries) == MAX_HASHES_SENT and entries[0].timestamp_ms != entry.timestamp_ms:
                kept = [one for one in entries if one.timestamp_ms != entry.timestamp_ms]
                return kept, entry.timestamp_ms - 1
            if len(entries) == MAX_HASHES:
                return entries, entry.timestamp_ms
            entries.append(entry)
        return entries, query.end_ms

    def _check_rate(self, contact: Contact, now: int) -> None:
        if not contact.queries.take(1, now):
            raise RateLimited(f"{contact.endpoint} asked more than its share")

    def _may_serve(self, entry: Entry, contact: Contact, now: int) -> bool:
        return entry.expires_ms > now // 1000 and contact.may_send(len(entry.raw) + OVERHEAD_BYTES, now)
