"""A journal's numbers: commits timed, hops counted, and when everything was last signed."""

import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from dovetail.journal.journal import Journal
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.runtime.journal_metrics import JournalCollector, disk_free
from dovetail.tlog.keys import Signer

SERVER = "pcp://broker/server"


def test_commits_hops_and_checkpoints_are_told(tmp_path):
    signer = Signer(SERVER, Ed25519PrivateKey.generate())
    with Journal.open(tmp_path / "journal", server=SERVER, signer=signer) as journal:
        registry = CollectorRegistry()
        registry.register(JournalCollector(journal))
        age_s = registry.get_sample_value("dovetail_checkpoint_age_seconds")
        journal.append([Observation(at_us=1, stage=Stage.ACCEPTED, message=address_of(b"m"), raw=b"m")])
        before_s = registry.get_sample_value("dovetail_checkpoint_age_seconds")
        assert 0 <= age_s < before_s
        began = time.monotonic()
        journal.checkpoint()
        assert 0 <= registry.get_sample_value("dovetail_checkpoint_age_seconds") <= time.monotonic() - began
        assert registry.get_sample_value("dovetail_journal_hops_total") == 1
        assert registry.get_sample_value("dovetail_journal_bytes") > 0
        assert registry.get_sample_value("dovetail_journal_queue_bytes") == 0
        assert registry.get_sample_value("dovetail_journal_commit_seconds_count") == 1
        assert registry.get_sample_value("dovetail_journal_wait_seconds_count") == 1
        assert registry.get_sample_value("dovetail_disk_free_bytes", {"kind": "journal"}) > 0


def test_a_directory_that_is_not_there_has_no_room_to_tell_of(tmp_path):
    assert disk_free({"lake": str(tmp_path / "gone")}).samples == []
