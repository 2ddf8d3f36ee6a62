import pytest

from dovetail.journal.journal import Journal
from dovetail.journal.purger import purge_expired
from dovetail.journal.verify import verify_journal
from dovetail.lake.seal import seal_journal
from dovetail.lake.snapshot import read_head
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.hop import Stage
from journal.worlds import SERVER, SIGNER, START_US, observe

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


def kept(journal: Journal) -> set[bytes]:
    return {text for text in (b"expired", b"lives", b"for ever") if journal.raw(address_of(text)) == text}


def test_nothing_goes_before_it_is_sealed(journal, tmp_path):
    assert purge_expired(journal, read_head(LocalStore(tmp_path / "lake"), SERVER).end, START_US + HOUR_US) == 0
    assert len(kept(journal)) == 3


def test_what_is_expired_and_sealed_goes_while_the_journal_is_open(journal, tmp_path):
    journal.checkpoint()
    seal_journal(journal.path, LocalStore(tmp_path / "lake"))
    journal.append([observe(b"too new to go", expires_us=START_US + 1)])
    assert purge_expired(journal, read_head(LocalStore(tmp_path / "lake"), SERVER).end, START_US + HOUR_US) == 1
    assert kept(journal) == {b"lives", b"for ever"}
    assert journal.raw(address_of(b"too new to go")) == b"too new to go"
    assert [hop.stage for hop in journal.hops_of(address_of(b"expired"))] == [Stage.ACCEPTED, Stage.PURGED]
    assert purge_expired(journal, read_head(LocalStore(tmp_path / "lake"), SERVER).end, START_US + HOUR_US) == 0
    assert verify_journal(journal.path).is_intact
