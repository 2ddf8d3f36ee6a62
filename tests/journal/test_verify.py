"""Tampering: each single change of a small journal is reported; untouched journals raise no alarm."""

import itertools
import random
import shutil
import sqlite3
import zlib

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.high_water import mark_path
from dovetail.journal.messages import StoredMessage, encode_messages
from dovetail.journal.purge import purge_step
from dovetail.journal.reader import JournalReader
from dovetail.journal.verify import verify_journal
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.errors import DovetailError, JournalDamaged
from dovetail.model.hop import Stage
from dovetail.tlog.keys import Signer
from journal.worlds import SERVER, START_US, observe, open_writer, random_observations

TABLES = (
    "identity",
    "names",
    "messages",
    "commits",
    "blocks",
    "nodes",
    "checkpoints",
    "address_runs",
    "address_index",
    "hop_index",
    "expiry_index",
    "progress",
)


def write_journal(path, seed, steps=5):
    rng = random.Random(seed)
    with open_writer(path) as journal:
        for step in range(steps):
            journal.append(random_observations(rng, START_US + step * 10**6, rng.randrange(1, 6)))
            if rng.random() < 0.5:
                journal.checkpoint()
        if rng.random() < 0.5:
            journal.checkpoint()
            purge_step(journal, now_us=START_US + 2 * 10**6)
        journal.index()
        journal.checkpoint()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "a.journal"
    with open_writer(path) as journal:
        journal.append([observe(b"first", Stage.ACCEPTED, "pcp://a/agent", expires_us=START_US + 1)])
        journal.append([observe(b"first", Stage.DELIVERED, *(f"pcp://host{i}/agent" for i in range(5)))])
        journal.checkpoint()
        journal.append(
            [observe(b"second", at_us=START_US + 5, expires_us=START_US + 10**9), observe(b"third", raw=None)]
        )
        journal.append([observe(b"fourth" * 50, Stage.REJECTED, "pcp://b/agent", raw=b"fourth", size=300)])
        journal.checkpoint()
        assert purge_step(journal, now_us=START_US + 100) == 1
        journal.append([observe(b"%d" % i, Stage.FORWARDED, "pcp://c/agent") for i in range(12)])
        journal.index()
        journal.checkpoint()
    assert verify_journal(path).is_intact
    return path


def copies(original, tmp_path):
    """A function that applies a statement to a fresh copy and returns what verification finds."""
    numbers = itertools.count()

    def findings(statement, *parameters):
        path = tmp_path / f"{next(numbers)}.journal"
        shutil.copy(original, path)
        shutil.copy(mark_path(original), mark_path(path))
        connection = sqlite3.connect(path)
        try:
            with connection:
                changed = connection.execute(statement, parameters).rowcount
        finally:
            connection.close()
        assert changed == 1, statement
        try:
            return verify_journal(path).findings
        except DovetailError as error:
            return [error]

    return findings


def rows_of(path, table):
    connection = sqlite3.connect(path)
    cursor = connection.execute(f"SELECT * FROM {table}")
    columns = [description[0] for description in cursor.description]
    keys = columns if table in ("nodes", "hop_index", "expiry_index") else columns[:1]
    rows = [dict(zip(columns, row, strict=True)) for row in cursor]
    connection.close()
    return keys, rows


def where(keys, row):
    return " AND ".join(f"{key} IS ?" for key in keys), [row[key] for key in keys]


def alterations(value):
    if value is None:
        return [1, b"x"]
    if isinstance(value, int):
        return [value + 1, value - 1]
    data = value.encode() if isinstance(value, str) else value
    step = max(1, len(data) // 12)
    changed = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(0, len(data), step)]
    changed += [data[:-1], data + b"\x00"] if data else [b"\x01"]
    return [c.decode(errors="replace") if isinstance(value, str) else c for c in changed]


