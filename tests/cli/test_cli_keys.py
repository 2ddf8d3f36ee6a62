import json

import pytest


@pytest.fixture
def keys(dovetail, tmp_path):
    assert dovetail("keys", "ca", "Site CA", "--dir", tmp_path / "keys").code == 0
    return tmp_path / "keys"


def test_ca_prints_the_files_it_made(dovetail, tmp_path):
    ran = dovetail("keys", "ca", "--dir", tmp_path, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [json.loads(line) for line in ran.out.splitlines()] == [
        {"file": str(tmp_path / "ca.key"), "mode": "0600"},
        {"file": str(tmp_path / "ca.pem"), "mode": "0644"},
        {"file": str(tmp_path / "crl.pem"), "mode": "0644"},
    ]


def test_issue_show_revoke(dovetail, keys):
    ran = dovetail(
        "keys", "issue", "h.example", "--dns", "h.example", "--ip", "127.0.0.1", "--days", "30", "--dir", keys
    )
    assert ran.code == 0
    record = json.loads(dovetail("keys", "show", keys / "h.example.pem", "--json").out)
    assert record["names"] == ["dns:h.example", "ip:127.0.0.1"]
    assert record["issuer"] == "CN=Site CA"
    assert record["days_left"] in (29, 30)
    assert dovetail("keys", "revoke", keys / "h.example.pem", "--reason", "superseded", "--dir", keys).code == 0
    assert dovetail("keys", "crl", "--days", "3", "--dir", keys).code == 0
    listed = json.loads(dovetail("keys", "show", keys / "crl.pem", "--json").out)
    assert listed["revoked"] == [record["serial"]]
    assert listed["days_left"] in (2, 3)


def test_issue_refuses_to_overwrite(dovetail, keys):
    assert dovetail("keys", "issue", "a", "--kind", "client", "--dir", keys).code == 0
    ran = dovetail("keys", "issue", "a", "--kind", "client", "--dir", keys)
    assert ran.code == 1
    assert ran.err == f"dovetail: {keys / 'a.key'} exists; --force overwrites it\n"
    assert dovetail("keys", "issue", "a", "--kind", "client", "--dir", keys, "--force").code == 0


def test_signing_keys_need_no_ca(dovetail, tmp_path):
    ran = dovetail("keys", "issue", "swarm://s/p", "--kind", "signing", "--dir", tmp_path)
    assert ran.code == 0
    record = json.loads(dovetail("keys", "show", tmp_path / "swarm_s_p.vkey", "--json").out)
    assert record["name"] == "swarm://s/p"
    assert record["text"] == (tmp_path / "swarm_s_p.vkey").read_text().strip()


def test_signing_keys_take_no_certificate_options(dovetail, tmp_path):
    ran = dovetail("keys", "issue", "a", "--kind", "signing", "--dns", "a", "--dir", tmp_path)
    assert ran.code == 2
    assert list(tmp_path.iterdir()) == []


def test_show_for_people_has_a_block_per_file(dovetail, keys):
    ran = dovetail("keys", "show", keys)
    assert ran.out.count("\n\n") == 2
    assert "subject      CN=Site CA\n" in ran.out
