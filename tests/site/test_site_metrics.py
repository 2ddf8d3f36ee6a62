"""The supervisor's metrics of a site: how far sealing and audit are behind, findings, and disk space."""

import math
import time
from collections import Counter
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.reader import JournalReader
from dovetail.journal.writer import JournalWriter
from dovetail.lake.location import open_store
from dovetail.lake.seal import seal_journal
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.site.config import load_config
from dovetail.site.servers import Site
from dovetail.site.site_metrics import STALLED_S, SiteCollector
from dovetail.tlog.keys import Signer, Verifier
from dovetail.tlog.note import cosign
from report.sample_tables import small_world

SERVER = "pcp://broker/server"
SIGNER = Signer(SERVER, Ed25519PrivateKey.from_private_bytes(bytes(32)))
TARGET = 64 << 20


@pytest.fixture
def site(tmp_path: Path) -> Site:
    path = tmp_path / "site.toml"
    path.write_text('[[pcp]]\nname = "broker"\n[audit]\nenabled = true\n')
    return Site.choose(load_config(path, {}).config)


def samples(site: Site) -> dict[tuple[str, ...], float]:
    collector = SiteCollector(site)
    collector.read()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def write_hop(site: Site, at_us: int) -> Path:
    """A journal with one more hop, signed."""
    path = site.journals()[0]
    path.parent.mkdir(exist_ok=True)
    with JournalWriter.open(path, server=SERVER, signer=SIGNER, durability="relaxed") as writer:
        raw = str(at_us).encode()
        writer.commit([Observation(at_us=at_us, stage=Stage.ACCEPTED, message=address_of(raw), raw=raw)])
        writer.checkpoint()
    return path


def test_nothing_is_read_where_nothing_is(site):
    assert not samples(site)


def test_a_hop_that_is_not_sealed_lags_until_it_is(site):
    journal = write_hop(site, 1_000_000)
    assert samples(site)["dovetail_seal_lag_seconds", SERVER] > 1e9
    seal_journal(journal, open_store(site.config.lake.directory), target_bytes=TARGET)
    found = samples(site)
    assert found["dovetail_seal_lag_seconds", SERVER] == 0
    assert found["dovetail_disk_free_bytes", "lake"] > 0


def test_what_cannot_be_read_is_named(site):
    write_hop(site, 1_000_000)
    lake = Path(site.config.lake.directory)
    lake.write_text("a file")
    times = [0.0]
    collector = SiteCollector(site, lambda: times[-1])
    for now in (0.0, 50.0, 70.0):
        times.append(now)
        collector.read()
        unread = {what: found for what, found in collector.unread().items() if what != "the audit"}
        assert unread == {f"sealing of {SERVER}": (now, "Not a directory")}
    lake.unlink()
    collector.read()
    assert collector.unread() == {}


def test_a_reading_that_is_stuck_is_named(site):
    times = [0.0]
    collector = SiteCollector(site, lambda: times[-1])
    collector.read()
    assert collector.unread() == {}
    times.append(STALLED_S + 1)
    assert set(collector.unread()) == {"the site"}


def test_sealed_hops_without_tables_are_named(site):
    journal = write_hop(site, 1_000_000)
    collector = SiteCollector(site)
    collector.read()
    assert collector.unread() == {}, "there is nothing to audit yet"
    seal_journal(journal, open_store(site.config.lake.directory), target_bytes=TARGET)
    collector.read()
    assert set(collector.unread()) == {"the audit"}


WITNESS = Signer("witness.example", Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32))


def witnessed_site(tmp_path: Path, *keys: Verifier) -> tuple[Site, Path]:
    """A site with these witness keys and a folder for cosigned checkpoints, with a journal and that folder."""
    text = '[[pcp]]\nname = "broker"\n[journal]\ncosigned = "cosigned"\n'
    (tmp_path / "site.toml").write_text(text)
    site = Site.choose(load_config(tmp_path / "site.toml", {}).config)
    (tmp_path / "keys").mkdir()
    for number, key in enumerate(keys):
        (tmp_path / "keys" / f"{number}.vkey").write_text(key.text() + "\n")
    folder = tmp_path / "cosigned"
    folder.mkdir()
    return site, folder


def cosigned_note(journal: Path, at_s: int) -> str:
    with JournalReader.open(journal) as reader:
        signed = reader.latest_checkpoint()
    return signed.note + cosign(signed.checkpoint, WITNESS, at_s)


def test_the_age_of_a_cosignature_is_that_of_the_newest_of_a_trusted_witness(tmp_path):
    site, folder = witnessed_site(tmp_path, SIGNER.verifier, WITNESS.verifier)
    journal = write_hop(site, 1_000_000)
    assert samples(site)["dovetail_witness_age_seconds", SERVER] == math.inf
    now_s = int(time.time())
    for name, at_s in (("old", now_s - 90_000), ("new", now_s - 7_000), ("future", now_s + 90_000)):
        (folder / f"{name}.note").write_text(cosigned_note(journal, at_s))
    (folder / "damaged.note").write_text(cosigned_note(journal, now_s)[:-9])
    assert 7_000 <= samples(site)["dovetail_witness_age_seconds", SERVER] < 90_000


@pytest.mark.parametrize("keys", [[], [WITNESS.verifier]], ids=["no keys", "without the server's"])
def test_a_cosignature_that_cannot_be_checked_does_not_count(tmp_path, keys):
    site, folder = witnessed_site(tmp_path, *keys)
    journal = write_hop(site, 1_000_000)
    (folder / "a.note").write_text(cosigned_note(journal, int(time.time())))
    assert samples(site)["dovetail_witness_age_seconds", SERVER] == math.inf


def test_findings_are_counted_and_the_audit_lags_behind_the_lake(site):
    world = small_world()
    world.write(Path(site.config.audit.directory))
    found = samples(site)
    assert found["dovetail_audit_lag_seconds",] == 0
    expected = Counter((row["check"], row["severity"]) for row in world.rows["findings"])
    assert {name[1:]: value for name, value in found.items() if name[0] == "dovetail_findings"} == expected
    journal = write_hop(site, 4_000_000_000_000_000)
    seal_journal(journal, open_store(site.config.lake.directory), target_bytes=TARGET)
    assert samples(site)["dovetail_audit_lag_seconds",] > 1e9


def test_tables_that_cannot_be_read_leave_the_rest(site):
    write_hop(site, 1_000_000)
    small_world().write(Path(site.config.audit.directory))
    for path in (Path(site.config.audit.directory) / "findings").rglob("*.parquet"):
        path.write_bytes(b"not Parquet")
    found = samples(site)
    assert ("dovetail_seal_lag_seconds", SERVER) in found
    assert not any(name[0] == "dovetail_findings" for name in found)
