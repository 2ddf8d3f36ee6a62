import base64
import datetime

import pytest

from dovetail.keys import CertificateKind, Names, create_authority, create_signing_key, describe
from dovetail.keys.authority import load_certificate
from dovetail.model.errors import KeyFileError

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


@pytest.fixture
def keys(tmp_path):
    authority = create_authority(tmp_path, "Test CA", days=100, now=NOW)
    authority.issue("a.example", CertificateKind.PEER, Names(uri=["x:y"], ip=["::1"]), days=10, now=NOW)
    authority.revoke(load_certificate(tmp_path / "a.example.pem"), now=NOW)
    create_signing_key(tmp_path, "pcp://a/server")
    return tmp_path


def test_a_certificate_is_told_in_words(keys):
    (record,) = describe(keys / "a.example.pem", NOW)
    assert record["kind"] == "certificate"
    assert record["subject"] == "CN=a.example"
    assert record["issuer"] == "CN=Test CA"
    assert record["names"] == ["uri:x:y", "ip:::1"]
    assert record["usages"] == ["serverAuth", "clientAuth"]
    assert (record["days_left"], record["valid"]) == (10, True)
    assert len(str(record["fingerprint"])) == 64


def test_validity_depends_on_the_time(keys):
    later = NOW + datetime.timedelta(days=11)
    (record,) = describe(keys / "a.example.pem", later)
    assert (record["days_left"], record["valid"]) == (-1, False)


def test_a_directory_tells_everything_and_no_secret(keys):
    records = list(describe(keys, NOW))
    assert [(record["kind"]) for record in records] == [
        "private key",
        "certificate",
        "private key",
        "ca",
        "revocation list",
        "private key",
        "verifier key",
    ]
    told = str(records)
    for path in (*keys.glob("*.key"), *keys.glob("*.skey")):
        secret_lines = path.read_text().splitlines()[1:-1]
        assert not any(line in told for line in secret_lines)


def test_halves_of_one_pair_show_the_same_public_key(keys):
    records = {str(record["file"]): record for record in describe(keys, NOW)}
    assert records[str(keys / "a.example.key")]["public_key"] == records[str(keys / "a.example.pem")]["public_key"]
    skey, vkey = keys / "pcp_a_server.skey", keys / "pcp_a_server.vkey"
    assert records[str(skey)]["public_key"] == records[str(vkey)]["public_key"]


def test_the_revocation_list_names_the_serial(keys):
    (record,) = describe(keys / "crl.pem", NOW)
    (certificate,) = describe(keys / "a.example.pem", NOW)
    assert record["revoked"] == [certificate["serial"]]


def test_a_private_key_that_others_may_read_is_pointed_out(keys):
    (keys / "ca.key").chmod(0o644)
    (record,) = describe(keys / "ca.key", NOW)
    assert record["mode"] == "0644 (others may read it: chmod 600)"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["a.example.pem", "crl.pem", "a.example.key", "pcp_a_server.skey"])
def test_a_file_with_any_byte_changed_is_described_or_refused_by_name(keys, name):
    """Parts of certificates and lists, and the kinds of their keys, are looked at only when asked for."""
    first, *body, last = (keys / name).read_text().splitlines()
    data = base64.b64decode("".join(body))
    refused = 0
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 0x12]) + data[place + 1 :]
        (keys / name).write_text(f"{first}\n{base64.b64encode(changed).decode()}\n{last}\n")
        try:
            list(describe(keys / name, NOW))
        except KeyFileError:
            refused += 1
    assert refused


def test_one_strange_file_does_not_hide_the_others(keys):
    (keys / "b.pem").write_text("nonsense")
    records = list(describe(keys, NOW))
    assert sum(record["kind"] == "unreadable" for record in records) == 1
    assert len(records) == 8
    with pytest.raises(KeyFileError, match="holds no certificate"):
        list(describe(keys / "b.pem", NOW))
