"""Replies to pulls: what is served and how much of it.

A pull by time is always answered with a list, the only acknowledgement there is, and with the messages themselves if at
most `push_limit` match (reading 13). A list has as many hashes as fit into one datagram and the budget of the asker
(`Contact.budget_bytes`). It is cut between two milliseconds and states the end that it covers; only if a single
millisecond has more messages than fit is it cut within it, and the next list to an asker that continues at this
millisecond starts after the last one. A list also includes messages that arrived here late and are older than the range
(`late_messages`); its start is then earlier: "the actual time range of messages be included". The graph contains only
what may be served: no expired messages and none with ttl 0.
"""

from __future__ import annotations

from typing import Final

from dovetail.swarm.acceptance import Entry
from dovetail.swarm.contacts import Contact, ListCursor
from dovetail.swarm.content import HASH_BYTES
from dovetail.swarm.dag import Dag
from dovetail.swarm.late_messages import LateMessages
from dovetail.swarm.packet import HEADER_BYTES
from dovetail.swarm.queries import LIST_HEAD_BYTES, MAX_HASHES_SENT, PullHashes, PullRange, encode_range_list
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
        room = (contact.budget_bytes(now) - OVERHEAD_BYTES - LIST_HEAD_BYTES) // HASH_BYTES
        entries, end_ms = self._cut(query, min(MAX_HASHES_SENT, room), contact)
        late = self._late_messages.before(query.start_ms, min(MAX_HASHES_SENT, room) - len(entries), now)
        start_ms = late[0].timestamp_ms if late else query.start_ms
        hashes = [entry.msg_hash for entry in (*late, *entries)]
        answer = encode_range_list(query.ticket, start_ms, end_ms, hashes)
        if not contact.may_send(len(answer) + OVERHEAD_BYTES, now):
            raise RateLimited(f"{contact.endpoint} was sent more than its rate")
        if len(entries) > self._push_limit:
            return answer, []
        return answer, [entry for entry in entries if _may_serve(entry, contact, now)]

    def _cut(self, query: PullRange, room: int, contact: Contact) -> tuple[list[Entry], int]:
        """At most `room` messages of a range, and the end of what they cover; raises RateLimited if none fits."""
        cursor, begin = contact.list_cursor, b""
        if cursor is not None and cursor.timestamp_ms == query.start_ms:
            # a pull that the network duplicated gets the same list again
            begin = cursor.begin if cursor.ticket == query.ticket else cursor.end
        entries: list[Entry] = []
        for entry in self._dag.between(query.start_ms, query.end_ms):
            if entry.timestamp_ms == query.start_ms and entry.address <= begin:
                continue
            if len(entries) < room:
                entries.append(entry)
                continue
            if not entries:
                raise RateLimited(f"{contact.endpoint} was sent more than its rate")
            if entries[0].timestamp_ms != entry.timestamp_ms:
                return [one for one in entries if one.timestamp_ms != entry.timestamp_ms], entry.timestamp_ms - 1
            contact.list_cursor = ListCursor(query.ticket, entry.timestamp_ms, begin, entries[-1].address)
            return entries, entry.timestamp_ms
        return entries, query.end_ms


def _check_rate(contact: Contact, now: int) -> None:
    if not contact.queries.take(1, now):
        raise RateLimited(f"{contact.endpoint} asked more often than its rate")


def _may_serve(entry: Entry, contact: Contact, now: int) -> bool:
    return contact.may_send(len(entry.raw) + OVERHEAD_BYTES, now)
