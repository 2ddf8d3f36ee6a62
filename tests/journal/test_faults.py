"""Disk faults on real files: each is repaired, refused or named; no raw exception, no wrong value."""

import contextlib
import random
import shutil
import sqlite3

import pytest

from dovetail.journal.high_water import mark_path
from dovetail.journal.journal import Journal
from dovetail.journal.purge import purge_step
from dovetail.journal.reader import JournalReader
from dovetail.journal.source import JournalSource
from dovetail.journal.verify import verify_journal
from dovetail.journal.writer import JournalWriter
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.errors import DovetailError, JournalDamaged, JournalError
from dovetail.model.hop import Observation, Stage
from journal.worlds import SERVER, SIGNER, START_US, observe, open_writer, random_observations

PAGE = 8192


def flip_bit(data, rng):
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zero_page(data, rng):
    start = rng.randrange(len(data) // PAGE) * PAGE
    data[start : start + PAGE] = bytes(PAGE)


def swap_pages(data, rng):
    first, second = (number * PAGE for number in rng.sample(range(len(data) // PAGE), 2))
    data[first : first + PAGE], data[second : second + PAGE] = data[second : second + PAGE], data[first : first + PAGE]


def misdirect_page(data, rng):
    source, target = (number * PAGE for number in rng.sample(range(len(data) // PAGE), 2))
    data[target : target + PAGE] = data[source : source + PAGE]


def cut(data, rng):
    del data[rng.randrange(len(data)) :]


def tear_page(data, rng):
    start = rng.randrange(len(data) // PAGE) * PAGE
    data[start + 512 * rng.randrange(1, 16) : start + PAGE] = rng.randbytes(PAGE)[: len(data) - start]


FAULTS = [flip_bit, zero_page, swap_pages, misdirect_page, cut, tear_page]
FOUND = {flip_bit: [17], swap_pages: [16, 20], misdirect_page: [19, 42], cut: [47], tear_page: [107]}
"""Cases in which readers once got a part of the hops, and no error."""
ADDRESSES = [address_of(b"message %d" % number) for number in range(0, 40, 6)]
HUGE = "x'" + "ff" * 8 + "'"
LAST = "WITH last AS (SELECT max(first_seq) FROM commits) UPDATE commits SET"
FROM_INDEXES = ("found", "bytes", "story")
"""Answers that may lack something if only an index is damaged."""


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "a.journal"
    rng = random.Random(11)
    with open_writer(path) as journal:
        for step in range(60):
            journal.append(random_observations(rng, START_US + step * 10**6, 12))
            if step % 10 == 9:
                journal.index()
                journal.checkpoint()
    return path


def time_before(source, end):
    """The range before a hop with its time, which is unknown if the range is damaged."""
    found = source.range_before(end)
    if found is not None and found[1] is None:
        raise JournalDamaged("its time is not known")
    return found


def answers(path):
    """What readers of a journal get, by name; our own error if they are refused."""
    asked = {
        "whose": lambda reader: (reader.identity.server, reader.identity.fabric, reader.identity.verifier),
        "bytes": lambda reader: [reader.raw(address) for address in ADDRESSES],
        "story": lambda reader: [reader.hops_of(address) for address in ADDRESSES],
        "hops": lambda reader: list(reader.hops()),
        "tail": lambda reader: list(reader.hops(max(0, reader.size - 20))),
        "time": lambda reader: reader.seq_at(START_US + 20 * 10**6),
        "found": lambda reader: [row.address for row in reader.find(b"\x01")],
        "between": lambda reader: JournalSource(reader).hops_between(300, 400),
        "node": lambda reader: JournalSource(reader).node(8, 1),
        "before": lambda reader: time_before(JournalSource(reader), 500),
    }
    got = {}
    for name, ask in asked.items():
        try:
            with JournalReader.open(path) as reader:
                got[name] = ask(reader)
        except DovetailError as error:
            got[name] = error
    return got


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_no_fault_of_the_disk_gives_a_raw_exception_or_a_wrong_value(original, tmp_path, fault, count):
    expected = answers(original)
    for number in {*range(count), *FOUND.get(fault, ())}:
        path = tmp_path / str(number) / "a.journal"
        path.parent.mkdir()
        data = bytearray(original.read_bytes())
        fault(data, random.Random(f"{fault.__name__} {number}"))
        path.write_bytes(data)
        shutil.copy(mark_path(original), mark_path(path))
        try:
            verdict = verify_journal(path)
            is_named = not verdict.is_intact
        except DovetailError:
            is_named = True
        for name, answer in answers(path).items():
            if not isinstance(answer, DovetailError) and not (name in FROM_INDEXES and is_named):
                assert answer == expected[name], f"{fault.__name__} {number}: {name}"
            elif not isinstance(answer, DovetailError):
                assert is_part(answer, expected[name]), f"{fault.__name__} {number}: {name}"
        if data != original.read_bytes():
            is_unused = all(answer == expected[name] for name, answer in answers(path).items())
            assert is_named or is_unused, f"{fault.__name__} {number}"
        with contextlib.suppress(DovetailError):
            seal_journal(path, LocalStore(path.parent / "lake"))
        try:
            writer = open_writer(path)
        except JournalDamaged as error:
            assert f"see what `dovetail journal recover {path}` can do" in f"{error}"  # noqa: PT017
            continue
        except JournalError:
            continue
        with writer:
            for work in (append_known, purge_all, JournalWriter.index, JournalWriter.checkpoint):
                with contextlib.suppress(DovetailError):
                    work(writer)


def test_a_server_that_reads_a_damaged_row_when_it_starts_names_the_file_and_says_what_to_do(original, tmp_path):
    path = tmp_path / "a.journal"
    shutil.copy(original, path)
    shutil.copy(mark_path(original), mark_path(path))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE commits SET crc = crc + 1 WHERE first_seq = 0")
    named = f"^{path}: hops 0 to .*; bring back .* `dovetail journal recover {path}`"
    with Journal.open(path, server=SERVER, signer=SIGNER) as journal, pytest.raises(JournalDamaged, match=named):
        list(journal.hops())


def is_part(answer, expected):
    """True if everything in an answer is in the expected one."""
    if isinstance(expected, list):
        return isinstance(answer, list) and all(
            each in expected or any(is_part(each, other) for other in expected) for each in answer
        )
    return answer is None


def append_known(writer):
    known = [row.address for row in writer.reader.find(b"")]
    writer.append([observe(b"new")])
    writer.append([Observation(at_us=START_US, stage=Stage.DELIVERED, message=address) for address in known])


def purge_all(writer):
    while purge_step(writer, now_us=START_US + 10**13):
        pass


def every_story(reader):
    return [reader.hops_of(row.address) for row in reader.find(b"")]


def read(ask):
    """A use of a journal: ask its reader."""

    def use(path):
        with JournalReader.open(path) as reader:
            ask(reader)

    return use


def write(work):
    """A use of a journal: let its writer work."""

    def use(path):
        with open_writer(path) as writer:
            work(writer)

    return use


def test_a_proof_over_hops_that_are_gone_is_refused(original, tmp_path):
    path = tmp_path / "a.journal"
    shutil.copy(original, path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM commits WHERE first_seq = (SELECT max(first_seq) FROM commits)")
    with JournalReader.open(path) as reader:
        last = reader.latest_checkpoint().size - 1
        for level in (0, 1):
            with pytest.raises(JournalDamaged, match="are not all there"):
                JournalSource(reader).node(level, last >> level)


@pytest.mark.parametrize(
    ("change", "use"),
    [
        ("UPDATE address_runs SET count = x'00'", lambda path: open_writer(path).close()),
        ("UPDATE commits SET last_at_us = 1 << 60", lambda path: seal_journal(path, LocalStore(path.parent / "lake"))),
        ("UPDATE commits SET count = count - 1", read(lambda reader: list(reader.hops(0, reader.size)))),
        (f"{LAST} count = count - 1 WHERE first_seq IN last", read(lambda reader: list(reader.hops(0, reader.size)))),
        ("UPDATE identity SET value = replace(value, 'broker', 'brokes') WHERE name = 'server'", read(str)),
        ("UPDATE identity SET value = 'won' WHERE name = 'fabric'", read(str)),
        ("UPDATE identity SET value = replace(value, 'broker', 'brokes') WHERE name = 'key'", read(str)),
        ("UPDATE identity SET value = CAST(value AS BLOB)", read(str)),
        ("UPDATE messages SET first_seq = 0", read(every_story)),
        ("UPDATE hop_index SET first_seq = 'x' || first_seq", read(every_story)),
        (
            "UPDATE address_index SET entries = 7",
            read(lambda reader: [reader.find(bytes([byte])) for byte in range(256)]),
        ),
        (f"UPDATE address_index SET entries = CAST(substr(entries, 1, 8) || {HUGE} AS BLOB)", write(append_known)),
        ("UPDATE address_index SET entries = substr(entries, 2)", write(append_known)),
        ("UPDATE expiry_index SET first_id = first_id + 1000", write(purge_all)),
    ],
)
def test_values_that_cannot_be_are_named(original, tmp_path, change, use):
    path = tmp_path / "a.journal"
    shutil.copy(original, path)
    shutil.copy(mark_path(original), mark_path(path))
    loosen = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '')"
    for script in (loosen, change):  # damage does not respect column types
        with sqlite3.connect(path) as connection:
            connection.executescript(script)
        connection.close()
    with pytest.raises(JournalError):
        use(path)
