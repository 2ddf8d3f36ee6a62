import hashlib
import os
import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal import reader as reader_module
from dovetail.journal import writer
from dovetail.journal.addresses import AddressIndex
from dovetail.journal.catalogue import Limits
from dovetail.journal.database import connect_writer
from dovetail.journal.reader import JournalReader
from dovetail.journal.stored_tree import JournalTree
from dovetail.journal.verify import verify_journal
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import Address, address_of
from dovetail.model.errors import JournalDamaged, JournalError, JournalFull, JournalLocked
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.tlog.keys import Signer
from dovetail.tlog.tree import HASH_BYTES, split_hashes
from journal.worlds import SERVER, SIGNER, START_US, Model, observe, open_writer, random_observations
from tlog.trees import root_of


def test_a_hop_comes_back_as_it_was_appended(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        assert journal.append([observe(b"hello", Stage.ACCEPTED, "pcp://a/agent")]) == 1
        (hop,) = journal.hops()
    assert (hop.server, hop.seq, hop.at_us, hop.stage) == (SERVER, 0, START_US, Stage.ACCEPTED)
    assert (hop.message, hop.counterpart, hop.reason) == (address_of(b"hello"), "pcp://a/agent", None)
    assert (hop.raw, hop.size) == (b"hello", 5)


def test_a_fan_out_is_one_row_and_a_hop_for_each_recipient(tmp_path):
    names = tuple(f"pcp://host{i}/agent" for i in range(1000))
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"m", Stage.ACCEPTED, "pcp://c/controller"), observe(b"m", Stage.DELIVERED, *names)])
        assert journal.size == 1001
        assert [hop.counterpart for hop in journal.hops(1)] == list(names)
        assert journal.reader.one("SELECT count(*), length(runs) < 4100 FROM commits") == (1, 1)


def test_bytes_are_kept_once_and_stand_on_the_hop_that_brought_them(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"m", Stage.PULLED, raw=None), observe(b"m"), observe(b"m")])
        journal.append([observe(b"m", Stage.DELIVERED)])
        assert [hop.raw for hop in journal.hops()] == [None, b"m", None, None]
        assert journal.reader.message_count == 1


def test_a_message_that_is_new_and_met_twice_is_not_looked_up(tmp_path, monkeypatch):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"%d" % number) for number in range(100)])
        journal.index()
        journal.append([observe(b"first", Stage.ACCEPTED)])  # the filter is built here
        looked_up = []
        monkeypatch.setattr(AddressIndex, "candidates", lambda _, addresses: looked_up.extend(addresses) or [])
        journal.append([observe(b"new", Stage.ACCEPTED), observe(b"new", Stage.DELIVERED)])
        monkeypatch.undo()
        assert looked_up == []
        assert journal.reader.message_count == 102


def test_time_never_goes_back(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"1", at_us=100), observe(b"2", at_us=50), observe(b"3", at_us=120)])
        journal.append([observe(b"4", at_us=10)])
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"5", at_us=20)])
        assert [hop.at_us for hop in journal.hops()] == [100, 100, 120, 120, 120]


def test_cut_evidence_keeps_the_size_of_the_whole(tmp_path):
    whole = b"x" * 1000
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append(
            [observe(whole, Stage.REJECTED, reason=Reason.TOO_LARGE, raw=whole[:10], size=1000, at_us=1)],
        )
        (hop,) = journal.hops()
        assert (hop.raw, hop.size, hop.reason) == (whole[:10], 1000, Reason.TOO_LARGE)
        journal.checkpoint()
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_what_is_open_cannot_be_opened_twice(tmp_path):
    with open_writer(tmp_path / "a.journal"), pytest.raises(JournalLocked, match="process"):
        open_writer(tmp_path / "a.journal")
    open_writer(tmp_path / "a.journal").close()