@pytest.mark.parametrize("table", TABLES)
def test_every_removed_row_is_found(original, tmp_path, table):
    findings = copies(original, tmp_path)
    keys, rows = rows_of(original, table)
    for row in rows:
        condition, values = where(keys, row)
        assert findings(f"DELETE FROM {table} WHERE {condition}", *values), f"removed {row}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("table", TABLES)
def test_every_changed_value_is_found(original, tmp_path, table):
    findings = copies(original, tmp_path)
    keys, rows = rows_of(original, table)
    assert rows or table == "nodes"
    for row in rows:
        condition, values = where(keys, row)
        for column, value in row.items():
            for altered in alterations(value):
                try:
                    found = findings(f"UPDATE {table} SET {column} = ? WHERE {condition}", altered, *values)
                except sqlite3.IntegrityError:
                    continue
                assert found, f"{table}.{column}: {value!r} -> {altered!r}"


def test_an_inserted_row_is_found(original, tmp_path):
    findings = copies(original, tmp_path)
    assert findings("INSERT INTO names VALUES (999, 'pcp://forged/agent')")
    forged = encode_messages([StoredMessage(address_of(b"0"), 3, 1, b"", None, b"0")])
    assert findings("INSERT INTO messages VALUES (999, 1, 0, ?, ?)", zlib.crc32(forged), forged)
    assert findings("INSERT INTO messages SELECT first_id + 1000, count, first_seq, crc, rows FROM messages LIMIT 1")
    assert findings(
        "INSERT INTO commits SELECT first_seq + 10000, count, first_at_us, last_at_us, body_bytes, crc, runs "
        "FROM commits WHERE first_seq = 0"
    )
    assert findings("INSERT INTO blocks VALUES (7, x'00', x'00')")
    assert findings("INSERT INTO nodes VALUES (16, 0, x'00')")
    assert findings("INSERT INTO address_index VALUES (1, x'')")
    assert findings("INSERT INTO address_runs VALUES (999, 1)")
    assert findings("INSERT INTO hop_index VALUES (1, 2)")
    assert findings("INSERT INTO expiry_index VALUES (1, 1)")


@pytest.mark.exhaustive
def test_every_changed_field_of_a_message_is_found_though_the_checksum_is_right(original, tmp_path):
    findings = copies(original, tmp_path)
    _, rows = rows_of(original, "messages")
    for row in rows:
        messages = msgspec.msgpack.decode(row["rows"])
        for number, message in enumerate(messages):
            for place, value in enumerate(message):
                for altered in alterations(value):
                    changed = [
                        *messages[:number],
                        [*message[:place], altered, *message[place + 1 :]],
                        *messages[number + 1 :],
                    ]
                    blob = msgspec.msgpack.encode(changed)
                    assert findings(
                        "UPDATE messages SET rows = ?, crc = ? WHERE first_id = ?",
                        blob,
                        zlib.crc32(blob),
                        row["first_id"],
                    ), f"message {number}, field {place}: {value!r} -> {altered!r}"


@pytest.mark.exhaustive
def test_every_changed_field_of_a_hop_is_found_though_the_checksum_is_right(original, tmp_path):
    findings = copies(original, tmp_path)
    _, rows = rows_of(original, "commits")
    for row in rows:
        runs = msgspec.msgpack.decode(row["runs"])
        for number, run in enumerate(runs):
            for place, value in enumerate(run):
                for altered in alterations(value):
                    changed = [*runs[:number], [*run[:place], altered, *run[place + 1 :]], *runs[number + 1 :]]
                    blob = msgspec.msgpack.encode(changed)
                    assert findings(
                        "UPDATE commits SET runs = ?, crc = ? WHERE first_seq = ?",
                        blob,
                        zlib.crc32(blob),
                        row["first_seq"],
                    ), f"hop {row['first_seq'] + number}, field {place}: {value!r} -> {altered!r}"


