import datetime
import ssl
import stat
import sys

import pytest
from cryptography import x509

from dovetail.keys import CertificateKind, Names, create_authority, load_authority
from dovetail.keys.authority import load_certificate, load_revocation_list
from dovetail.model.errors import KeyFileError

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def authority(tmp_path):
    return create_authority(tmp_path / "keys", "Test CA", now=NOW)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """A complete TLS handshake and one byte each way, in memory; returns the server's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client_side.do_handshake, server_side.do_handshake]
    for _ in range(10):
        for step in list(waiting):
            try:
                step()
                waiting.remove(step)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    server_side.write(b"x")
    assert client_side.read(1) == b"x"
    return server_side


def server_context(directory, name: str, *, flags: ssl.VerifyFlags = ssl.VerifyFlags.VERIFY_DEFAULT) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / f"{name}.pem", directory / f"{name}.key")
    context.load_verify_locations(directory / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    if flags:
        context.load_verify_locations(directory / "crl.pem")
        context.verify_flags |= flags
    return context


def client_context(directory, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    context.load_cert_chain(directory / f"{name}.pem", directory / f"{name}.key")
    return context


@pytest.fixture
def valid_now(tmp_path):
    """A CA whose certificates are valid at the real time, which TLS checks."""
    authority = create_authority(tmp_path / "keys", "Test CA")
    authority.issue("broker.example", CertificateKind.SERVER, Names(ip=["127.0.0.1"], dns=["broker.example"]))
    authority.issue("agent-1", CertificateKind.CLIENT, Names())
    return authority


def test_server_and_client_meet_over_tls(valid_now):
    directory = valid_now.directory
    server_side = handshake(
        client_context(directory, "agent-1"), server_context(directory, "broker.example"), "127.0.0.1"
    )
    certificate = server_side.getpeercert()
    assert certificate["subject"] == ((("commonName", "agent-1"),),)


def test_a_client_certificate_is_no_server(valid_now):
    directory = valid_now.directory
    valid_now.issue("fake", CertificateKind.CLIENT, Names(dns=["broker.example"]))
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(client_context(directory, "agent-1"), server_context(directory, "fake"), "broker.example")


def test_a_peer_is_both(valid_now):
    directory = valid_now.directory
    valid_now.issue("node.example", CertificateKind.PEER, Names())
    server = server_context(directory, "node.example")
    side = handshake(client_context(directory, "node.example"), server, "node.example")
    assert side.getpeercert()["subject"] == ((("commonName", "node.example"),),)
    # a client certificate is not valid for a server
    with pytest.raises(ssl.SSLError):
        handshake(client_context(directory, "node.example"), server_context(directory, "agent-1"), "agent-1")


def test_a_revoked_client_is_refused_and_others_are_not(valid_now):
    directory = valid_now.directory
    valid_now.issue("agent-2", CertificateKind.CLIENT, Names())
    valid_now.revoke(load_certificate(directory / "agent-1.pem"), x509.ReasonFlags.key_compromise)
    server = server_context(directory, "broker.example", flags=ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF)
    handshake(client_context(directory, "agent-2"), server, "127.0.0.1")
    with pytest.raises(ssl.SSLError, match="revoked"):
        handshake(client_context(directory, "agent-1"), server, "127.0.0.1")


def test_files_and_modes(authority):
    authority.issue("broker", CertificateKind.SERVER, Names(), now=NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in authority.directory.iterdir()}
    assert modes == {
        "ca.key": 0o600,
        "ca.pem": 0o644,
        "crl.pem": 0o644,
        "broker.key": 0o600,
        "broker.pem": 0o644,
    }
    assert stat.S_IMODE(authority.directory.stat().st_mode) == 0o700


def test_the_names_stand_in_the_certificate(authority):
    names = Names(dns=["a.example", "*.b.example"], ip=["::1", "10.0.0.1"], uri=["https://a.example/won/resource"])
    _, path = authority.issue("a.example", CertificateKind.SERVER, names, days=7, now=NOW)
    certificate = load_certificate(path)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == ["a.example", "*.b.example"]
    assert [str(address) for address in found.get_values_for_type(x509.IPAddress)] == ["::1", "10.0.0.1"]
    assert found.get_values_for_type(x509.UniformResourceIdentifier) == ["https://a.example/won/resource"]
    assert certificate.not_valid_after_utc == NOW + 7 * DAY
    assert certificate.not_valid_before_utc < NOW
    certificate.verify_directly_issued_by(authority.certificate)


@pytest.mark.parametrize(("name", "kind"), [("h.example", x509.DNSName), ("127.0.0.1", x509.IPAddress)])
def test_a_server_without_names_gets_its_own(authority, name, kind):
    _, path = authority.issue(name, CertificateKind.SERVER, Names(), now=NOW)
    found = load_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(value) for value in found.get_values_for_type(kind)] == [name]


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", "-x", "ca", "crl", "x" * 65, "a\x1b", "a\\b"])
def test_bad_names_are_refused(authority, name):
    before = set(authority.directory.iterdir())
    with pytest.raises(KeyFileError, match="name"):
        authority.issue(name, CertificateKind.CLIENT, Names(), now=NOW)
    assert set(authority.directory.iterdir()) == before


@pytest.mark.parametrize(
    "names", [Names(ip=["300.1.1.1"]), Names(dns=["ü.example"]), Names(uri=["a b"]), Names(dns=[""])]
)
def test_bad_alternative_names_are_refused(authority, names):
    with pytest.raises(KeyFileError):
        authority.issue("a", CertificateKind.SERVER, names, now=NOW)
    assert not (authority.directory / "a.key").exists()


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_days_have_limits(authority, tmp_path, days):
    with pytest.raises(KeyFileError, match="days, expected"):
        authority.issue("a", CertificateKind.SERVER, Names(), days=days, now=NOW)
    with pytest.raises(KeyFileError, match="days, expected"):
        create_authority(tmp_path / "other", "x", days=days)


def test_no_certificate_outlives_its_ca(tmp_path):
    authority = create_authority(tmp_path, "Short CA", days=10, now=NOW)
    with pytest.raises(KeyFileError, match=r"11 days go beyond the CA's own end on 2026-03-11, expected at most 10"):
        authority.issue("a", CertificateKind.SERVER, Names(), days=11, now=NOW)
    authority.issue("a", CertificateKind.SERVER, Names(), days=10, now=NOW)


def test_nothing_is_overwritten_unless_forced(authority):
    directory = authority.directory
    authority.issue("a", CertificateKind.SERVER, Names(), now=NOW)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(KeyFileError, match=r"a\.key exists; --force"):
        authority.issue("a", CertificateKind.SERVER, Names(), now=NOW)
    with pytest.raises(KeyFileError, match=r"ca\.key exists; --force"):
        create_authority(directory, "Test CA", now=NOW)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    authority.issue("a", CertificateKind.SERVER, Names(), now=NOW, force=True)
    assert (directory / "a.pem").read_bytes() != before[directory / "a.pem"]


def test_a_forced_new_ca_starts_with_an_empty_list(authority):
    authority.issue("a", CertificateKind.CLIENT, Names(), now=NOW)
    authority.revoke(load_certificate(authority.directory / "a.pem"), now=NOW)
    again = create_authority(authority.directory, "Test CA", now=NOW, force=True)
    assert list(load_revocation_list(again.directory / "crl.pem")) == []


def test_the_revocation_list_grows_and_is_numbered(authority):
    directory = authority.directory
    for name in ("a", "b"):
        authority.issue(name, CertificateKind.CLIENT, Names(), now=NOW)
    first = load_certificate(directory / "a.pem")
    second = load_certificate(directory / "b.pem")
    authority.revoke(first, now=NOW)
    authority.revoke(second, now=NOW + DAY)
    authority.revoke(first, now=NOW + 2 * DAY)
    authority.write_revocation_list(days=5, now=NOW + 3 * DAY)
    crl = load_revocation_list(directory / "crl.pem")
    assert {entry.serial_number: entry.revocation_date_utc for entry in crl} == {
        first.serial_number: NOW,
        second.serial_number: NOW + DAY,
    }
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 5
    assert crl.next_update_utc == NOW + 8 * DAY
    assert crl.is_signature_valid(authority.certificate.public_key())


def test_only_own_certificates_can_be_revoked(authority, tmp_path):
    other = create_authority(tmp_path / "other", "Other CA", now=NOW)
    _, path = other.issue("a", CertificateKind.CLIENT, Names(), now=NOW)
    with pytest.raises(KeyFileError, match="CN=a was not issued by this CA"):
        authority.revoke(load_certificate(path), now=NOW)


def test_a_strange_revocation_list_is_not_signed_anew(authority, tmp_path):
    other = create_authority(tmp_path / "other", "Test CA", now=NOW)
    (authority.directory / "crl.pem").write_bytes((other.directory / "crl.pem").read_bytes())
    with pytest.raises(KeyFileError, match="was not signed by this CA"):
        authority.write_revocation_list(now=NOW)


def test_ctrl_c_at_any_call_is_a_ctrl_c(authority):
    """Also where `cryptography` calls Python and would take the interrupt for a wrong signature."""
    _, path = authority.issue("a", CertificateKind.CLIENT, Names(), now=NOW)
    certificate = load_certificate(path)
    files = set(authority.directory.iterdir())
    number, is_done = 0, False
    while not is_done:
        number += 1
        left = number

        def interrupt(frame, event, _argument):
            nonlocal left
            left -= event == "call" and frame.f_code.co_name != "<genexpr>"  # the end of one raises nothing
            if left == 0:
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            authority.revoke(certificate, now=NOW)
            is_done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert set(authority.directory.iterdir()) == files
        assert load_revocation_list(authority.directory / "crl.pem").is_signature_valid(
            authority.certificate.public_key()
        )
    assert number > 30


def test_a_ca_is_loaded_with_its_own_key_only(authority, tmp_path):
    assert load_authority(authority.directory).certificate == authority.certificate
    other = create_authority(tmp_path / "other", "Other CA", now=NOW)
    (authority.directory / "ca.key").write_bytes((other.directory / "ca.key").read_bytes())
    with pytest.raises(KeyFileError, match=r"ca\.key is not the key of .*ca\.pem"):
        load_authority(authority.directory)


def test_no_ca_is_said_with_what_to_do(tmp_path):
    with pytest.raises(KeyFileError, match="has no CA; dovetail keys ca makes one"):
        load_authority(tmp_path)


def test_the_private_key_shows_in_no_repr(authority):
    assert "private_key=" not in repr(authority)


def test_renewal_issues_what_is_about_to_end_again_with_the_same_names(authority):
    names = Names(dns=["a.example", "b.example"], ip=["127.0.0.1", "::1"], uri=["https://a.example/won"])
    for name, kind, days in (("soon", CertificateKind.PEER, 20), ("later", CertificateKind.SERVER, 200)):
        authority.issue(name, kind, names, days=days, now=NOW)
    authority.issue("agent", CertificateKind.CLIENT, Names(), days=20, now=NOW)
    other = create_authority(authority.directory.parent / "other", "Another CA", now=NOW)
    for path in other.issue("stranger", CertificateKind.CLIENT, Names(), days=20, now=NOW):
        path.rename(authority.directory / path.name)
    old = {path.name: path.read_bytes() for path in authority.directory.iterdir()}
    written = authority.renew(within_days=30, days=365, now=NOW)
    assert [path.name for path in written] == ["agent.key", "agent.pem", "soon.key", "soon.pem"]
    changed = {path.name for path in authority.directory.iterdir() if path.read_bytes() != old[path.name]}
    assert changed == {path.name for path in written}
    before = x509.load_pem_x509_certificate(old["soon.pem"])
    after = load_certificate(authority.directory / "soon.pem")
    assert after.not_valid_after_utc - NOW == 365 * DAY
    assert after.subject == before.subject
    for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage):
        assert set(after.extensions.get_extension_for_class(kind).value) == set(
            before.extensions.get_extension_for_class(kind).value
        )
    assert authority.renew(within_days=30, now=NOW) == []