def test_a_journal_of_another_server_or_key_is_refused(tmp_path):
    open_writer(tmp_path / "a.journal").close()
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    other = Signer("pcp://other/server", key)
    with pytest.raises(JournalError, match=r"journal of .* expected"):
        writer.JournalWriter.open(tmp_path / "a.journal", server=other.name, signer=other)
    with pytest.raises(JournalError, match=r"journal of key .* expected"):
        writer.JournalWriter.open(tmp_path / "a.journal", server=SERVER, signer=Signer(SERVER, key))
    with pytest.raises(JournalError, match="signing key is named"):
        writer.JournalWriter.open(tmp_path / "a.journal", server=SERVER, signer=other)


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    (tmp_path / "a.journal").write_bytes(b"not a database" * 1000)
    with pytest.raises(JournalError, match=r"a\.journal"):
        open_writer(tmp_path / "a.journal")
    with pytest.raises(JournalError, match=r"a\.journal"):
        JournalReader.open(tmp_path / "a.journal")
    with pytest.raises(JournalError, match="no journal at"):
        JournalReader.open(tmp_path / "missing.journal")


@pytest.mark.parametrize("version", [2, 4])
def test_a_journal_of_another_format_is_refused_with_what_to_do(tmp_path, version):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"message")])
    connection = connect_writer(tmp_path / "a.journal")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    for open_ in (open_writer, JournalReader.open):
        with pytest.raises(JournalError, match=f"has journal format {version}, expected 3: read and seal it with"):
            open_(tmp_path / "a.journal")


@pytest.mark.parametrize(
    "bad",
    [
        Observation(at_us=1, stage=Stage.ACCEPTED, message=Address(b"short")),
        observe(b"m", Stage.ACCEPTED, ""),
        observe(b"m", Stage.ACCEPTED, "x" * 9000),
    ],
)
def test_an_impossible_observation_is_refused_and_leaves_nothing(tmp_path, bad):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"before")])
        with pytest.raises(JournalError):
            journal.append([observe(b"good", Stage.ACCEPTED, "pcp://new/agent"), bad])
        assert journal.size == 1
        journal.append([observe(b"good", Stage.ACCEPTED, "pcp://new/agent")])
        journal.checkpoint()
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_a_full_disk_acknowledges_nothing_and_goes_on_when_there_is_room(tmp_path):
    connections = []

    def connect(path):
        connections.append(connect_writer(path))
        return connections[-1]

    model = Model()
    with open_writer(tmp_path / "a.journal", connect=connect) as journal:
        pages = connections[0].execute("PRAGMA page_count").fetchone()[0]
        connections[0].execute(f"PRAGMA max_page_count = {pages + 6}").fetchone()
        batch = [observe(b"0")]
        with pytest.raises(JournalFull, match="no room left"):  # noqa: PT012
            for i in range(1000):
                batch = [observe(b"%d" % i * 100, Stage.ACCEPTED, f"pcp://host{i}/agent")]
                journal.append(batch)
                model.append(batch)
        assert journal.size == len(model.hops)
        connections[0].execute("PRAGMA max_page_count = 100000").fetchone()
        journal.append(batch)
        model.append(batch)
        assert list(journal.hops()) == model.hops
        journal.checkpoint()
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_lookups_work_before_and_after_indexing_and_reopening(tmp_path):
    rng = random.Random(4)
    model = Model()
    with open_writer(tmp_path / "a.journal") as journal:
        for step in range(6):
            batch = random_observations(rng, START_US + step * 10**7, 20)
            journal.append(batch)
            model.append(batch)
            if step == 2:
                journal.index()
        _assert_lookups(journal.reader, model)
    with open_writer(tmp_path / "a.journal") as journal:
        _assert_lookups(journal.reader, model)
        journal.index()
        _assert_lookups(journal.reader, model)


def _assert_lookups(reader, model):
    assert list(reader.hops()) == model.hops
    assert list(reader.hops(7, 31)) == model.hops[7:31]
    addresses = {hop.message for hop in model.hops}
    for address in addresses:
        assert reader.hops_of(address) == [hop for hop in model.hops if hop.message == address]
        assert reader.raw(address) == model.raw(address)
        assert [row.address for row in reader.find(address[:6])] == [address]
    assert {row.address for row in reader.find(b"")} == addresses
    assert {row.address for row in reader.find(b"\xa0"[:1])} == {a for a in addresses if a[0] == 0xA0}
    assert reader.message(address_of(b"never seen")) is None
    times = [hop.at_us for hop in model.hops]
    for at_us in {times[0] - 1, *times, *(t + 1 for t in times)}:
        assert reader.seq_at(at_us) == sum(1 for t in times if t < at_us)


