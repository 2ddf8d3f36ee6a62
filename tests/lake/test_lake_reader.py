from __future__ import annotations

import shutil

import pytest

from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.lake.layout import parse_data_key, server_slug
from dovetail.lake.reader import open_lake
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.errors import DovetailError, JournalDamaged
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.build import build_receipt
from dovetail.receipt.sources import find_message
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.tree import prove_consistency, prove_inclusion
from receipt import receipt_samples as samples

pytestmark = pytest.mark.exhaustive  # whole worlds are sealed

TRUSTED = samples.verifiers()


@pytest.mark.parametrize("fabric", samples.CASES)
@pytest.mark.parametrize("target_bytes", [20_000, 128 << 20])
def test_the_lake_gives_the_same_receipt_as_the_journals(tmp_path, fabric, target_bytes):
    case = samples.CASES[fabric](tmp_path / "journals")
    for path in case.journals:
        seal_journal(path, LocalStore(tmp_path / "lake"), target_bytes=target_bytes)
    sources = open_lake(LocalStore(tmp_path / "lake"))
    assert find_message(sources, case.address.hex()[:10]) == case.address
    assert build_receipt(sources, case.address).data == case.build()


@pytest.fixture
def grown(tmp_path):
    """A journal sealed three times, with a message in the middle of it."""
    raw = samples.pcp_message()
    path, lake = tmp_path / "broker.journal", tmp_path / "lake"
    signer = samples.signer_of(samples.BROKER)
    with JournalWriter.open(path, server=samples.BROKER, signer=signer, durability="relaxed") as writer:
        for part in range(3):
            writer.append([samples.noise(part * 1000 + number) for number in range(333)])
            if part == 1:
                seen = Observation(at_us=samples.T0 + 1500, stage=Stage.ACCEPTED, message=address_of(raw), raw=raw)
                writer.append([seen])
            writer.checkpoint()
            seal_journal(path, LocalStore(lake), target_bytes=20_000)
    return path, lake, address_of(raw)


def test_one_server_whose_manifests_are_unusable_stops_no_receipt_of_another(grown, tmp_path, caplog):
    _, lake, address = grown
    case = samples.CASES["swarm"](tmp_path / "others")
    for other in case.journals:
        seal_journal(other, LocalStore(lake))
    middle = sorted((lake / "_manifests" / server_slug(samples.BROKER)).iterdir())[1]
    middle.unlink()
    sources = open_lake(LocalStore(lake))
    assert build_receipt(sources, case.address).data == case.build()
    with pytest.raises(DovetailError):
        find_message(sources, address.hex())
    assert server_slug(samples.BROKER) in caplog.text
    for server in (lake / "_manifests").iterdir():
        for manifest in server.iterdir():
            manifest.write_bytes(b"")
    with pytest.raises(JournalDamaged):
        open_lake(LocalStore(lake))


def test_nodes_of_the_tree_are_those_of_the_journal(grown):
    path, lake, _ = grown
    (source,) = open_lake(LocalStore(lake))
    with JournalSource.open(path) as journal:
        for seq in (0, 1, 332, 333, 666, 667, 999):
            assert prove_inclusion(seq, 1000, source.node) == prove_inclusion(seq, 1000, journal.node)
        for size in (1, 333, 667, 999):
            assert prove_consistency(size, 1000, source.node) == prove_consistency(size, 1000, journal.node)
        assert source.hops_between(330, 670) == journal.hops_between(330, 670)
        for at_us in (samples.T0 - 1, samples.T0 + 100, samples.T0 + 1500, samples.T0 + 9_999_999):
            assert source.seq_at(at_us) == journal.seq_at(at_us)
        assert source.latest_checkpoint() == journal.latest_checkpoint()
        assert source.verifier == journal.verifier


def test_only_files_of_the_searched_time_are_searched(grown):
    _, lake, address = grown
    (source,) = open_lake(LocalStore(lake), (samples.T0 + 1500, samples.T0 + 1501))
    assert len(verify_receipt(build_receipt([source], address).data, TRUSTED).hops) == 1
    (elsewhere,) = open_lake(LocalStore(lake), (samples.T0 + 2100, samples.T0 + 2200))
    assert elsewhere.find(address) == set()


def test_a_changed_file_gives_no_receipt(grown, tmp_path):
    _, lake, address = grown
    (source,) = open_lake(LocalStore(lake))
    seq = source.hops_of(address)[0].hop.seq
    victim = next(p for p in lake.glob("fabric=*/date=*/*.parquet") if _holds(p, seq))
    other = next(p for p in lake.glob("fabric=*/date=*/*.parquet") if p.stat().st_size != victim.stat().st_size)
    victim.write_bytes(other.read_bytes())
    with pytest.raises(DovetailError):
        build_receipt(open_lake(LocalStore(lake)), address)


def test_without_or_with_a_wrong_index_the_receipt_is_the_same(grown):
    path, lake, address = grown
    with JournalSource.open(path) as journal:
        expected = build_receipt([journal], address).data
    indexes = sorted(lake.glob("_index/*/*.index"))
    assert len(indexes) > 10
    for number, index in enumerate(indexes):
        index.write_bytes(b"" if number % 2 else index.read_bytes()[::-1])
    assert build_receipt(open_lake(LocalStore(lake)), address).data == expected
    shutil.rmtree(lake / "_index")
    assert build_receipt(open_lake(LocalStore(lake)), address).data == expected


def test_with_indexes_only_the_file_of_the_message_is_opened(grown):
    """So it is found although all other files are gone."""
    _, lake, address = grown
    seq = open_lake(LocalStore(lake))[0].hops_of(address)[0].hop.seq
    for path in lake.glob("fabric=*/date=*/*.parquet"):
        if not _holds(path, seq):
            path.unlink()
    (source,) = open_lake(LocalStore(lake))
    assert source.find(address[:6]) == {address}
    assert [kept.hop.seq for kept in source.hops_of(address)] == [seq]
    assert source.find(address_of(b"never seen")) == set()
    assert source.raw(address) == samples.pcp_message()


def test_a_folder_without_manifests_is_no_lake(tmp_path):
    with pytest.raises(JournalDamaged, match="not a lake"):
        open_lake(LocalStore(tmp_path))


def test_a_missing_sealing_is_noticed(grown):
    _, lake, _ = grown
    min(lake.glob("_manifests/*/0*.json")).unlink()
    with pytest.raises(JournalDamaged, match="hops 0 to 332"):
        open_lake(LocalStore(lake))


def _holds(path, seq):
    name = parse_data_key("/".join(path.parts[-3:]))
    return name.first_seq <= seq < name.end
