"""A writer's cache of its journal's names and messages, and the encoding of observations as the rows of a commit.

Encoding does not change a catalogue's numbers: only `accept` does, after the batch is committed. Its memory is bounded;
what it has evicted is found again through the journal's indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.journal.addresses import AddressIndex
from dovetail.journal.encoding import Entries, encode_commit
from dovetail.journal.messages import MessageRow, MessageTuple
from dovetail.journal.reader import JournalReader
from dovetail.model.address import ADDRESS_BYTES
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation
from dovetail.tlog.leaf import MAX_COUNTERPART_BYTES

_GENERATIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a writer keeps in memory, and on how far its lookup tables may lag behind."""

    messages_kept: int = 131_072
    names_kept: int = 262_144
    index_after_messages: int = 8_192
    index_after_runs: int = 32_768


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit adds, encoded, and the counters after it.

    `numbers` maps all its messages, as a catalogue stores them; `older` those of messages of earlier commits, and
    `bodies` the bytes of those that only have them now.
    """

    end: int
    first_at_us: int
    last_at_us: int
    body_bytes: int
    runs: bytes
    rows: bytes
    names: dict[str, int]
    addresses: list[bytes]
    numbers: dict[bytes, int]
    older: list[int]
    bodies: dict[int, MessageTuple]
    expires_us: int | None
    entries: Entries


class Catalogue:
    """Numbers of names and messages. A message without bytes so far has a negative number.

    Messages are held in generations, the newest last: new ones go into a small table that stays in the CPU cache, and
    the oldest table is dropped as a whole.
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
        """Encode the rows of one commit after a journal of `size` hops. Times never decrease."""
        observations = observations if isinstance(observations, list) else list(observations)
        addresses: list[bytes] = list(dict.fromkeys([observation.message for observation in observations]))
        sizes = set(map(len, addresses))
        if sizes != {ADDRESS_BYTES}:
            raise JournalError(f"an address has {ADDRESS_BYTES} bytes, got {min(sizes - {ADDRESS_BYTES})}")
        recalled = self._recall(addresses)
        new_names: dict[str, int] = {}
        state = self.next_message, size, last_at_us, self._hashes_bytes
        try:
            encoded = encode_commit(observations, recalled, self._names, new_names, *state)
            if isinstance(encoded, list):
                self._number_names(encoded, new_names)
                encoded = encode_commit(observations, recalled, self._names, new_names, *state)
        except ValueError as error:
            raise JournalError(str(error)) from error
        assert not isinstance(encoded, list)
        (end, first_at_us, last_at_us, body_bytes), runs, rows, added, numbers, bodies, expires_us, entries = encoded
        return Batch(
            end=end,
            first_at_us=first_at_us,
            last_at_us=last_at_us,
            body_bytes=body_bytes,
            runs=runs,
            rows=rows,
            names={name: number for name, number in new_names.items() if number >= self.next_name},
            addresses=added,
            numbers={**recalled, **numbers} if recalled else numbers,
            older=[abs(number) for number in recalled.values()],
            bodies=bodies,
            expires_us=expires_us,
            entries=entries,
        )

    def accept(self, batch: Batch) -> None:
        """Take over the batch after it is committed."""
        self.next_name += len(batch.names)
        self.next_message += len(batch.addresses)
        self._messages[-1].update(batch.numbers)
        if batch.names:
            self._names.update(batch.names)
            if len(self._names) > self._limits.names_kept:
                self._names.clear()
                self.has_older_names = True

    def shrink(self) -> None:
        """Evict what the indexes can find; call it only when they are up to date."""
        kept = sum(map(len, self._messages))
        while self._messages and kept > self._limits.messages_kept:
            kept -= len(self._messages.pop(0))
        if not self._messages or len(self._messages[-1]) * _GENERATIONS >= self._limits.messages_kept:
            self._messages.append({})

    def _number_names(self, unknown: list[str], new_names: dict[str, int]) -> None:
        """Add the numbers of counterparts that are not in memory; new ones are assigned one."""
        next_name = self.next_name
        for name in unknown:
            if name not in new_names:
                number = self._recall_name(name)
                if number is None:
                    number, next_name = next_name, next_name + 1
                new_names[name] = number

    def _recall_name(self, name: str) -> int | None:
        size = len(name.encode())
        if not 0 < size <= MAX_COUNTERPART_BYTES:
            raise JournalError(f"counterpart of {size} bytes, expected 1 to {MAX_COUNTERPART_BYTES}")
        row = self._reader.one("SELECT id FROM names WHERE name = ?", (name,)) if self.has_older_names else None
        return None if row is None else int(row[0])

    def _recall(self, addresses: list[bytes]) -> dict[bytes, int]:
        """The numbers of the messages that are not new, from memory or the journal; each is looked up once."""
        recalled: dict[bytes, int] = {}
        forgotten = [addresses[place] for place in self._index.ask(addresses)]
        for generation in reversed(self._messages):
            known = {address: generation[address] for address in forgotten if address in generation}
            if known:
                recalled |= known
                forgotten = [address for address in forgotten if address not in known]
        candidates = self._index.candidates(forgotten) if forgotten else []
        if candidates:
            found: dict[bytes, MessageRow] = {
                row.address: row for row in self._reader.messages_by_id(candidates).values()
            }
            for address in forgotten:
                row = found.get(address)
                if row is not None:
                    recalled[address] = row.id if row.body_seq is not None else -row.id
        return recalled
