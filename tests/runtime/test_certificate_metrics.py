"""Expiry of the certificates in use: the first of a chain, and the next update of the revocation list."""

import datetime as dt

from dovetail.keys.authority import CertificateKind, Names, create_authority
from dovetail.runtime.certificate_metrics import CertificateCollector
from dovetail.runtime.tls import RevocationList, ServerTls, first_expiry

DAY_S = 86_400


def expiries(collector):
    (family,) = collector.collect()
    return {sample.labels["name"]: sample.value for sample in family.samples}


def test_the_first_certificate_of_a_chain_counts(tmp_path):
    now = dt.datetime.now(dt.UTC).timestamp()
    authority = create_authority(tmp_path, "CA", days=1000)
    authority.issue("broker", CertificateKind.SERVER, Names(), days=10)
    chain = tmp_path / "chain.pem"
    chain.write_bytes((tmp_path / "ca.pem").read_bytes() + (tmp_path / "broker.pem").read_bytes())
    revocations = RevocationList(str(tmp_path / "crl.pem"), str(tmp_path / "ca.pem"))
    collector = CertificateCollector(
        lambda: {
            "certificate": first_expiry(str(chain)),
            "authority": first_expiry(None),
            "revocations": revocations.next_update_s,
        }
    )
    assert expiries(collector).keys() == {"certificate"}
    revocations.reload()
    found = expiries(collector)
    assert round((found["certificate"] - now) / DAY_S) == 10
    assert round((found["revocations"] - now) / DAY_S) == 30


def test_a_replaced_certificate_tells_its_own_expiry(tmp_path):
    authority = create_authority(tmp_path, "CA", days=1000)
    authority.issue("broker", CertificateKind.SERVER, Names(), days=10)
    authority.issue("renewed", CertificateKind.SERVER, Names(), days=100)
    files = {name: str(tmp_path / name) for name in ("broker.pem", "broker.key", "ca.pem")}
    tls = ServerTls(*files.values(), check_s=0)
    collector = CertificateCollector(tls.expiries)
    before = expiries(collector)
    for suffix in ("pem", "key"):
        (tmp_path / f"renewed.{suffix}").replace(tmp_path / f"broker.{suffix}")
    after = expiries(collector)
    assert round((after["certificate"] - before["certificate"]) / DAY_S) == 90
    assert after["authority"] == before["authority"]
