import contextlib
import sqlite3
import threading
import zlib
from pathlib import Path

import msgspec
import pytest

from dovetail.fabrics import fabric_of
from dovetail.journal.journal import Journal
from dovetail.journal.purger import purge_expired, start_purging
from dovetail.journal.verify import verify_journal
from dovetail.journal.writer import JournalWriter
from dovetail.lake.head import read_head
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.errors import JournalDamaged, JournalError
from dovetail.model.fabric import Agreement
from dovetail.model.hop import Observation, Stage
from dovetail.swarm.content import Content, encode_content
from dovetail.tlog.keys import Signer
from journal.worlds import SERVER, SIGNER, START_US, expiring, observe

HOUR_US = 3_600_000_000


@pytest.fixture
def journal(tmp_path):
    with Journal.open(tmp_path / "a.journal", server=SERVER, signer=SIGNER) as journal:
        journal.append(
            [
                observe(b"expired", expires_us=START_US + 1),
                observe(b"lives", expires_us=START_US + 2 * HOUR_US),
                observe(b"for ever"),
            ]
        )
        yield journal


EXPIRED, LIVES, TOO_NEW = (
    expiring(b"expired", START_US + 1),
    expiring(b"lives", START_US + 2 * HOUR_US),
    expiring(b"too new to go", START_US + 1),
)


def kept(journal: Journal) -> set[bytes]:
    return {raw for raw in (EXPIRED, LIVES, b"for ever") if journal.raw(address_of(raw)) == raw}


def sealed(root: Path) -> int:
    return read_head(LocalStore(root / "lake"), SIGNER.verifier).end


def test_nothing_goes_before_it_is_sealed(journal, tmp_path):
    assert purge_expired(journal, sealed(tmp_path), START_US + HOUR_US) == 0
    assert len(kept(journal)) == 3


def test_what_is_expired_and_sealed_goes_while_the_journal_is_open(journal, tmp_path):
    journal.checkpoint()
    seal_journal(journal.path, LocalStore(tmp_path / "lake"))
    journal.append([observe(b"too new to go", expires_us=START_US + 1)])
    assert purge_expired(journal, sealed(tmp_path), START_US + HOUR_US) == 1
    assert kept(journal) == {LIVES, b"for ever"}
    assert journal.raw(address_of(TOO_NEW)) == TOO_NEW
    assert [hop.stage for hop in journal.hops_of(address_of(EXPIRED))] == [Stage.ACCEPTED, Stage.PURGED]
    assert purge_expired(journal, sealed(tmp_path), START_US + HOUR_US) == 0
    assert verify_journal(journal.path).is_intact


def test_what_a_server_may_still_deliver_stays(journal):
    journal.checkpoint()
    assert purge_expired(journal, journal.size, START_US + HOUR_US, delay_us=HOUR_US) == 0
    assert purge_expired(journal, journal.size, START_US + HOUR_US + 1, delay_us=HOUR_US) == 1
    assert kept(journal) == {LIVES, b"for ever"}


def test_purging_ends_with_its_journal_and_says_nothing(tmp_path, caplog):
    asked = threading.Event()

    def sealed_end() -> int:
        asked.set()
        journal.wait_closing(10)  # so that the journal is closed while a purge is under way
        return 0

    before = set(threading.enumerate())
    with Journal.open(tmp_path / "a.journal", server=SERVER, signer=SIGNER) as journal:
        start_purging(journal, sealed_end, interval_s=0.001, now_us=lambda: START_US)
        start_purging(journal, lambda: 0, interval_s=3600, now_us=lambda: START_US)
        assert asked.wait(60)
        purging = {thread for thread in threading.enumerate() if thread.name.startswith("purge")} - before
    for thread in purging:
        thread.join(60)
    assert [len(purging), *(thread.is_alive() for thread in purging)] == [2, False, False]
    assert caplog.records == []


def test_an_expiry_that_was_changed_destroys_nothing_and_is_found(journal, tmp_path):
    journal.append([observe(b"message %d" % number, expires_us=START_US + HOUR_US) for number in range(435)])
    journal.checkpoint()
    journal.call(JournalWriter.index)
    before = [hop.raw for hop in journal.hops()]
    connection = sqlite3.connect(journal.path)
    with connection:
        for first_id, rows in connection.execute("SELECT first_id, rows FROM messages").fetchall():
            messages = [[*message[:4], message[4] and START_US, message[5]] for message in msgspec.msgpack.decode(rows)]
            changed = msgspec.msgpack.encode(messages)
            connection.execute(
                "UPDATE messages SET crc = ?, rows = ? WHERE first_id = ?", (zlib.crc32(changed), changed, first_id)
            )
        connection.execute("UPDATE expiry_index SET expires_us = ?", (START_US,))
    connection.close()
    findings = verify_journal(journal.path).findings
    assert "is stored with another expiry than it states" in findings[0].detail
    assert purge_expired(journal, journal.size, START_US) == 0
    assert [hop.raw for hop in journal.hops()] == before


def test_an_index_of_expiries_that_leads_nowhere_is_reported_and_the_journal_goes_on(journal):
    journal.call(JournalWriter.index)
    with contextlib.closing(sqlite3.connect(journal.path)) as connection, connection:
        connection.execute("INSERT INTO expiry_index VALUES (?, 1000)", (START_US,))
    with pytest.raises(JournalDamaged, match="message 1000 is missing"):
        purge_expired(journal, journal.size, START_US)
    assert journal.append([observe(b"another")]) == journal.size


def test_a_job_that_fails_in_an_unexpected_way_ends_its_call_and_nothing_else(journal, caplog):
    def fail(writer):
        raise LookupError("nobody thought of this")

    with pytest.raises(JournalError, match="LookupError: nobody thought of this"):
        journal.call(fail)
    assert journal.append([observe(b"another")]) == journal.size
    assert "unexpected error" in caplog.text


def test_what_a_swarm_agreed_on_decides_when_its_messages_expire(tmp_path):
    server = "swarm://example/" + "0" * 40
    signer = Signer(server, SIGNER.private_key)
    raw = encode_content(Content(timestamp_ms=START_US // 1000, ttl_epochs=2, payload=b"hello"))
    agreement = Agreement(epoch_ms=60_000, work_target=1 << 256)
    expires_us = fabric_of(server).read(raw, agreement).expires_us
    with Journal.open(tmp_path / "a.journal", server=server, signer=signer) as journal:
        message = Observation(at_us=START_US, stage=Stage.ACCEPTED, message=address_of(raw), raw=raw)
        journal.append([msgspec.structs.replace(message, expires_us=expires_us)])
        journal.checkpoint()
        assert purge_expired(journal, journal.size, expires_us + 1) == 0, "the agreement is not known"
        assert purge_expired(journal, journal.size, expires_us - 1, agreement) == 0
        assert verify_journal(journal.path, agreement=agreement).is_intact
        longer = Agreement(epoch_ms=120_000, work_target=1 << 256)
        assert not verify_journal(journal.path, agreement=longer).is_intact
        assert purge_expired(journal, journal.size, expires_us, agreement) == 1
