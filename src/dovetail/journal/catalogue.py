"""What a writer remembers of its journal's names and messages, and how observations become the rows of a commit.

A catalogue's numbers never change by encoding: it moves on only by `accept`, after the batch has been committed. Its
memory is bounded; what it has forgotten it finds again through the journal's indexes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.journal.addresses import AddressIndex
from dovetail.journal.layout import MAX_COUNTERPARTS, Counterparts, pack_names
from dovetail.journal.messages import MessageTuple
from dovetail.journal.reader import JournalReader
from dovetail.model.address import ADDRESS_BYTES, Address
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation
from dovetail.tlog.leaf import MAX_COUNTERPART_BYTES

RunRow = tuple[int, int, int, int, Counterparts]

_GENERATIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what a writer keeps in memory, and how far its lookup tables may lag behind."""

    messages_kept: int = 131_072
    names_kept: int = 262_144
    index_after_messages: int = 8_192
    index_after_runs: int = 32_768


class Batch:
    """The rows that one commit adds, and the counters after it.

    `seen` are the numbers of all its messages, as a catalogue keeps them; `older` those of messages of earlier commits.
    """

    __slots__ = (
        "bodies",
        "body_bytes",
        "end",
        "first_at_us",
        "last_at_us",
        "messages",
        "names",
        "older",
        "runs",
        "seen",
    )

    def __init__(self, size: int, recalled: dict[bytes, int]) -> None:
        self.end = size
        self.first_at_us = 0
        self.last_at_us = 0
        self.body_bytes = 0
        self.runs: list[RunRow] = []
        self.names: dict[str, int] = {}
        self.messages: list[MessageTuple] = []
        self.bodies: dict[int, MessageTuple] = {}
        self.older = [abs(number) for number in recalled.values()]
        self.seen = recalled

    def add_body(self, message_id: int, stored: MessageTuple, next_message: int) -> None:
        """The bytes of a message that was seen without them: in this batch, or earlier."""
        if message_id >= next_message:
            self.messages[message_id - next_message] = stored
        else:
            self.bodies[message_id] = stored


