"""Tampering changes exactly what it says, and leaves manifests and everything else alone."""

import random

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.demo.faults import Kind
from dovetail.demo.tampering import Tamperer
from dovetail.journal.journal import Journal
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Observation, Stage
from dovetail.tlog.keys import Signer

SERVER = "pcp://broker/server"
SPARED = b"message 3"


@pytest.fixture
def lake(tmp_path):
    with Journal.open(tmp_path / "j", server=SERVER, signer=Signer(SERVER, Ed25519PrivateKey.generate())) as journal:
        for number in range(8):
            raw = f"message {number}".encode()
            address = address_of(raw)
            journal.append(
                [
                    Observation(at_us=number, stage=Stage.ACCEPTED, message=address, counterparts=("a",), raw=raw),
                    Observation(at_us=number, stage=Stage.DELIVERED, message=address, counterparts=("pcp://b/agent",)),
                ]
            )
    seal_journal(tmp_path / "j", LocalStore(tmp_path / "lake"))
    return tmp_path / "lake"


def tamperer(lake, spared=()):
    return Tamperer(lake, random.Random(2), frozenset(address_of(raw).hex() for raw in spared))


def rows_of(lake):
    return [row for path in sorted(lake.rglob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]


def test_one_byte_of_one_row_is_changed(lake):
    before = rows_of(lake)
    fault = tamperer(lake).change_byte(SERVER)
    changed = [(old, new) for old, new in zip(before, rows_of(lake), strict=True) if old != new]
    assert [(old["seq"], old["counterpart"], new["counterpart"]) for old, new in changed] == [
        (fault.seq, "pcp://b/agent", "pcp://b/agenx")
    ]
    assert changed[0][0] | {"counterpart": "pcp://b/agenx"} == changed[0][1]
    assert fault.tampered == (changed[0][0]["message"].hex(),)
    assert (fault.kind, fault.fabric) == (Kind.CHANGED_BYTE, "pcp")


def test_one_row_is_removed(lake):
    before = rows_of(lake)
    fault = tamperer(lake).remove_row(SERVER)
    assert [row for row in before if row["seq"] != fault.seq] == rows_of(lake)
    assert len(rows_of(lake)) == len(before) - 1


def test_a_file_is_removed_and_its_manifest_stays(lake):
    manifests = [path.read_bytes() for path in lake.rglob("*.json")]
    fault = tamperer(lake).remove_file(SERVER)
    assert rows_of(lake) == []
    assert not (lake / fault.file).exists()
    assert len(fault.tampered) == 8
    assert [path.read_bytes() for path in lake.rglob("*.json")] == manifests


def test_messages_that_are_spared_stay_as_they_are(lake):
    spared = [f"message {number}".encode() for number in range(8) if number != 5]
    assert tamperer(lake, spared).change_byte(SERVER).tampered == (address_of(b"message 5").hex(),)
    with pytest.raises(DovetailError, match="nothing that could be tampered with"):
        tamperer(lake, [*spared, b"message 5"]).remove_row(SERVER)