def test_a_lookup_reads_each_row_behind_the_index_once(tmp_path, monkeypatch):
    read = []
    decode = reader_module.decode_block
    monkeypatch.setattr(reader_module, "decode_block", lambda row: read.append(row) or decode(row))
    with open_writer(tmp_path / "a.journal") as journal, JournalReader.open(tmp_path / "a.journal") as reader:
        texts = [b"message %d" % number for number in range(60)]
        for start in range(0, 50, 10):
            journal.append([observe(text) for text in texts[start : start + 10]])
            if start == 0:
                journal.index()
            for text in texts[: start + 10]:
                read.clear()
                assert [row.raw for row in reader.find(address_of(text))] == [text]
                # new rows, the last row again to see that there are no more, and the row of the message
                assert len(read) <= 3
        journal.index()
        assert reader.find(address_of(texts[44]))[0].raw == texts[44]
        journal.append([observe(text) for text in texts[50:]])
        assert reader.find(address_of(texts[55]))[0].raw == texts[55]
        assert reader._unindexed == [address_of(text) for text in texts[50:]]


@pytest.mark.parametrize("server", [SERVER, "https://node.example/won/resource"])
def test_a_group_of_new_messages_lies_in_the_file_as_if_something_in_it_were_known(tmp_path, server):
    signer = Signer(server, Ed25519PrivateKey.from_private_bytes(bytes(32)))
    group = [
        observe(b"text %d" % number, Stage.ACCEPTED, f"pcp://host{number % 3}/agent", at_us=START_US + number % 4)
        for number in range(12)
    ]
    if server != SERVER:  # the address of a won message is not the hash of its bytes
        group.append(Observation(at_us=START_US, stage=Stage.CREATED, message=address_of(b"canonical"), raw=b"as sent"))
    blocks = []
    for name, repeated in (("plain", []), ("repeating", [observe(b"text 3", Stage.DELIVERED)])):
        with JournalWriter.open(tmp_path / name, server=server, signer=signer) as journal:
            journal.append(group + repeated)
            (block,) = journal.reader.message_blocks()
            (commit,) = journal.reader.commits()
            blocks.append((block, commit.row.body_bytes, commit.runs[: len(group)], list(journal.hops(0, len(group)))))
    assert blocks[0] == blocks[1]
    digests = {message.digest for message in blocks[0][0].messages}
    assert digests == ({b""} if server == SERVER else {b"", hashlib.sha256(b"as sent").digest()})


def test_what_memory_forgot_is_found_in_the_file(tmp_path):
    limits = Limits(messages_kept=3, names_kept=3, index_after_messages=2, index_after_runs=10)
    rng = random.Random(5)
    model = Model()
    with open_writer(tmp_path / "a.journal", limits=limits) as journal:
        for step in range(40):
            batch = random_observations(rng, START_US + step * 10**6, 5)
            journal.append(batch)
            model.append(batch)
        journal.checkpoint()
        assert list(journal.hops()) == model.hops
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_a_damaged_row_fails_the_append_that_needs_it_and_no_other(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"late", raw=None)])
        other = connect_writer(journal.path)
        other.execute("UPDATE messages SET crc = crc + 1")
        other.close()
        with pytest.raises(JournalDamaged, match="checksum"):
            journal.append([observe(b"late")])
        assert journal.append([observe(b"other")]) == 2


