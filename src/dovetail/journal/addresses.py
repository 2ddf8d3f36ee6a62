"""The index from addresses to message numbers: append-only runs, and a filter for addresses never seen.

Addresses are hashes, so inserting them into a B-tree dirties pages all over it. Here the messages of one indexing are
one run: a row per first byte of the address (its bucket) with the concatenated entries of that bucket, each the first
8 bytes of an address and the message's number. Runs are ordered by message number; small ones are merged, which is a
concatenation per bucket, so that a lookup reads one row in each of a few runs.

Most addresses that a writer sees are new, and for those it reads no row: a filter per million messages answers "never
seen" or "maybe". Filters are built from the runs on a writer's first lookup, and are never stored.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail.fast import twin
from dovetail.journal.database import Connection
from dovetail.model.address import ADDRESS_BYTES
from dovetail.model.errors import JournalDamaged

BUCKETS = 256
PREFIX_BYTES = 8
ENTRY_BYTES = PREFIX_BYTES + 8
SMALL_RUN = 1 << 17
SMALL_RUNS = 16
GENERATION_BITS = 20
MAX_FILTERS = 32

_GENERATION = 1 << GENERATION_BITS
_ENTRY = struct.Struct(f">{PREFIX_BYTES}sQ")
_FILTER_KEY = struct.Struct(">HBB28x")
_FILTER_ROWS = 128
# an address sets 3 of the 8 bits in a block, chosen by one of its bytes
_MASKS = [1 << a | 1 << b | 1 << c for a in range(8) for b in range(a) for c in range(b)]
_MASK_OF_BYTE = [_MASKS[byte % len(_MASKS)] for byte in range(256)]


class Rows(Protocol):
    """The part of a journal's reader that is needed here."""

    def all(self, sql: str, parameters: Iterable[int] = ...) -> list[Any]: ...


