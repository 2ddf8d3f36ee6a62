import json
import shutil
import sqlite3
import time
import zlib

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.cli.main import main
from dovetail.journal.high_water import mark_path
from dovetail.journal.reader import JournalReader
from dovetail.journal.writer import JournalWriter
from dovetail.keys import create_signing_key, load_signing_key
from dovetail.lake.layout import manifest_key
from dovetail.lake.manifest import encode_manifest
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.hop import Stage
from dovetail.model.times import time_text
from dovetail.site.doctor.finding import Status
from dovetail.site.doctor.journals import check_journals
from dovetail.tlog.keys import Signer
from journal.worlds import START_US, expiring, observe
from lake.hostile_lakes import continued
from pcp.pcp_frames import frame_v1

SERVER = "pcp://broker.example/server"


@pytest.fixture
def site(tmp_path):
    """A journal with ten hops, and the keys of its server."""
    create_signing_key(tmp_path / "keys", SERVER)
    key = load_signing_key(tmp_path / "keys" / "pcp_broker.example_server.skey")
    with JournalWriter.open(
        tmp_path / "journals" / "broker.journal", server=SERVER, signer=Signer(SERVER, key.private_key)
    ) as journal:
        for i in range(10):
            at_us = START_US + i * 1_000_000
            journal.append(
                [observe(b"m%d" % i, Stage.ACCEPTED, f"pcp://a{i}/agent", at_us=at_us, expires_us=at_us + 5)]
            )
        journal.checkpoint()
    return tmp_path


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_folder_with_one_journal_stands_for_it(site, capsys):
    code, out, _ = run(capsys, "journal", "tail", "-n", 1, site / "journals")
    assert (code, out) == run(capsys, "journal", "tail", "-n", 1, site / "journals" / "broker.journal")[:2]
    assert code == 0
    shutil.copy(site / "journals" / "broker.journal", site / "journals" / "other.journal")
    code, _, said = run(capsys, "journal", "tail", site / "journals")
    assert (code, said) == (2, f"dovetail: {site}/journals has 2 journals, expected one: name it\n")


def test_the_size_of_a_live_journal_includes_what_is_not_in_its_file_yet(tmp_path, capsys):
    create_signing_key(tmp_path, SERVER)
    key = load_signing_key(tmp_path / "pcp_broker.example_server.skey")
    path = tmp_path / "a.journal"
    with JournalWriter.open(path, server=SERVER, signer=Signer(SERVER, key.private_key)) as journal:
        journal.append([observe(bytes(100_000), Stage.ACCEPTED, "pcp://a/agent", at_us=START_US)])
        assert json.loads(run(capsys, "journal", "list", path, "--json")[1])["bytes"] > 100_000
    assert json.loads(run(capsys, "journal", "list", path, "--json")[1])["bytes"] == path.stat().st_size


def test_list_tells_whose_journals_and_how_far(site, capsys):
    code, out, _ = run(capsys, "journal", "list", site / "journals", "--json")
    (row,) = map(json.loads, out.splitlines())
    assert code == 0
    assert (row["server"], row["hops"], row["messages"], row["signed"]) == (SERVER, 10, 10, 10)
    assert row["last"] == "2023-11-14T22:13:29.000000Z"
    assert SERVER in run(capsys, "journal", "list", site / "journals")[1]


def test_keys_are_what_trust_wants(site, capsys):
    code, out, _ = run(capsys, "journal", "keys", site / "journals")
    assert code == 0
    assert out == (site / "keys" / "pcp_broker.example_server.vkey").read_text()


def test_a_folder_is_looked_through_for_journals_of_peers_too(site, capsys):
    peer = site / "journals" / "swarm_fleet_peer"
    peer.mkdir()
    (site / "journals" / "broker.journal").rename(peer / "journal.db")
    code, out, _ = run(capsys, "journal", "verify", site / "journals")
    assert code == 0
    assert "journal.db: intact; 10 hops" in out
    (peer / "journal.db").unlink()
    code, _, err = run(capsys, "journal", "verify", site / "journals")
    assert code == 2
    assert "no *.journal or journal.db files in" in err


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        (["-n", "3"], [7, 8, 9]),
        (["--from", "8"], [8, 9]),
        (["--since", "2023-11-14T22:13:25Z", "--until", "2023-11-14T22:13:27Z"], [5, 6]),
        (["--message", address_of(expiring(b"m4", START_US + 4_000_005)).hex()[:10]], [4]),
        (["-n", "1", "--message", address_of(expiring(b"m4", START_US + 4_000_005)).hex()[:10]], [4]),
        (["--from", "5", "--message", address_of(expiring(b"m4", START_US + 4_000_005)).hex()[:10]], []),
    ],
)
def test_tail_prints_the_hops_asked_for(site, capsys, options, seqs):
    code, out, _ = run(capsys, "journal", "tail", site / "journals" / "broker.journal", *options, "--json")
    assert code == 0
    assert [json.loads(line)["seq"] for line in out.splitlines()] == seqs
    assert len(run(capsys, "journal", "tail", site / "journals" / "broker.journal", *options)[1].splitlines()) == len(
        seqs
    )