def test_checkpoints_are_made_only_when_something_is_new(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        assert journal.checkpoint() is None
        journal.append([observe(b"1")])
        first = journal.checkpoint()
        assert journal.checkpoint() == first
        journal.append([observe(b"2")])
        assert journal.checkpoint().size == 2
        assert [c.size for c in journal.reader.checkpoints()] == [1, 2]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_signed_is_the_tree_over_the_rows(tmp_path, seed):
    rng = random.Random(seed)
    with open_writer(tmp_path / "a.journal") as journal:
        for step in range(30):
            journal.append(random_observations(rng, START_US + step * 10**6, rng.randrange(1, 60)))
            if rng.random() < 0.2:
                leaves = b"".join(JournalTree(journal.reader).leaf_hashes(0, journal.size))
                assert journal.checkpoint().root == root_of(split_hashes(leaves))
    # no checkpoint on close: the hops after the last one are hashed again
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"last")])
        leaves = b"".join(JournalTree(journal.reader).leaf_hashes(0, journal.size))
        assert journal.checkpoint().root == root_of(split_hashes(leaves))
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_a_tree_that_has_grown_much_is_signed_without_being_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_BLOCKS_UNSTORED", 2)
    names = tuple(f"pcp://host{i}/agent" for i in range(300))
    with open_writer(tmp_path / "a.journal") as journal:
        for number in range(5):
            journal.append([observe(b"%d" % number, Stage.DELIVERED, *names)])
        assert [checkpoint.size for checkpoint in journal.reader.checkpoints()] == [600, 1200]
        assert journal.checkpoint().size == 1500
    assert verify_journal(tmp_path / "a.journal").is_intact


def test_a_journal_damaged_behind_its_last_block_is_not_written(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"1")])
        journal.append([observe(b"2")])
        journal.index()
        other = connect_writer(journal.path)
        other.execute("UPDATE commits SET crc = crc + 1 WHERE first_seq = 0")
        other.close()
    with pytest.raises(JournalDamaged, match="checksum of the commit"):
        open_writer(tmp_path / "a.journal")


def test_signer_is_the_only_thing_that_opens_a_journal_for_writing(tmp_path):
    with open_writer(tmp_path / "a.journal") as journal:
        journal.append([observe(b"1")])
    data = (tmp_path / "a.journal").read_bytes()
    assert bytes(range(32)) not in data
    assert SIGNER.verifier.text().encode() in data


def test_leaves_of_a_part_are_those_of_the_whole(tmp_path):
    rng = random.Random(7)
    with open_writer(tmp_path / "a.journal") as writer:
        for _ in range(4):
            writer.append(random_observations(rng, START_US, 12))
        tree = JournalTree(writer.reader)
        whole = b"".join(tree.leaf_hashes(0, writer.size))
        assert len(whole) == writer.size * HASH_BYTES
        for first in range(0, writer.size, 3):
            for end in range(first, writer.size + 1, 11):
                assert b"".join(tree.leaf_hashes(first, end)) == whole[first * HASH_BYTES : end * HASH_BYTES]


@pytest.mark.parametrize("page_bytes", [4096, 8192])
def test_the_log_is_bounded_whatever_the_pages_of_the_file(tmp_path, page_bytes):
    path = tmp_path / "a.journal"
    made = connect_writer(path)
    made.execute(f"PRAGMA page_size = {page_bytes}")
    made.execute("PRAGMA journal_mode = WAL")
    made.close()
    with open_writer(path) as journal:
        for number in range(60):
            journal.append([observe(b"%d" % number * 400_000)])
        size = path.with_name("a.journal-wal").stat().st_size
        assert journal.reader.one("PRAGMA page_size") == (page_bytes,)
    assert 8 << 20 < size < 20 << 20


def test_only_the_owner_may_read_a_journal_and_what_lies_beside_it(tmp_path):
    before = os.umask(0)
    try:
        path = tmp_path / "new" / "folder" / "a.journal"
        with open_writer(path) as journal:
            journal.append([observe(b"1")])
            files = list(path.parent.iterdir())
            assert {file.name for file in files} >= {"a.journal", "a.journal-wal", "a.journal-shm", "a.journal.mark"}
            assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
        for folder in (path.parent, path.parent.parent):
            assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("suffix", [".lock", ".mark"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_name_beside_the_journal_that_leads_elsewhere_is_refused(tmp_path, suffix, kind):
    path = tmp_path / "journal.db"
    with open_writer(path) as writer:
        writer.append([observe(b"m")])
    beside = path.with_name(path.name + suffix)
    beside.unlink()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    os.mkfifo(beside) if kind == "pipe" else beside.symlink_to(victim)
    with pytest.raises(JournalError, match=beside.name):
        open_writer(path)
    assert verify_journal(path).is_intact is (suffix == ".lock")
    assert victim.read_bytes() == b"precious"
