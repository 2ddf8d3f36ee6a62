import os
import shutil
import socket
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from dovetail.audit.java import Java
from dovetail.journal.high_water import mark_path
from dovetail.journal.writer import JournalWriter
from dovetail.keys import create_signing_key, load_signing_key
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.site.config import load_config
from dovetail.site.doctor.site import MIN_FREE_BYTES
from dovetail.site.preflight import find_problems
from dovetail.site.servers import Site
from dovetail.tlog.keys import Signer

Usage = namedtuple("Usage", "total used free")
SITE = """
[[pcp]]
port = 0
insecure_plain = true
signing_key = "keys/broker.skey"
[[swarm]]
name = "a"
listen = ["127.0.0.1:0"]
"""
AUDIT = '[audit]\nenabled = true\nrole = "a"\n'


@pytest.fixture
def directory():
    """A directory with a short path: the path of a socket is limited."""
    with tempfile.TemporaryDirectory(prefix="up") as name:
        yield Path(name)


@pytest.fixture
def problems(directory):
    """What keeps a site from running, without the path of its directory."""

    def run(text: str = SITE, java: Java | None = None) -> list[str]:
        path = directory / "site.toml"
        path.write_text(text)
        if not (directory / "keys" / "broker.skey").exists():
            create_signing_key(directory / "keys", "pcp://broker/server")[0].rename(directory / "keys" / "broker.skey")
        site = Site.choose(load_config(path, {}).config)
        return [line.replace(f"{directory}/", "") for line in find_problems(site, lambda: (java, []))]

    return run


def test_a_good_site_has_none(problems):
    assert problems() == []


def test_no_java_matters_only_where_the_audit_runs(problems):
    (problem,) = problems(SITE + AUDIT)
    assert problem.startswith("java: no Java 17 or newer found: make setup fetches one; or install Java 17")


def test_every_missing_file_is_named_with_what_makes_it(problems):
    found = problems('[[pcp]]\nport = 0\nrevocations = "r.pem"\n')
    assert [line.partition(": create it")[0].partition(": correct")[0] for line in found] == [
        f"pcp/broker: {name}: No such file or directory"
        for name in ("keys/broker.pem", "keys/broker.key", "r.pem", "keys/ca.pem", "keys/pcp_broker_server.skey")
    ]


def test_a_signing_key_that_is_none_is_told_before_anything_starts(problems, directory):
    assert problems() == []
    (directory / "keys" / "broker.skey").write_text("garbage")
    (problem,) = problems()
    assert problem.startswith(
        "pcp/broker: keys/broker.skey is not an unencrypted private key in PEM: restore its own key"
    )


def test_a_full_disk(problems, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12, MIN_FREE_BYTES - 1))
    (problem,) = problems()
    assert "GiB are free: free some space: a full disk stops the journals and with them the servers" in problem


def test_a_port_in_use(problems):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert problems(SITE.replace("127.0.0.1:0", address)) == [
            f"port udp:{address}: is in use: stop the program that uses it, or choose another port"
        ]


def test_a_directory_that_is_a_file(problems, directory):
    (directory / "lake").touch()
    assert problems() == ["lake: lake is not a directory: move it away, or choose another directory"]


def test_a_key_that_is_a_pipe(problems, directory):
    key = directory / "keys" / "broker.skey"
    key.parent.mkdir()
    os.mkfifo(key)
    assert any(f"{key.name}: is a pipe" in problem for problem in problems())


def test_a_control_socket_with_a_path_that_no_socket_can_have(problems):
    (problem,) = problems(SITE + f'directory = "{"x" * 200}"\n')
    assert "at most 107 are possible: name a shorter `directory`" in problem


def test_a_dashboard_that_others_can_reach_needs_a_token(problems, directory):
    dashboard = SITE + '[dashboard]\nenabled = true\nlisten = "0.0.0.0:0"\n'
    (problem,) = problems(dashboard)
    assert problem.endswith("can be reached from outside: set dashboard.token_file, or listen on 127.0.0.1")
    (problem,) = problems(dashboard + 'token_file = "token"\n')
    assert problem.startswith("dashboard: token: No such file or directory: write a token into it")
    (directory / "token").write_text("0" * 64)
    assert problems(dashboard + 'token_file = "token"\n') == []


def test_a_journal_from_an_old_backup_is_not_started_on(problems, directory):
    assert problems() == []
    journal, copy = directory / "journals" / "pcp_broker_server.journal", directory / "copy.journal"
    key = load_signing_key(directory / "keys" / "broker.skey", "pcp://broker/server")
    signer = Signer(key.name, key.private_key)

    def write(text: bytes) -> None:
        with JournalWriter.open(journal, server=key.name, signer=signer) as writer:
            writer.append([Observation(at_us=0, stage=Stage.ACCEPTED, message=address_of(text), raw=text)])
            writer.checkpoint()

    write(b"one")
    shutil.copy(journal, copy)
    write(b"two")
    assert seal_journal(journal, LocalStore(directory / "lake")) is not None
    assert problems() == []
    shutil.copy(copy, journal)
    (problem,) = problems()
    assert "pcp_broker_server.journal has 1 hops, and its high-water mark" in problem
    assert "knows of 2: its end was cut off or it is an old copy; bring back" in problem
    mark_path(journal).unlink()
    (problem,) = problems()
    assert "comes without its high-water mark" in problem
    journal.unlink()
    (problem,) = problems()
    assert "is missing, but the lake has 2 hops of pcp://broker/server: restore it" in problem


def test_a_journal_put_back_together_with_its_mark_is_known_from_the_lake(problems, directory):
    assert problems() == []
    journal = directory / "journals" / "pcp_broker_server.journal"
    key = load_signing_key(directory / "keys" / "broker.skey", "pcp://broker/server")
    for text in (b"one", b"two"):
        with JournalWriter.open(journal, server=key.name, signer=Signer(key.name, key.private_key)) as writer:
            writer.append([Observation(at_us=0, stage=Stage.ACCEPTED, message=address_of(text), raw=text)])
            writer.checkpoint()
        if text == b"one":
            shutil.copytree(directory / "journals", directory / "backup")
    seal_journal(journal, LocalStore(directory / "lake"))
    shutil.copytree(directory / "backup", directory / "journals", dirs_exist_ok=True)
    (problem,) = problems()
    assert "has 1 hops, and the lake" in problem