@twin
class AddressFilter:
    """Answers whether an address was never added or maybe was: 8 MiB for a million addresses.

    Two bytes of the address select the block in a row, one the row, one the bits: all small integers, which the
    interpreter does not allocate. When full, its false positive rate is one in three hundred.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = [bytearray(1 << 16) for _ in range(_FILTER_ROWS)] * (256 // _FILTER_ROWS)

    def add(self, addresses: list[bytes]) -> None:
        """Add full addresses."""
        rows, masks = self._rows, _MASK_OF_BYTE
        for block, row, byte in _FILTER_KEY.iter_unpack(b"".join(addresses)):
            rows[row][block] |= masks[byte]

    def hits(self, addresses: list[bytes]) -> list[int]:
        """Indexes into `addresses` of those that may have been added; all others never were."""
        rows, masks = self._rows, _MASK_OF_BYTE
        return [
            place
            for place, (block, row, byte) in enumerate(_FILTER_KEY.iter_unpack(b"".join(addresses)))
            if rows[row][block] & (mask := masks[byte]) == mask
        ]

    def ask(self, addresses: list[bytes]) -> list[int]:
        """Indexes of those that may have been added, or occur earlier in `addresses`; adds all of them."""
        rows, masks = self._rows, _MASK_OF_BYTE
        places = []
        for place, (block, row, byte) in enumerate(_FILTER_KEY.iter_unpack(b"".join(addresses))):
            blocks = rows[row]
            before = blocks[block]
            after = before | masks[byte]
            if after == before:
                places.append(place)
            else:
                blocks[block] = after
        return places


@dataclass(frozen=True, slots=True)
class AddressRun:
    """One run: the messages numbered from `first_id`."""

    first_id: int
    count: int

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first_id + self.count


@twin
def encode_buckets(addresses: list[bytes], first_id: int) -> dict[int, bytes]:
    """Encode the rows of a run over messages numbered from `first_id`: entries by bucket, in order of the numbers."""
    lists: list[list[bytes]] = [[] for _ in range(BUCKETS)]
    for entry in map(_ENTRY.pack, addresses, range(first_id, first_id + len(addresses))):
        lists[entry[0]].append(entry)
    return {bucket: b"".join(entries) for bucket, entries in enumerate(lists) if entries}


def search_bucket(entries: bytes, prefix: bytes) -> Iterator[int]:
    """Numbers of the messages in a row whose address starts with the first 8 bytes of `prefix`."""
    prefix = prefix[:PREFIX_BYTES]
    place = entries.find(prefix)
    while place >= 0:
        if place % ENTRY_BYTES == 0:
            yield int.from_bytes(entries[place + PREFIX_BYTES : place + ENTRY_BYTES])
        place = entries.find(prefix, place + 1)


def search_runs(rows: Rows, prefix: bytes, first_id: int = 0, end: int = 1 << 54) -> Iterator[int]:
    """Numbers of messages from `first_id` to `end` whose address may start with `prefix`, which is not empty."""
    found = rows.all(
        f"SELECT entries FROM address_runs JOIN address_index ON id = first_id * {BUCKETS} + ? "
        "WHERE first_id < ? AND first_id + count > ? ORDER BY first_id",
        (prefix[0], end, first_id),
    )
    for (entries,) in found:
        yield from search_bucket(_check_entries(entries), prefix)


def read_runs(rows: Rows) -> list[AddressRun]:
    """All runs, in order of the messages."""
    found = rows.all("SELECT first_id, count FROM address_runs ORDER BY first_id")
    if any(value.__class__ is not int for row in found for value in row):
        raise JournalDamaged("a row of the table address_runs does not hold what it should")
    return [AddressRun(*row) for row in found]


def read_rows(rows: Rows, first_id: int, last_first_id: int) -> list[tuple[int, bytes]]:
    """(bucket, entries) of the runs that start between two numbers, inclusive, in order of the runs."""
    found = rows.all(
        "SELECT id, entries FROM address_index WHERE id BETWEEN ? AND ? ORDER BY id",
        (_row_key(first_id, 0), _row_key(last_first_id, BUCKETS - 1)),
    )
    return [(key % BUCKETS, _check_entries(entries)) for key, entries in found]


def _check_entries(entries: object) -> bytes:
    if not isinstance(entries, bytes) or len(entries) % ENTRY_BYTES:
        raise JournalDamaged("a row of the table address_index does not hold what it should")
    return entries


class AddressIndex:
    """The writer's side: adds runs, merges small ones, and knows which addresses need no lookup."""

    __slots__ = ("_filters", "_rows", "_runs", "waiting")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._runs = read_runs(rows)
        self._filters: dict[int, AddressFilter] | None = None
        self.waiting: list[bytes] = []

    @property
    def end(self) -> int:
        """The number after the last indexed message."""
        return self._runs[-1].end if self._runs else 1

    def ask(self, addresses: list[bytes]) -> Collection[int]:
        """Indexes into `addresses` of those that may have been asked for or added before; all others never were.

        Ask for addresses directly before adding them. A filter's memory is rarely in the CPU cache: asking and adding
        in one step loads it once. So the second of two equal addresses is reported too, and an address that is then not
        added costs a needless lookup if it is asked for again.
        """
        if not self._runs:
            return range(len(addresses))  # a small journal needs no filter
        filters, next_id = self._loaded_filters(), self.end + len(self.waiting)
        places: set[int] = set()
        growing = range(next_id >> GENERATION_BITS, (next_id + len(addresses) - 1 >> GENERATION_BITS) + 1)
        for generation in growing:
            places.update(_filter_of(filters, generation).ask(addresses))
        if min(filters):
            return range(len(addresses))
        for generation, known in filters.items():
            if generation not in growing:
                places.update(known.hits(addresses))
        return places

    def add(self, addresses: Sequence[bytes]) -> None:
        """Queue the addresses of the messages that follow, for the next `insert`."""
        self.waiting += addresses

    def candidates(self, addresses: list[bytes]) -> list[int]:
        """Numbers of indexed messages that may have one of these addresses; none if all are new."""
        found: list[int] = []
        filters = self._loaded_filters() if self._runs else {}
        for generation, known in filters.items():
            first_id = generation << GENERATION_BITS
            for place in known.hits(addresses):
                found += search_runs(self._rows, addresses[place], first_id, first_id + _GENERATION)
        unfiltered_end = min(filters, default=0) << GENERATION_BITS
        if unfiltered_end:
            for address in addresses:
                found += search_runs(self._rows, address, 0, unfiltered_end)
        return found

    def insert(self, connection: Connection) -> list[AddressRun]:
        """Store the queued addresses as a run, inside the caller's transaction; pass the result to `accept`."""
        if not self.waiting:
            return self._runs
        new = AddressRun(self.end, len(self.waiting))
        rows = encode_buckets(self.waiting, new.first_id)
        small = self._small_runs()
        if len(small) + 1 >= SMALL_RUNS:
            first_id = small[0].first_id
            rows = self._join(small, rows)
            connection.execute("DELETE FROM address_index WHERE id >= ?", (_row_key(first_id, 0),))
            connection.execute("DELETE FROM address_runs WHERE first_id >= ?", (first_id,))
            new = AddressRun(first_id, new.end - first_id)
            kept = self._runs[: -len(small)]
        else:
            kept = self._runs
        connection.execute("INSERT INTO address_runs VALUES (?, ?)", (new.first_id, new.count))
        connection.executemany(
            "INSERT INTO address_index VALUES (?, ?)",
            [(_row_key(new.first_id, bucket), entries) for bucket, entries in sorted(rows.items())],
        )
        return [*kept, new]

    def accept(self, runs: list[AddressRun]) -> None:
        """Take over the result of `insert` after its transaction is committed."""
        self._runs = runs
        self.waiting.clear()

    def _small_runs(self) -> list[AddressRun]:
        """The newest runs, while they are small."""
        small: list[AddressRun] = []
        for run in reversed(self._runs):
            if run.count >= SMALL_RUN:
                break
            small.append(run)
        return small[::-1]

    def _join(self, runs: list[AddressRun], behind: dict[int, bytes]) -> dict[int, bytes]:
        """Merge the rows of several runs, followed by `behind`, into those of one."""
        parts: dict[int, list[bytes]] = {}
        for bucket, entries in (*read_rows(self._rows, runs[0].first_id, runs[-1].first_id), *behind.items()):
            parts.setdefault(bucket, []).append(entries)
        return {bucket: b"".join(entries) for bucket, entries in parts.items()}

    def _loaded_filters(self) -> dict[int, AddressFilter]:
        """Filters of the newest generations; built from the runs on first use."""
        if self._filters is None:
            self._filters = {}
            first_kept = max((self.end - 1 >> GENERATION_BITS) - MAX_FILTERS + 1, 0) << GENERATION_BITS
            for run in self._runs:
                if run.end > first_kept:
                    self._load_run(self._filters, run)
            _add_to_filters(self._filters, self.waiting, self.end)
        return self._filters

    def _load_run(self, filters: dict[int, AddressFilter], run: AddressRun) -> None:
        entries = b"".join([row for _, row in read_rows(self._rows, run.first_id, run.first_id)])
        numbered = sorted((number, prefix) for prefix, number in _ENTRY.iter_unpack(entries))
        _add_to_filters(filters, [prefix.ljust(ADDRESS_BYTES, b"\0") for _, prefix in numbered], run.first_id)


def _add_to_filters(filters: dict[int, AddressFilter], addresses: list[bytes], first_id: int) -> None:
    """Add messages numbered from `first_id`, each to the filter of its generation."""
    while addresses:
        generation, place = divmod(first_id, _GENERATION)
        _filter_of(filters, generation).add(addresses[: _GENERATION - place])
        addresses = addresses[_GENERATION - place :]
        first_id += _GENERATION - place


def _filter_of(filters: dict[int, AddressFilter], generation: int) -> AddressFilter:
    """The filter of a generation; at the limit, a new one evicts the oldest."""
    if generation not in filters:
        filters[generation] = AddressFilter()
        if len(filters) > MAX_FILTERS:
            del filters[min(filters)]
    return filters[generation]


def _row_key(first_id: int, bucket: int) -> int:
    return first_id * BUCKETS + bucket