def test_reordered_commits_are_found(original, tmp_path):
    path = tmp_path / "swapped.journal"
    shutil.copy(original, path)
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT * FROM commits ORDER BY first_seq").fetchall()
    same_count = [(a, b) for a in rows for b in rows if a[0] < b[0] and a[1] == b[1]]
    (first, second) = same_count[0]
    with connection:
        for row, other in ((first, second), (second, first)):
            connection.execute(
                "UPDATE commits SET first_at_us=?, last_at_us=?, body_bytes=?, crc=?, runs=? WHERE first_seq=?",
                (*other[2:], row[0]),
            )
    connection.close()
    assert verify_journal(path).first.seq == first[0]


def test_the_changed_row_is_named(original, tmp_path):
    path = tmp_path / "tampered.journal"
    for name_id, first_seq in ((1, 0), (4, 3)):
        shutil.copy(original, path)
        connection = sqlite3.connect(path)
        with connection:
            connection.execute("UPDATE names SET name = 'pcp://mallory/agent' WHERE id = ?", (name_id,))
        connection.close()
        first = verify_journal(path).first
        assert first.seq == first_seq
        assert "not the hop" in str(first) or "not those that were signed" in str(first)


def test_a_forger_without_the_key_cannot_hide_a_change(original, tmp_path):
    """A journal rewritten under another key is consistent in itself; only trust in the key reveals it."""
    forger = Signer(SERVER, Ed25519PrivateKey.from_private_bytes(bytes(32)))
    path = tmp_path / "forged.journal"
    with JournalWriter.open(path, server=SERVER, signer=forger) as journal:
        journal.append([observe(b"forged")])
        journal.checkpoint()
    assert verify_journal(path).is_intact
    with JournalReader.open(original) as reader:
        trusted = reader.identity.verifier
    assert "not a trusted key" in str(verify_journal(path, trusted=[trusted]).first)


def test_a_journal_put_back_to_an_earlier_state_is_found_by_a_checkpoint_kept_elsewhere(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"1")])
        journal.checkpoint()
        shutil.copy(tmp_path / "a.journal", tmp_path / "early.journal")
        shutil.copy(tmp_path / "a.journal-wal", tmp_path / "early.journal-wal")
        journal.append([observe(b"2")])
        kept = journal.checkpoint()
    assert verify_journal(tmp_path / "early.journal").is_intact
    assert "commits to 2 hops" in str(verify_journal(tmp_path / "early.journal", since=kept).first)
    assert verify_journal(tmp_path / "a.journal", since=kept).is_intact


@pytest.mark.exhaustive
def test_a_hundred_untouched_journals_give_no_alarm(tmp_path):
    for seed in range(100):
        write_journal(tmp_path / f"{seed}.journal", seed)
        verdict = verify_journal(tmp_path / f"{seed}.journal")
        assert verdict.findings == [], f"seed {seed}"
        assert verdict.committed == verdict.hops


@pytest.mark.exhaustive
def test_every_kind_of_flipped_byte_in_the_file_is_reported_or_changes_nothing(original, tmp_path):
    data = original.read_bytes()
    with JournalReader.open(original) as reader:
        hops = list(reader.hops())
    rng = random.Random(1)
    path = tmp_path / "flipped.journal"
    for position in rng.sample(range(len(data)), 400):
        flipped = bytearray(data)
        flipped[position] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            if verify_journal(path).findings:
                continue
        except DovetailError:
            continue
        with JournalReader.open(path) as reader:
            assert list(reader.hops()) == hops, f"byte {position}"


def test_a_schema_that_is_no_text_any_more_is_damage(original, tmp_path):
    path = tmp_path / "flipped.journal"
    path.write_bytes(original.read_bytes().replace(b"CREATE TABLE identity", b"CREATE T\xc1BLE identity"))
    with pytest.raises(JournalDamaged, match="malformed"):
        JournalReader.open(path)
    with pytest.raises(JournalDamaged, match="malformed"):
        open_writer(path)