def test_verify_says_intact_and_names_the_first_bad_row(site, capsys):
    journal = site / "journals" / "broker.journal"
    code, out, _ = run(capsys, "journal", "verify", journal, "--trust", site / "keys")
    assert (code, "intact; 10 hops" in out) == (0, True)
    connection = sqlite3.connect(journal)
    with connection:
        (rows,) = connection.execute("SELECT rows FROM messages WHERE first_id = 5").fetchone()
        forged = rows.replace(b"m4", b"mX")
        connection.execute("UPDATE messages SET rows = ?, crc = ? WHERE first_id = 5", (forged, zlib.crc32(forged)))
    connection.close()
    code, out, _ = run(capsys, "journal", "verify", journal)
    assert (code, "NOT intact; hop 4: the bytes of message" in out) == (3, True)
    code, out, _ = run(capsys, "journal", "verify", journal, "--json")
    assert (code, json.loads(out)["findings"][0]["seq"]) == (3, 4)


def test_verify_against_a_checkpoint_kept_elsewhere(site, capsys):
    journal = site / "journals" / "broker.journal"
    _, note, _ = run(capsys, "journal", "checkpoint", journal)
    (site / "kept.note").write_text(note)
    assert run(capsys, "journal", "verify", journal, "--since", site / "kept.note")[0] == 0
    (site / "kept.note").write_text(note.replace("10", "11", 1))
    assert run(capsys, "journal", "verify", journal, "--since", site / "kept.note")[0] == 3
    code, _, err = run(capsys, "journal", "verify", journal, "--since", site / "none.note")
    assert (code, "none.note" in err) == (2, True)


def test_verify_says_where_there_is_no_lake_to_compare_with(site, capsys):
    journal = site / "journals" / "broker.journal"
    code, _, err = run(capsys, "journal", "verify", journal, "--lake", site / "lake")
    assert (code, "has no manifests: it is not a lake" in err) == (1, True)
    run(capsys, "journal", "seal", site / "journals", "--lake", site / "lake")
    assert run(capsys, "journal", "verify", journal, "--lake", site / "lake")[::2] == (0, "")
    (site / "lake" / "_manifests").rename(site / "moved")
    (site / "lake" / "_manifests").symlink_to(site / "moved")
    assert run(capsys, "journal", "verify", journal, "--lake", site / "lake")[0] == 1


def test_verify_says_that_nothing_of_a_journal_is_sealed(site, capsys):
    other = "pcp://other.example/server"
    create_signing_key(site / "keys", other)
    key = load_signing_key(site / "keys" / "pcp_other.example_server.skey")
    with JournalWriter.open(site / "other.journal", server=other, signer=Signer(other, key.private_key)) as journal:
        journal.append([observe(b"one")])
        journal.checkpoint()
    run(capsys, "journal", "seal", site / "other.journal", "--lake", site / "lake")
    code, _, err = run(capsys, "journal", "verify", site / "journals" / "broker.journal", "--lake", site / "lake")
    assert (code, f"nothing of {SERVER} is sealed in" in err) == (0, True)


def test_seal_writes_once_and_purge_keeps_what_is_not_sealed(site, capsys):
    journal = site / "journals" / "broker.journal"
    key = site / "keys" / "pcp_broker.example_server.skey"
    code, out, _ = run(capsys, "journal", "purge", journal, "--signing-key", key, "--lake", site / "lake", "--json")
    assert (code, json.loads(out)["purged"]) == (0, 0)
    code, out, _ = run(capsys, "journal", "seal", site / "journals", "--lake", site / "lake", "--json")
    assert (code, json.loads(out)["hops"]) == (0, 10)
    code, out, _ = run(capsys, "journal", "seal", site / "journals", "--lake", site / "lake", "--json")
    assert (code, json.loads(out)["hops"]) == (0, 0)
    before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_US / 1e6 + 3.5))
    code, out, _ = run(
        capsys, "journal", "purge", journal, "--signing-key", key, "--lake", site / "lake", "--before", before, "--json"
    )
    assert (code, json.loads(out)["purged"]) == (0, 3)
    assert run(capsys, "journal", "verify", journal)[0] == 0


def test_purge_keeps_what_a_killed_broker_must_settle(site, capsys):
    """The message expired while the broker was down: it still owes the outcome for the second recipient."""
    a, b, c = (f"pcp://{name}/agent" for name in "abc")
    later_us = START_US + 20_000_000
    owed, settled = (frame_v1(sender=a, targets=[b, c], expires=time_text(later_us + n)) for n in (1, 2))
    key = load_signing_key(site / "keys" / "pcp_broker.example_server.skey")
    path = site / "journals" / "broker.journal"
    with JournalWriter.open(path, server=SERVER, signer=Signer(SERVER, key.private_key)) as journal:
        for raw, ends in ((owed, (b,)), (settled, (b, c))):
            accepted = observe(raw, Stage.ACCEPTED, a, at_us=later_us)
            journal.append([msgspec.structs.replace(accepted, expires_us=later_us + 2)])
            journal.append([observe(raw, Stage.DELIVERED, uri, at_us=later_us) for uri in ends])
    code, out, err = run(capsys, "journal", "purge", path, "--signing-key", broker_key(site), "--json")
    assert (code, json.loads(out)["purged"]) == (0, 11)
    assert "messages kept until the server has started again and settled them: 1" in err
    with JournalReader.open(path) as reader:
        assert reader.raw(address_of(owed)) == owed
        assert reader.raw(address_of(settled)) is None


