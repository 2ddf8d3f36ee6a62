"""The index next to each sealed file: it points to all rows of a message; a foreign index is not trusted."""

import random
import shutil

import pytest

from dovetail.lake.index import FileIndex, IndexBuilder
from dovetail.lake.layout import INDEXES, index_key
from dovetail.lake.manifest import SealedFile
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.tlog.tree import fold_perfect
from journal.worlds import SERVER, START_US, open_writer, random_observations
from lake.lakes import manifests_of

PARQUET = bytes(range(32))


def encode(parquet_sha256, messages, leaves):
    """The bytes of an index, from rows in parts."""
    index = IndexBuilder()
    for start in range(0, len(messages), 100):
        index.add(messages[start : start + 100], leaves[start : start + 100])
    assert index.root() == fold_perfect(leaves)
    return index.encode(parquet_sha256.hex())


def write_index(lake, messages, leaves):
    """The index of a file with these rows."""
    path = lake / index_key(SERVER, "x.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(PARQUET, messages, leaves))
    return path, SealedFile(
        path="x.parquet",
        first_seq=0,
        rows=len(messages),
        first_at_us=0,
        last_at_us=0,
        bytes=0,
        sha256=PARQUET.hex(),
        root=fold_perfect(leaves).hex(),
    )


@pytest.fixture
def indexed(tmp_path):
    rng = random.Random(5)
    pool = [address_of(b"%d" % number) for number in range(60)]
    messages = [message for _ in range(512) for message in [rng.choice(pool)] * rng.choice([1, 1, 5])][:512]
    leaves = [address_of(b"leaf %d" % number) for number in range(512)]
    return tmp_path, messages, leaves, *write_index(tmp_path, messages, leaves)


def rows_of(index: FileIndex, prefix: bytes) -> list[int]:
    return [row for first, count in index.runs_of(prefix) for row in range(first, first + count)]


def test_every_row_of_every_message_is_found(indexed):
    lake, messages, _, _, file = indexed
    index = FileIndex.open(LocalStore(lake), SERVER, file)
    for message in {*messages, address_of(b"never seen")}:
        for length in (0, 1, 2, 7, 8, 9, 32):
            prefix = message[:length]
            expected = [row for row, other in enumerate(messages) if other.startswith(prefix[:8])]
            assert rows_of(index, prefix) == expected
    assert fold_perfect(index.block_roots()).hex() == file.root
    assert len(index.block_roots()) == 2


def test_a_small_file_has_no_blocks(tmp_path):
    leaves = [address_of(b"leaf %d" % number) for number in range(4)]
    _, file = write_index(tmp_path, [address_of(b"one")] * 4, leaves)
    assert FileIndex.open(LocalStore(tmp_path), SERVER, file).block_roots() == []


@pytest.mark.parametrize("place", [0, 8, 40, 72, 80, 88, 300, -1])
def test_a_changed_index_is_not_believed(indexed, place):
    lake, _, _, path, file = indexed
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert FileIndex.open(LocalStore(lake), SERVER, file) is None


@pytest.mark.parametrize("cut", [0, 20, 88, 200, -1])
def test_half_an_index_is_not_believed(indexed, cut):
    lake, _, _, path, file = indexed
    path.write_bytes(path.read_bytes()[:cut])
    assert FileIndex.open(LocalStore(lake), SERVER, file) is None


def test_no_index_and_that_of_other_bytes_are_none(indexed):
    lake, messages, leaves, path, file = indexed
    path.write_bytes(encode(bytes(32), messages, leaves))
    assert FileIndex.open(LocalStore(lake), SERVER, file) is None
    path.unlink()
    assert FileIndex.open(LocalStore(lake), SERVER, file) is None


@pytest.fixture
def sealed(tmp_path):
    """A journal sealed twice."""
    rng = random.Random(3)
    path, lake = tmp_path / "broker.journal", tmp_path / "lake"
    for part in range(2):
        with open_writer(path) as journal:
            for step in range(60):
                journal.append(random_observations(rng, START_US + (part * 60 + step) * 10**6, 8))
            journal.checkpoint()
        seal_journal(path, LocalStore(lake))
    return path, lake


def test_sealing_writes_the_index_of_each_file(sealed):
    _, lake = sealed
    files = [file for manifest in manifests_of(lake) for file in manifest.files]
    assert sum(file.rows for file in files) > 1000
    for file in files:
        index = FileIndex.open(LocalStore(lake), SERVER, file)
        assert index is not None
        if file.rows >= 256:
            assert fold_perfect(index.block_roots()).hex() == file.root


def test_files_from_before_get_the_same_index_at_the_next_sealing(sealed):
    path, lake = sealed
    before = {file.name: file.read_bytes() for file in lake.glob(f"{INDEXES}/*/*")}
    shutil.rmtree(lake / INDEXES)
    assert seal_journal(path, LocalStore(lake)) is None
    assert {file.name: file.read_bytes() for file in lake.glob(f"{INDEXES}/*/*")} == before
