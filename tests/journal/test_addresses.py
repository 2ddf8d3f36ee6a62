import hashlib
import sqlite3

import pytest

from dovetail.journal import addresses as module
from dovetail.journal.addresses import (
    AddressFilter,
    AddressIndex,
    AddressRun,
    encode_buckets,
    read_rows,
    read_runs,
    search_bucket,
    search_runs,
)
from dovetail.journal.database import SCHEMA


def addresses(first, count):
    return [hashlib.sha256(b"%d" % number).digest() for number in range(first, first + count)]


class Database:
    """Rows as a journal's reader returns them."""

    def __init__(self):
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript(SCHEMA)
        self.asked = 0

    def all(self, sql, parameters=()):
        self.asked += 1
        return self.connection.execute(sql, tuple(parameters)).fetchall()


@pytest.fixture
def database():
    found = Database()
    yield found
    found.connection.close()


def add(index, database, new):
    index.ask(new)
    index.add(new)
    index.accept(index.insert(database.connection))


def test_a_filter_never_denies_what_was_added():
    known = AddressFilter()
    known.add(addresses(0, 5000))
    assert known.hits(addresses(0, 5000)) == list(range(5000))


@pytest.mark.exhaustive
def test_a_full_filter_mistakes_fewer_than_one_in_a_hundred():
    known = AddressFilter()
    known.add(addresses(0, 1 << 18))
    assert len(known.hits(addresses(1 << 20, 20_000))) < 100


def test_buckets_hold_every_entry_once_in_the_order_of_the_numbers():
    new = addresses(0, 1000)
    rows = encode_buckets(new, 41)
    numbers = [number for entries in rows.values() for prefix, number in module._ENTRY.iter_unpack(entries)]
    assert sorted(numbers) == list(range(41, 1041))
    for bucket, entries in rows.items():
        listed = [number for _, number in module._ENTRY.iter_unpack(entries)]
        assert listed == sorted(listed)
        assert {new[number - 41][0] for number in listed} == {bucket}


def test_a_match_across_two_entries_is_none():
    # the last byte of a number and the first of the next prefix look like the wanted prefix
    entries = bytes([7, 1, 2, 3, 4, 5, 6, 7]) + (0x0709).to_bytes(8) + bytes([9, 0, 0, 0, 0, 0, 0, 0]) + bytes(8)
    assert list(search_bucket(entries, bytes([7, 9, 9]))) == []
    assert list(search_bucket(entries, bytes([7]))) == [0x0709]


def test_every_address_is_found_by_any_of_its_prefixes(database):
    index = AddressIndex(database)
    known = addresses(0, 700)
    for start in range(0, 700, 70):
        add(index, database, known[start : start + 70])
    for number, address in enumerate(known, 1):
        for length in (1, 4, 8, 32):
            assert number in search_runs(database, address[:length])
    assert index.candidates(known) == list(range(1, 701))


def test_new_addresses_ask_for_no_row(database):
    index = AddressIndex(database)
    add(index, database, addresses(0, 200))
    index.candidates([])
    asked = database.asked
    assert index.candidates(addresses(1000, 200)) == []
    assert database.asked - asked <= 2


def test_small_runs_are_joined_and_say_the_same(database, monkeypatch):
    monkeypatch.setattr(module, "SMALL_RUN", 100)
    monkeypatch.setattr(module, "SMALL_RUNS", 4)
    index = AddressIndex(database)
    known = addresses(0, 330)
    for start in range(0, 330, 30):
        add(index, database, known[start : start + 30])
        last = index.end - 1
        assert [run.first_id for run in read_runs(database)] == [run.first_id for run in index._runs]
        assert set(search_runs(database, known[last - 1])) == {last}
    assert read_runs(database) == [
        AddressRun(1, 120),
        AddressRun(121, 120),
        AddressRun(241, 30),
        AddressRun(271, 30),
        AddressRun(301, 30),
    ]
    for run in read_runs(database):
        rows = dict(read_rows(database, run.first_id, run.first_id))
        assert rows == encode_buckets(known[run.first_id - 1 : run.end - 1], run.first_id)


def test_opening_again_knows_the_same(database):
    index = AddressIndex(database)
    known = addresses(0, 500)
    add(index, database, known[:300])
    add(index, database, known[300:])
    again = AddressIndex(database)
    assert again.end == 501
    assert again.candidates(known) == list(range(1, 501))
    assert again.candidates(addresses(900, 50)) == []


def test_generations_beyond_the_bound_are_still_found(database, monkeypatch):
    monkeypatch.setattr(module, "GENERATION_BITS", 6)
    monkeypatch.setattr(module, "_GENERATION", 1 << 6)
    monkeypatch.setattr(module, "MAX_FILTERS", 2)
    index = AddressIndex(database)
    known = addresses(0, 500)
    for start in range(0, 500, 50):
        add(index, database, known[start : start + 50])
        assert index.candidates(known[:1]) == [1]
    assert len(index._filters) == 2
    assert {*index.ask(known)} == {*range(500)}
    assert set(index.candidates(known)) == set(range(1, 501))
    reopened = AddressIndex(database)
    assert set(reopened.candidates(known)) == set(range(1, 501))
    assert len(reopened._filters) == 2


def test_a_transaction_that_fails_leaves_the_index_as_it_was(database):
    index = AddressIndex(database)
    add(index, database, addresses(0, 50))
    index.add(addresses(50, 50))
    database.connection.execute("BEGIN")
    index.insert(database.connection)
    database.connection.execute("ROLLBACK")
    assert index.end == 51
    index.accept(index.insert(database.connection))
    assert index.end == 101
    assert index.candidates(addresses(0, 100)) == list(range(1, 101))


@pytest.mark.parametrize("indexed", [0, 1, 60, 100])
def test_what_waits_for_the_index_is_perhaps_seen(database, indexed):
    index = AddressIndex(database)
    known = addresses(0, 100)
    if indexed:
        add(index, database, known[:indexed])
    index.add(known[indexed:80])
    assert {*index.ask(known[:80])} == {*range(80)}
    index.ask(known[80:])
    index.add(known[80:])
    assert {*index.ask(known)} == {*range(100)}
    if indexed:
        assert len(index.ask(addresses(1000, 500))) < 25


def test_what_is_asked_for_together_with_known_ones_is_found_in_its_own_generation(database, monkeypatch):
    monkeypatch.setattr(module, "GENERATION_BITS", 6)
    monkeypatch.setattr(module, "_GENERATION", 1 << 6)
    index = AddressIndex(database)
    known, new = addresses(0, 60), addresses(60, 3)
    add(index, database, known)
    # ten come before the new ones and get no number: otherwise the new ones would be in the next generation
    assert {*range(10)} <= {*index.ask(known[:10] + new)}
    index.add(new)
    index.accept(index.insert(database.connection))
    assert index.candidates(new) == [61, 62, 63]
    assert {*index.ask(new)} == {0, 1, 2}


def test_what_was_asked_for_and_not_added_is_no_candidate(database):
    index = AddressIndex(database)
    add(index, database, addresses(0, 50))
    refused = addresses(900, 20)
    assert len(index.ask(refused)) < 5
    assert {*index.ask(refused)} == {*range(20)}
    assert index.candidates(refused) == []
    add(index, database, refused)
    assert index.candidates(refused) == list(range(51, 71))