@pytest.fixture
def restored(site, capsys):
    """A site with two journals, one of them restored from a backup of journal and mark; the lake has hops after it."""
    journal, other = site / "journals" / "broker.journal", "pcp://other.example/server"
    create_signing_key(site / "keys", other)
    write(site / "journals" / "other.journal", site / "keys" / "pcp_other.example_server.skey", b"one")
    backup = site / "backup"
    backup.mkdir()
    for path in (journal, mark_path(journal)):
        shutil.copy(path, backup)
    write(journal, broker_key(site), b"after the backup")
    assert run(capsys, "journal", "seal", journal, "--lake", site / "lake")[0] == 0
    for path in (journal, mark_path(journal)):
        shutil.copy(backup / path.name, path)
    return site


def broker_key(site):
    return site / "keys" / "pcp_broker.example_server.skey"


def write(journal, key, *texts, is_signed=True):
    signer = load_signing_key(key)
    with JournalWriter.open(journal, server=signer.name, signer=signer) as writer:
        writer.append([observe(text, at_us=START_US + 10**8) for text in texts])
        if is_signed:
            writer.checkpoint()


@pytest.mark.parametrize("more", [0, 3], ids=["as restored", "gone on"])
@pytest.mark.parametrize("has_forged", [False, True], ids=["own key", "another key behind it"])
def test_a_journal_that_the_lake_is_ahead_of_is_refused_and_the_others_are_sealed(restored, capsys, more, has_forged):
    site, lake = restored, LocalStore(restored / "lake")
    journal = site / "journals" / "broker.journal"
    if more:
        write(journal, broker_key(site), *(b"another %d" % number for number in range(more)), is_signed=False)
    (sealed,) = snapshot(lake).manifests()
    if has_forged:
        forged = continued(sealed, Signer(SERVER, Ed25519PrivateKey.from_private_bytes(b"x" * 32)), 1)
        lake.create(manifest_key(SERVER, 1), encode_manifest(forged))
    with JournalReader.open(journal) as reader:
        signed = reader.latest_checkpoint()
    difference = f"has other hops among its first {sealed.end} than" if more else "has 10 hops, and"
    knows = f"the lake {site / 'lake'} knows"
    for options in ([], ["--signing-key", broker_key(site)]):
        code, out, err = run(capsys, "journal", "seal", journal, "--lake", site / "lake", *options)
        lines = [line for line in err.splitlines() if "is ignored; find out who can write" not in line]
        assert (code, out, len(lines)) == (1, "", 1)
        assert f"broker.journal {difference} {knows}" in lines[0]
        assert "journal recover" in lines[0]
    purge = ("journal", "purge", journal, "--signing-key", broker_key(site), "--lake", site / "lake")
    code, _, err = run(capsys, *purge)
    assert (code, difference in err) == (1, True)
    with JournalReader.open(journal) as reader:
        assert reader.latest_checkpoint() == signed, "it is not signed either"
    code, out, err = run(capsys, "journal", "seal", site / "journals", "--lake", site / "lake", "--json")
    assert (code, json.loads(out)["hops"], difference in err) == (1, 1, True)
    assert snapshot(lake, SERVER, [load_signing_key(broker_key(site)).verifier]).manifests() == [sealed]
    # the finding
    code, out, _ = run(capsys, "journal", "verify", journal, "--lake", site / "lake", "--json")
    assert (code, [difference in finding["detail"] for finding in json.loads(out)["findings"]]) == (3, [True])
    (failed,) = (each for each in check_journals(site / "journals", lake) if each.status is Status.FAIL)
    assert f"it {difference} {knows}" in failed.detail
    # what the lake has is taken back
    if not more:
        recover = ("journal", "recover", journal, "--signing-key", broker_key(site), "--lake", site / "lake")
        assert run(capsys, *recover)[0] == 0
        assert run(capsys, "journal", "seal", journal, "--lake", site / "lake")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["journal", "tail", "missing.journal"], "no journal at missing.journal"),
        (["journal", "verify", "."], "no *.journal or journal.db files"),
        (["journal", "tail", "x.journal", "--since", "yesterday"], "no journal at x.journal"),
        (["journal", "purge", "x.journal", "--signing-key", "no.skey"], "no.skey"),
        (["journal", "purge", "x.journal", "--signing-key", "no.skey", "--before", "2999-01-01"], "lies in the future"),
        (["journal", "tail", "x.journal", "-f", "--until", "2020-01-01"], "give only one"),
    ],
)
def test_misuse_is_told_in_one_line(tmp_path, monkeypatch, capsys, arguments, text):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code in (1, 2)
    assert out == ""
    assert text in err
    assert len(err.strip().splitlines()) == 1
