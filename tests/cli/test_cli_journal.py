import json
import sqlite3
import time
import zlib

import pytest

from dovetail.cli.main import main
from dovetail.journal.writer import JournalWriter
from dovetail.keys import create_signing_key, load_signing_key
from dovetail.model.address import address_of
from dovetail.model.hop import Stage
from dovetail.tlog.keys import Signer
from journal.worlds import START_US, expiring, observe

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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["journal", "tail", "missing.journal"], "no journal at missing.journal"),
        (["journal", "verify", "."], "no *.journal or journal.db files"),
        (["journal", "tail", "x.journal", "--since", "yesterday"], "no journal at x.journal"),
        (["journal", "purge", "x.journal", "--signing-key", "no.skey"], "no.skey"),
        (["journal", "purge", "x.journal", "--signing-key", "no.skey", "--before", "2999-01-01"], "lies in the future"),
        (["journal", "tail", "x.journal", "-f", "--until", "2020-01-01"], "give one of them"),
    ],
)
def test_misuse_is_told_in_one_line(tmp_path, monkeypatch, capsys, arguments, text):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code in (1, 2)
    assert out == ""
    assert text in err
    assert len(err.strip().splitlines()) == 1
