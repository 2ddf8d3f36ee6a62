"""Commands with a lake in an object store: the same as for a directory."""

from __future__ import annotations

import json

import pytest

import dovetail as dovetail_api
from dovetail.journal.writer import JournalWriter
from dovetail.keys import create_signing_key, load_signing_key
from dovetail.lake.location import open_store
from dovetail.lake.snapshot import snapshot
from dovetail.model.hop import Observation, Stage
from dovetail.site.config import load_config
from dovetail.site.doctor.site import check_object_store
from dovetail.site.preflight import find_problems
from dovetail.site.servers import Site
from dovetail.tlog.keys import Signer
from journal.worlds import START_US, observe
from lake.s3_servers import BUCKET, run_moto, use

SERVER = "pcp://broker.example/server"
LAKE = f"s3://{BUCKET}/site"


def hop(number: int) -> Observation:
    at_us = START_US + number * 1_000_000
    return observe(b"m%d" % number, Stage.ACCEPTED, f"pcp://a{number}/agent", at_us=at_us, expires_us=at_us + 5)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A journal with ten hops, the key of its server, and an object store."""
    create_signing_key(tmp_path / "keys", SERVER)
    key = load_signing_key(tmp_path / "keys" / "pcp_broker.example_server.skey")
    path = tmp_path / "journals" / "broker.journal"
    with JournalWriter.open(path, server=SERVER, signer=Signer(SERVER, key.private_key)) as journal:
        for number in range(10):
            journal.append([hop(number)])
        journal.checkpoint()
    monkeypatch.chdir(tmp_path)
    with run_moto() as server, use(server):
        yield tmp_path


def test_sealed_purged_and_proven_from_there(site, dovetail):
    sealed = dovetail("journal", "seal", "journals", "--lake", LAKE, "--json")
    assert sealed.code == 0, sealed.err
    assert json.loads(sealed.out)["hops"] == 10
    assert snapshot(open_store(LAKE), SERVER).check().hops == 10
    assert json.loads(dovetail("journal", "seal", "journals", "--lake", LAKE, "--json").out)["hops"] == 0
    key = site / "keys" / "pcp_broker.example_server.skey"
    purged = dovetail("journal", "purge", "journals/broker.journal", "--signing-key", key, "--lake", LAKE, "--json")
    assert json.loads(purged.out)["purged"] == 10
    address = hop(3).message.hex()
    built = dovetail("receipt", "build", address, "--lake", LAKE, "-o", "receipt.json")
    assert built.code == 0, built.err
    trust = site / "keys" / "pcp_broker.example_server.vkey"
    verified = dovetail("receipt", "verify", "receipt.json", "--trust", trust)
    assert verified.code == 0, verified.err
    assert not (site / "s3:").exists()
    assert not (site / "lake").exists()


def test_the_python_api_takes_the_same_place(site):
    lake = dovetail_api.open_lake(f"s3://{BUCKET}/python")  # the servers of one process share their objects
    (manifest,) = lake.seal("journals")
    assert (manifest.end, lake.seal("journals")) == (10, [])
    assert lake.hops().arrow().num_rows == 10
    assert [row["message"] for row in lake.hops().rows({"message": hop(3).message})] == [hop(3).message.hex()]
    assert not (site / "s3:").exists()


def test_a_store_that_is_not_there_is_one_line(site, dovetail, monkeypatch):
    monkeypatch.setattr("dovetail.lake.object_store._MAX_RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("dovetail.lake.object_store._clients", {})
    refused = dovetail("journal", "seal", "journals", "--lake", LAKE)
    assert refused.code != 0
    assert refused.err.count("\n") == 1
    assert LAKE in refused.err
    assert check_object_store(LAKE).status.name == "FAIL"


def test_a_place_that_cannot_be_is_misuse(site, dovetail):
    refused = dovetail("journal", "seal", "journals", "--lake", "s3://no bucket/x")
    assert refused.code != 0
    assert "is not the place of a lake" in refused.err


def test_a_configuration_may_name_it(site):
    (site / "dovetail.toml").write_text(f'[lake]\ndirectory = "{LAKE}"\n')
    loaded = load_config(site / "dovetail.toml", {})
    assert loaded.config.lake.directory == LAKE
    assert check_object_store(LAKE).status.name == "OK"
    assert list(find_problems(Site(loaded.config))) == []
