"""Names in certificates, revocation lists, and replaced certificates."""

import contextlib
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from dovetail.keys.authority import CertificateKind, Names, create_authority, load_certificate
from dovetail.model.errors import ConfigError, KeyFileError
from dovetail.runtime.tls import (
    RevocationList,
    ServerTls,
    client_context,
    common_name,
    describe_failure,
    serial_number,
    server_context,
)


def certificate(*parts: tuple[tuple[str, str], ...]) -> dict[str, object]:
    return {"subject": parts, "serialNumber": "0A"}


def test_the_common_name_is_found_by_name_among_all_rdns():
    assert common_name(certificate((("organizationName", "x"),), (("commonName", "agent1"),))) == "agent1"
    assert common_name(certificate((("organizationName", "x"), ("commonName", "agent1")))) == "agent1"


def test_no_common_name_or_several_is_none():
    assert common_name(None) is None
    assert common_name({}) is None
    assert common_name(certificate((("organizationName", "x"),))) is None
    assert common_name(certificate((("commonName", "a"),), (("commonName", "b"),))) is None
    assert common_name(certificate((("commonName", ""),))) is None


def test_serial_numbers_are_hexadecimal():
    assert serial_number(certificate()) == 10
    assert serial_number(None) is None


def test_a_changed_list_is_read_again_and_tells_what_is_new(tmp_path):
    authority = create_authority(tmp_path, "CA")
    authority.issue("traitor", CertificateKind.CLIENT, Names())
    traitor = load_certificate(tmp_path / "traitor.pem")
    path = authority.write_revocation_list()
    revocations = RevocationList(str(path), str(tmp_path / "ca.pem"))
    assert revocations.reload() == frozenset()
    authority.revoke(traitor)
    assert revocations.reload() == {traitor.serial_number}
    assert revocations.reload() == frozenset()
    assert revocations.serials == {traitor.serial_number}


def test_unusable_files_are_named(tmp_path):
    authority = create_authority(tmp_path, "CA")
    for name in ("ann", "ben"):
        authority.issue(name, CertificateKind.CLIENT, Names())
    ca, ann, key, other = (str(tmp_path / name) for name in ("ca.pem", "ann.pem", "ann.key", "ben.key"))
    private = load_pem_private_key((tmp_path / "ann.key").read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    for files, said in {
        (ann, other, ca): f"{other} is not the private key of {ann}",
        (key, key, ca): f"{key} has no certificate in PEM",
        (ann, ann, ca): f"{ann} has no private key in PEM",
        (ann, key, key): f"{key} has no certificate in PEM",
        (ann, key, "no.pem"): "no.pem cannot be read: No such file or directory",
        (ann, str(encrypted), ca): f"{encrypted} is encrypted: decrypt it, and protect it by its mode",
    }.items():
        with pytest.raises(KeyFileError) as raised:
            client_context(*files)
        assert str(raised.value) == said


def test_a_list_of_somebody_else_is_refused(tmp_path):
    for name in ("one", "two"):
        create_authority(tmp_path / name, "CA").write_revocation_list()
    revocations = RevocationList(str(tmp_path / "one" / "crl.pem"), str(tmp_path / "two" / "ca.pem"))
    with pytest.raises(ConfigError, match="not signed"):
        revocations.reload()


def test_a_list_with_any_byte_changed_is_refused_by_name(tmp_path):
    authority = create_authority(tmp_path, "CA")
    path = authority.write_revocation_list()
    good = x509.load_pem_x509_crl(path.read_bytes()).public_bytes(Encoding.DER)
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x15]) + good[position + 1 :])
        with pytest.raises(ConfigError, match=r"crl\.pem is not"):
            RevocationList(str(path), str(tmp_path / "ca.pem")).reload()


def test_files_that_cannot_be_used_are_named(tmp_path):
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    with pytest.raises(ConfigError, match=r"broken\.pem"):
        RevocationList(str(broken), str(broken)).reload()
    with pytest.raises(ConfigError, match="cannot be read"):
        RevocationList(str(tmp_path / "missing"), str(broken)).reload()
    with pytest.raises(KeyFileError, match=r"broken\.pem"):
        server_context(str(broken), str(broken), str(broken))


@pytest.fixture
def files(tmp_path):
    authority = create_authority(tmp_path, "CA")
    key, certificate = authority.issue("localhost", CertificateKind.SERVER, Names(dns=["localhost"]))
    return certificate, key, tmp_path / "ca.pem"


def test_a_replaced_certificate_is_used_for_the_next_connection(files):
    certificate, key, authority = files
    tls = ServerTls(str(certificate), str(key), str(authority), check_s=0)
    first = tls.current()
    assert tls.current() is first
    certificate.write_bytes(certificate.read_bytes() + b"\n")
    assert tls.current() is not first
    assert tls.current().verify_mode is ssl.CERT_REQUIRED


def shake_hands(server, client):
    """A complete handshake in memory; returns both sides, whose session is lost unless they are shut down."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    sides[0].write(b"x")
    assert sides[1].read() == b"x"
    return sides


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_keeps_no_sessions_whoever_shakes_hands(files, version):
    certificate, key, authority = files
    server = server_context(str(certificate), str(key))
    client = client_context(authority=str(authority))
    client.maximum_version = version
    links = [shake_hands(server, client) for _ in range(5)]
    stats = server.session_stats()
    assert (stats["accept_good"], stats["number"]) == (len(links), 0)


@pytest.mark.parametrize("damage", ["garbage", "gone"])
def test_where_a_replaced_certificate_cannot_be_used_the_last_one_stays(files, damage, caplog):
    certificate, key, _ = files
    good = certificate.read_bytes()
    tls = ServerTls(str(certificate), str(key), check_s=0)
    first = tls.current()
    if damage == "gone":
        certificate.unlink()
    else:
        certificate.write_text("nothing")
    assert tls.current() is first
    assert tls.current() is first
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    certificate.write_bytes(good + b"\n")
    assert tls.current() is not first


def test_a_failure_is_told_in_a_few_words():
    expired = ssl.SSLCertVerificationError()
    expired.verify_message = "certificate has expired"
    assert describe_failure(expired) == "certificate not accepted: certificate has expired"
    odd = ssl.SSLError()
    odd.reason = "HTTP_REQUEST"
    assert describe_failure(odd) == "tls: http request"
    assert describe_failure(ConnectionResetError()) == "the peer closed the connection"
    assert describe_failure(OSError(111, "Connect call failed ('::1', 1)")) == "connection refused"


def test_the_file_that_is_missing_is_named(tmp_path):
    (tmp_path / "me.pem").write_text("")
    with pytest.raises(KeyFileError) as raised:
        client_context(str(tmp_path / "me.pem"), str(tmp_path / "me.key"), str(tmp_path / "ca.pem"))
    assert str(raised.value) == f"{tmp_path}/me.key cannot be read: No such file or directory"