class Catalogue:
    """Numbers of names and messages. A message without bytes so far is kept as a negative number.

    Messages are kept in generations, the newest last: new ones go into a small table that stays near the processor, and
    the oldest table is forgotten as a whole.
    """

    __slots__ = (
        "_hashes_bytes",
        "_index",
        "_limits",
        "_messages",
        "_names",
        "_reader",
        "has_older_names",
        "next_message",
        "next_name",
    )

    def __init__(self, reader: JournalReader, index: AddressIndex, limits: Limits) -> None:
        self._reader = reader
        self._index = index
        self._limits = limits
        self._hashes_bytes = reader.identity.hashes_bytes
        self.next_message = reader.message_count + 1
        self.next_name: int = reader.one("SELECT coalesce(max(id), 0) + 1 FROM names")[0]
        newest: dict[bytes, int] = {}
        for block in reader.message_blocks(index.end):
            for message_id, message in enumerate(block.messages, block.first_id):
                newest[message.address] = message_id if message.body_seq is not None else -message_id
        self._messages = [newest]
        self._names: dict[str, int] = {}
        self.has_older_names = self.next_name > 1

    def encode(self, observations: Sequence[Observation], size: int, last_at_us: int) -> Batch:
        """The rows of one commit behind a journal of `size` hops. Times never go backwards."""
        addresses = list(dict.fromkeys([observation.message for observation in observations]))
        sizes = set(map(len, addresses))
        if sizes != {ADDRESS_BYTES}:
            raise JournalError(f"an address has {ADDRESS_BYTES} bytes, got {min(sizes - {ADDRESS_BYTES})}")
        batch = Batch(size, self._recall(addresses))
        names, seen = self._names, batch.seen
        runs, messages, next_message = batch.runs, batch.messages, self.next_message
        is_hash, sha256 = self._hashes_bytes, hashlib.sha256
        body_bytes, end = 0, size
        at_us = batch.first_at_us = max(last_at_us, observations[0].at_us)
        for observation in observations:
            address = observation.message
            message_id = seen.get(address)
            if message_id is None and (raw := observation.raw) is not None and observation.size is None:
                # a new message with all of its bytes, which is what most are
                message_id = seen[address] = next_message + len(messages)
                digest = b"" if is_hash or sha256(raw).digest() == address else sha256(raw).digest()
                raw_bytes = len(raw)
                messages.append((address, end, raw_bytes, digest, observation.expires_us, raw))
                body_bytes += raw_bytes
            elif message_id is None or message_id < 0:
                batch.end = end
                message_id = self._encode_message(observation, message_id, batch)
            counterparts = observation.counterparts
            packed: Counterparts
            if len(counterparts) == 1 and (packed := names.get(counterparts[0])) is not None:
                end += 1
            elif counterparts:
                packed = pack_names(self._number_names(counterparts, batch))
                end += len(counterparts)
            else:
                packed = None
                end += 1
            after_us = observation.at_us - at_us
            if after_us > 0:
                at_us += after_us
            else:
                after_us = 0
            reason = observation.reason
            runs.append((message_id, observation.stage.code, reason.code if reason else 0, after_us, packed))
        batch.end = end
        batch.body_bytes += body_bytes
        batch.last_at_us = at_us
        return batch

    def accept(self, batch: Batch) -> None:
        """The batch is committed."""
        self.next_name += len(batch.names)
        self.next_message += len(batch.messages)
        self._messages[-1].update(batch.seen)
        if batch.names:
            self._names.update(batch.names)
            if len(self._names) > self._limits.names_kept:
                self._names.clear()
                self.has_older_names = True

    def shrink(self) -> None:
        """Forget what can be found through the indexes; call it only when they are up to date."""
        kept = sum(map(len, self._messages))
        while self._messages and kept > self._limits.messages_kept:
            kept -= len(self._messages.pop(0))
        if not self._messages or len(self._messages[-1]) * _GENERATIONS >= self._limits.messages_kept:
            self._messages.append({})

    def _encode_message(self, observation: Observation, message_id: int | None, batch: Batch) -> int:
        """The number of a message that is new, or that had no bytes so far."""
        address, raw = observation.message, observation.raw
        size = observation.size
        has_body = raw is not None or size is not None
        if message_id is not None and not has_body:
            return -message_id
        if not has_body:
            stored: MessageTuple = (address, None, None, None, None, None)
        elif raw is None:
            digest = b"" if observation.digest == address else observation.digest
            stored = (address, batch.end, size, digest, None, None)
        else:
            size = len(raw) if size is None else size
            digest = hashlib.sha256(raw).digest()
            digest = b"" if digest == address else digest
            stored = (address, batch.end, size, digest, observation.expires_us, raw)
        batch.body_bytes += size or 0
        if message_id is not None:
            message_id = -message_id
            batch.add_body(message_id, stored, self.next_message)
        else:
            message_id = self.next_message + len(batch.messages)
            batch.messages.append(stored)
        batch.seen[address] = message_id if has_body else -message_id
        return message_id

    def _number_names(self, counterparts: tuple[str, ...], batch: Batch) -> list[int]:
        """Numbers of counterparts; new ones get theirs."""
        names = self._names
        try:
            return [names[name] for name in counterparts]
        except KeyError:
            pass
        if len(counterparts) > MAX_COUNTERPARTS:
            raise JournalError(f"{len(counterparts)} counterparts, expected at most {MAX_COUNTERPARTS}")
        ids = []
        for name in counterparts:
            number = names.get(name) or batch.names.get(name) or self._recall_name(name)
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

    def _recall(self, addresses: list[Address]) -> dict[bytes, int]:
        """The numbers of those messages that are not new, from memory or from the journal; each is asked for once."""
        recalled: dict[bytes, int] = {}
        forgotten: list[Address] = []
        for place in self._index.ask(addresses):
            address = addresses[place]
            number = self._remember(address)
            if number is not None:
                recalled[address] = number
            else:
                forgotten.append(address)
        candidates = self._index.candidates(forgotten) if forgotten else []
        if candidates:
            found = {row.address: row for row in self._reader.messages_by_id(candidates).values()}
            for address in forgotten:
                row = found.get(address)
                if row is not None:
                    recalled[address] = row.id if row.body_seq is not None else -row.id
        return recalled

    def _remember(self, address: Address) -> int | None:
        """The number of a message that is kept in memory."""
        for generation in reversed(self._messages):
            number = generation.get(address)
            if number is not None:
                return number
        return None
