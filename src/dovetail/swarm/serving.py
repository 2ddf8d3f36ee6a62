"""Replies to pulls: what is served and how much of it.

A pull by time is always answered with a list, the only acknowledgement there is, and with the messages themselves
if at most `push_limit` match (reading 13). A list is cut only between two milliseconds and states the end that it
covers. If a single millisecond has more than 170 messages the list grows, up to 255 and two fragments; messages beyond
that are found by references. A list also includes messages that arrived here late and are older than the range
(`late_messages`); its start is then earlier: "the actual time range of messages be included". Replies to one source
are bounded (`Contact.may_send`) and may be partial. The graph holds only what may be served: neither expired messages
nor those of ttl 0.
"""

from __future__ import annotations

from typing import Final

from dovetail.swarm.acceptance import Entry
from dovetail.swarm.contacts import Contact
from dovetail.swarm.dag import Dag
from dovetail.swarm.late_messages import LateMessages
from dovetail.swarm.packet import HEADER_BYTES
from dovetail.swarm.queries import MAX_HASHES, MAX_HASHES_SENT, PullHashes, PullRange, encode_range_list
from dovetail.swarm.refusals import RateLimited

OVERHEAD_BYTES: Final = HEADER_BYTES + 2


class Serving:
    """Replies from one DAG."""

    def __init__(self, dag: Dag, push_limit: int, late_messages: LateMessages) -> None:
        self._dag = dag
        self._push_limit = push_limit
        self._late_messages = late_messages

    def answer_hashes(self, query: PullHashes, contact: Contact, now: int) -> list[Entry]:
        """The messages to send; raises RateLimited."""
        _check_rate(contact, now)
        return [
            entry
            for msg_hash in dict.fromkeys(query.hashes)
            for entry in self._dag.by_hash(msg_hash)
            if _may_serve(entry, contact, now)
        ]

    def answer_range(self, query: PullRange, contact: Contact, now: int) -> tuple[bytes, list[Entry]]:
        """The list to send and the messages to push with it; raises RateLimited."""
        _check_rate(contact, now)
        entries, end_ms = self._cut(query)
        late = self._late_messages.before(query.start_ms, MAX_HASHES_SENT - len(entries), now)
        start_ms = late[0].timestamp_ms if late else query.start_ms
        hashes = [entry.msg_hash for entry in (*late, *entries)]
        answer = encode_range_list(query.ticket, start_ms, end_ms, hashes)
        if not contact.may_send(len(answer) + OVERHEAD_BYTES, now):
            raise RateLimited(f"{contact.endpoint} was sent more than its rate")
        if len(entries) > self._push_limit:
            return answer, []
        return answer, [entry for entry in entries if _may_serve(entry, contact, now)]

    def _cut(self, query: PullRange) -> tuple[list[Entry], int]:
        entries: list[Entry] = []
        for entry in self._dag.between(query.start_ms, query.end_ms):
            if len(entries) >= MAX_HASHES_SENT and entry.timestamp_ms != entries[-1].timestamp_ms:
                return entries, entry.timestamp_ms - 1
            if len(entries) == MAX_HASHES_SENT and entries[0].timestamp_ms != entry.timestamp_ms:
                kept = [one for one in entries if one.timestamp_ms != entry.timestamp_ms]
                return kept, entry.timestamp_ms - 1
            if len(entries) == MAX_HASHES:
                return entries, entry.timestamp_ms
            entries.append(entry)
        return entries, query.end_ms


def _check_rate(contact: Contact, now: int) -> None:
    if not contact.queries.take(1, now):
        raise RateLimited(f"{contact.endpoint} asked more often than its rate")


def _may_serve(entry: Entry, contact: Contact, now: int) -> bool:
    return contact.may_send(len(entry.raw) + OVERHEAD_BYTES, now)
