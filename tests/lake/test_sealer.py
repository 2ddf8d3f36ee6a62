import logging
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.writer import JournalWriter
from dovetail.lake.head import read_head
from dovetail.lake.sealer import Sealer
from dovetail.lake.store import LocalStore
from dovetail.tlog.keys import Signer
from journal.worlds import SIGNER, observe, open_writer

LATER = Signer("pcp://later.example/server", Ed25519PrivateKey.from_private_bytes(bytes(32)))


@pytest.fixture
def place(tmp_path):
    """A journal that is being written, and a sealer for it and for one whose server has not started."""
    with open_writer(tmp_path / "a.journal") as writer:
        sealer = Sealer(
            [tmp_path / "later.journal", tmp_path / "a.journal"],
            LocalStore(tmp_path / "lake"),
            interval_s=3600,
            target_bytes=1 << 20,
        )
        yield tmp_path, writer, sealer


def test_what_is_signed_is_sealed_once(place):
    directory, writer, sealer = place
    writer.commit([observe(b"one"), observe(b"two")])
    assert sealer.seal() == 0, "nothing is signed yet"
    writer.checkpoint()
    assert sealer.seal() == 2
    assert sealer.seal() == 0
    assert read_head(LocalStore(directory / "lake"), SIGNER.verifier).end == 2


def test_stopping_seals_once_more(place):
    directory, writer, sealer = place
    running = threading.Thread(target=sealer.run)
    running.start()
    writer.commit([observe(b"late")])
    writer.checkpoint()
    sealer.stop()
    running.join(20)
    assert not running.is_alive()
    assert read_head(LocalStore(directory / "lake"), SIGNER.verifier).end == 1


def test_one_that_cannot_be_sealed_is_told_of_once_and_the_others_go_on(place, caplog, monkeypatch):
    directory, writer, sealer = place
    (directory / "later.journal").write_bytes(b"this is no journal" * 100)
    writer.commit([observe(b"one")])
    writer.checkpoint()
    monkeypatch.setattr(logging.getLogger("dovetail"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="dovetail.seal"):
        assert sealer.seal() == 1
        assert sealer.seal() == 0
        # one record, however many handlers forward it
        told = {id(record): record.getMessage() for record in caplog.records if "is not sealed" in record.getMessage()}
        assert len(told) == 1
        assert "later.journal" in next(iter(told.values()))
        (directory / "later.journal").unlink()
        with JournalWriter.open(directory / "later.journal", server=LATER.name, signer=LATER):
            sealer.seal()
    assert "works again" in caplog.records[-1].getMessage()
