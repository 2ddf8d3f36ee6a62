"""The index from addresses to message numbers: append-only runs, and a filter that knows what was never seen.

Addresses are hashes, so a B-tree over them is written all over with every insert. Here the messages of one indexing are
one run: a row for each first byte of an address (its bucket) with the entries of that bucket behind each other, each
the first 8 bytes of the address and the message's number. Runs follow each other in the order of the numbers; small
ones are joined, which is a concatenation bucket by bucket, so that a lookup reads one row in each of few runs.

Most addresses that a writer meets are new, and for those it asks no row: a filter for every million messages says
"never seen" or "perhaps". It is built from the runs when a writer first asks, and is never stored.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail.fast import twin
from dovetail.journal.database import Connection
from dovetail.model.address import ADDRESS_BYTES

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
# each block of 8 bits gets 3 of them for an address, chosen by one of its bytes
_MASKS = [1 << a | 1 << b | 1 << c for a in range(8) for b in range(a) for c in range(b)]
_MASK_OF_BYTE = [_MASKS[byte % len(_MASKS)] for byte in range(256)]


class Rows(Protocol):
    """What is needed of a journal's reader."""

    def all(self, sql: str, parameters: Iterable[int] = ...) -> list[Any]: ...


@twin
class AddressFilter:
    """Says of an address that it was never added, or perhaps was: 8 MiB for a million addresses.

    Two bytes of an address choose the block in a row, one the row, one the bits: small integers all, which the
    interpreter does not allocate. Of addresses that were never added it mistakes one in three hundred when it is full.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = [bytearray(1 << 16) for _ in range(_FILTER_ROWS)] * (256 // _FILTER_ROWS)

    def add(self, addresses: list[bytes]) -> None:
        """Remember full addresses."""
        rows, masks = self._rows, _MASK_OF_BYTE
        for block, row, byte in _FILTER_KEY.iter_unpack(b"".join(addresses)):
            rows[row][block] |= masks[byte]

    def hits(self, addresses: list[bytes]) -> list[int]:
        """Places in `addresses` of those that may have been added; all others never were."""
        rows, masks = self._rows, _MASK_OF_BYTE
        return [
            place
            for place, (block, row, byte) in enumerate(_FILTER_KEY.iter_unpack(b"".join(addresses)))
            if rows[row][block] & (mask := masks[byte]) == mask
        ]

    def ask(self, addresses: list[bytes]) -> list[int]:
        """Places of those that may have been added, or that stand before in `addresses`; all are added by this."""
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
    """One run: the messages numbered from `first_id` on."""

    first_id: int
    count: int

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first_id + self.count


@twin
def encode_buckets(addresses: list[bytes], first_id: int) -> dict[int, bytes]:
    """The rows of a run over messages numbered from `first_id`: entries by bucket, in the order of the numbers."""
    lists: list[list[bytes]] = [[] for _ in range(BUCKETS)]
    for entry in map(_ENTRY.pack, addresses, range(first_id, first_id + len(addresses))):
        lists[entry[0]].append(entry)
    return {bucket: b"".join(entries) for bucket, entries in enumerate(lists) if entries}


def search_bucket(entries: bytes, prefix: bytes) -> Iterator[int]:
    """Numbers of the messages in a row whose address begins with `prefix`, as far as 8 bytes can tell."""
    prefix = prefix[:PREFIX_BYTES]
    place = entries.find(prefix)
    while place >= 0:
        if place % ENTRY_BYTES == 0:
            yield int.from_bytes(entries[place + PREFIX_BYTES : place + ENTRY_BYTES])
        place = entries.find(prefix, place + 1)


def search_runs(rows: Rows, prefix: bytes, first_id: int = 0, end: int = 1 << 54) -> Iterator[int]:
    """Numbers of messages between `first_id` and `end` that may begin with `prefix`, which is not empty."""
    found = rows.all(
        f"SELECT entries FROM address_runs JOIN address_index ON id = first_id * {BUCKETS} + ? "
        "WHERE first_id < ? AND first_id + count > ? ORDER BY first_id",
        (prefix[0], end, first_id),
    )
    for (entries,) in found:
        yield from search_bucket(entries, prefix)


def read_runs(rows: Rows) -> list[AddressRun]:
    """All runs, in the order of the messages."""
    return [AddressRun(*row) for row in rows.all("SELECT first_id, count FROM address_runs ORDER BY first_id")]


def read_rows(rows: Rows, first_id: int, last_first_id: int) -> list[tuple[int, bytes]]:
    """(bucket, entries) of the runs that begin between two numbers, both included, in the order of the runs."""
    found = rows.all(
        "SELECT id, entries FROM address_index WHERE id BETWEEN ? AND ? ORDER BY id",
        (_row_key(first_id, 0), _row_key(last_first_id, BUCKETS - 1)),
    )
    return [(key % BUCKETS, entries) for key, entries in found]


class AddressIndex:
    """The writer's side: adds runs, joins small ones, and knows which addresses it need not look up."""

    __slots__ = ("_filters", "_rows", "_runs", "waiting")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._runs = read_runs(rows)
        self._filters: dict[int, AddressFilter] | None = None
        self.waiting: list[bytes] = []

    @property
    def end(self) -> int:
        """The number after the last message that is indexed."""
        return self._runs[-1].end if self._runs else 1

    def ask(self, addresses: list[bytes]) -> Collection[int]:
        """Places in `addresses` of those that may have been asked for or added before; all others never were.

        What is to be added must have been asked for just before. A filter's memory is seldom near the processor:
        asking and adding in one step fetches it once. So the second of two equal addresses is named too, and what is
        then not added costs a needless lookup, if it is ever asked for again.
        """
        if not self._runs:
            return range(len(addresses))  # a small journal does without a filter
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
        """The messages that follow have these addresses; they wait for the next `insert`."""
        self.waiting += addresses

    def candidates(self, addresses: list[bytes]) -> list[int]:
        """Numbers of indexed messages that may have one of these addresses; none where all of them are new."""
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
        """Store what waits as a run, inside the caller's transaction; give the result to `accept`."""
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
        """The transaction of `insert` is committed."""
        self._runs = runs
        self.waiting.clear()

    def _small_runs(self) -> list[AddressRun]:
        """The newest runs, as far as they are small."""
        small: list[AddressRun] = []
        for run in reversed(self._runs):
            if run.count >= SMALL_RUN:
                break
            small.append(run)
        return small[::-1]

    def _join(self, runs: list[AddressRun], behind: dict[int, bytes]) -> dict[int, bytes]:
        """The rows of several runs, and `behind` after them, as those of one."""
        parts: dict[int, list[bytes]] = {}
        for bucket, entries in (*read_rows(self._rows, runs[0].first_id, runs[-1].first_id), *behind.items()):
            parts.setdefault(bucket, []).append(entries)
        return {bucket: b"".join(entries) for bucket, entries in parts.items()}

    def _loaded_filters(self) -> dict[int, AddressFilter]:
        """Filters of the newest generations; built from the runs when first asked for."""
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
    """Add messages numbered from `first_id`, each to its generation."""
    while addresses:
        generation, place = divmod(first_id, _GENERATION)
        _filter_of(filters, generation).add(addresses[: _GENERATION - place])
        addresses = addresses[_GENERATION - place :]
        first_id += _GENERATION - place


def _filter_of(filters: dict[int, AddressFilter], generation: int) -> AddressFilter:
    """The filter of a generation; for a new one the oldest gives way at the bound."""
    if generation not in filters:
        filters[generation] = AddressFilter()
        if len(filters) > MAX_FILTERS:
            del filters[min(filters)]
    return filters[generation]


def _row_key(first_id: int, bucket: int) -> int:
    return first_id * BUCKETS + bucket
