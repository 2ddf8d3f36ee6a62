"""What a writer remembers of its journal's names and messages, and how observations become the rows of a commit.

A catalogue never changes by encoding: it moves on only by `accept`, after the batch has been committed. Its memory is
bounded; what it has forgotten it finds again through the journal's indexes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.errors import JournalError
from dovetail.hop import ADDRESS_BYTES, Address, Observation
from dovetail.journal.database import index_prefix
from dovetail.journal.layout import MAX_COUNTERPART_BYTES, MAX_COUNTERPARTS, Counterparts, pack_names
from dovetail.journal.reader import JournalReader

_SQL_VARIABLES = 500

RunRow = tuple[int, int, int, int, Counterparts]
MessageRow = tuple[int, bytes, int | None, int | None, bytes | None, int | None, bytes | None]
BodyRow = tuple[int | None, int | None, bytes | None, int | None, bytes | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what a writer keeps in memory, and how far its lookup tables may lag behind."""

    messages_kept: int = 131_072
    names_kept: int = 262_144
    index_after_messages: int = 8_192
    index_after_runs: int = 32_768


class Batch:
    """The rows that one commit adds, and the counters after it."""

    __slots__ = ("bodies", "body_bytes", "end", "first_at_us", "last_at_us", "messages", "names", "runs", "seen")

    def __init__(self, size: int) -> None:
        self.end = size
        self.first_at_us = 0
        self.last_at_us = 0
        self.body_bytes = 0
        self.runs: list[RunRow] = []
        self.names: dict[str, int] = {}
        self.messages: list[MessageRow] = []
        self.bodies: list[BodyRow] = []
        self.seen: dict[bytes, int] = {}


class Catalogue:
    """Numbers of names and messages. A message without bytes so far is kept as a negative number."""

    __slots__ = (
        "_limits",
        "_messages",
        "_names",
        "_reader",
        "has_older_messages",
        "has_older_names",
        "next_message",
        "next_name",
    )

    def __init__(self, reader: JournalReader, indexed_message: int, limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self.next_message: int = reader.one("SELECT coalesce(max(id), 0) + 1 FROM messages")[0]
        self.next_name: int = reader.one("SELECT coalesce(max(id), 0) + 1 FROM names")[0]
        self._messages: dict[bytes, int] = dict(
            reader.all(
                "SELECT address, CASE WHEN body_seq IS NULL THEN -id ELSE id END FROM messages WHERE id > ?",
                (indexed_message,),
            )
        )
        self._names: dict[str, int] = {}
        self.has_older_messages = indexed_message > 0
        self.has_older_names = self.next_name > 1

    def encode(self, observations: Sequence[Observation], size: int, last_at_us: int) -> Batch:
        """The rows of one commit behind a journal of `size` hops. Times never go backwards."""
        batch = Batch(size)
        if self.has_older_messages:
            self._recall(observations)
        names = self._names
        at_us = batch.first_at_us = max(last_at_us, observations[0].at_us)
        for observation in observations:
            before_us, at_us = at_us, max(at_us, observation.at_us)
            message_id = self._encode_message(observation, batch)
            reason = observation.reason
            counterparts: Counterparts = None
            count = 1
            if observation.counterparts:
                count = len(observation.counterparts)
                try:
                    ids = [names[name] for name in observation.counterparts]
                except KeyError:
                    ids = self._intern(observation.counterparts, batch)
                counterparts = pack_names(ids)
            batch.runs.append(
                (message_id, observation.stage.code, reason.code if reason else 0, at_us - before_us, counterparts)
            )
            batch.end += count
        batch.last_at_us = at_us
        return batch

    def accept(self, batch: Batch) -> None:
        """The batch is committed."""
        self.next_name += len(batch.names)
        self.next_message += len(batch.messages)
        self._messages.update(batch.seen)
        if batch.names:
            self._names.update(batch.names)
            if len(self._names) > self._limits.names_kept:
                self._names.clear()
                self.has_older_names = True

    def shrink(self) -> None:
        """Forget what can be found through the indexes; call it only when they are up to date."""
        if len(self._messages) > self._limits.messages_kept:
            for address in list(self._messages)[: len(self._messages) // 2]:
                del self._messages[address]
        self.has_older_messages = True

    def _encode_message(self, observation: Observation, batch: Batch) -> int:
        address, raw = observation.message, observation.raw
        message_id = batch.seen.get(address) or self._messages.get(address)
        has_body = raw is not None or observation.size is not None
        if message_id is not None and (message_id > 0 or not has_body):
            return abs(message_id)
        digest: bytes | None = None
        size = observation.size
        if raw is not None:
            size = len(raw) if size is None else size
            digest = hashlib.sha256(raw).digest()
            digest = b"" if digest == address else digest
        batch.body_bytes += size or 0
        expires_us = observation.expires_us if raw is not None else None
        body = (batch.end if has_body else None, size, digest, expires_us, raw)
        if message_id is not None:
            batch.bodies.append((*body, -message_id))
            batch.seen[address] = -message_id
            return -message_id
        if len(address) != ADDRESS_BYTES:
            raise JournalError(f"an address has {ADDRESS_BYTES} bytes, got {len(address)}")
        message_id = self.next_message + len(batch.messages)
        batch.messages.append((message_id, address, *body))
        batch.seen[address] = message_id if has_body else -message_id
        return message_id

    def _intern(self, counterparts: tuple[str, ...], batch: Batch) -> list[int]:
        """Numbers of counterparts, some of which are not in memory."""
        if len(counterparts) > MAX_COUNTERPARTS:
            raise JournalError(f"{len(counterparts)} counterparts, expected at most {MAX_COUNTERPARTS}")
        ids = []
        for name in counterparts:
            number = self._names.get(name) or batch.names.get(name)
            if number is None:
                number = self._recall_name(name)
            if number is None:
                number = batch.names[name] = self.next_name + len(batch.names)
            ids.append(number)
        return ids

    def _recall_name(self, name: str) -> int | None:
        size = len(name.encode())
        if not 0 < size <= MAX_COUNTERPART_BYTES:
            raise JournalError(f"counterpart of {size} bytes, expected 1 to {MAX_COUNTERPART_BYTES}")
        row = self._reader.one("SELECT id FROM names WHERE name = ?", (name,)) if self.has_older_names else None
        if row is None:
            return None
        number: int = row[0]
        self._names[name] = number
        return number

    def _recall(self, observations: Sequence[Observation]) -> None:
        """Bring back to memory what the journal has of these messages."""
        missing = sorted({o.message for o in observations if o.message not in self._messages})
        for start in range(0, len(missing), _SQL_VARIABLES):
            self._recall_part(missing[start : start + _SQL_VARIABLES])

    def _recall_part(self, addresses: list[Address]) -> None:
        marks = ",".join("?" * len(addresses))
        rows = self._reader.all(
            "SELECT m.address, CASE WHEN m.body_seq IS NULL THEN -m.id ELSE m.id END "
            f"FROM address_index a JOIN messages m ON m.id = a.message_id WHERE a.prefix IN ({marks})",
            [index_prefix(address) for address in addresses],
        )
        self._messages.update(rows)
