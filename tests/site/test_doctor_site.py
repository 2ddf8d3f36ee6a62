import datetime
import os
import socket
from pathlib import Path

import msgspec
import pytest

from dovetail.keys import CertificateKind, Names, create_authority
from dovetail.site.config import Config, ListenTcp, ListenUdp, Section, load_config
from dovetail.site.config.servers import SwarmServerSection
from dovetail.site.doctor import Status, check_site
from dovetail.site.doctor.site import (
    GOOD_FREE_BYTES,
    MIN_FREE_BYTES,
    check_directory,
    check_file_system,
    check_keys,
    check_port,
    check_swarms,
    file_system_of,
    judge_room,
    listen_addresses,
)

MOUNTS = (
    "/dev/a / ext4 rw 0 0\nserver:/x /srv nfs4 rw 0 0\n/dev/b /srv/local\\040disk xfs rw 0 0\ntmpfs / tmpfs rw 0 0\n"
)
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def problems(findings) -> list[tuple[Status, str]]:
    return [(finding.status, finding.detail) for finding in findings if finding.status is not Status.OK]


def test_a_fresh_site_is_well(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text("")
    findings = list(check_site(load_config(path, {}).config))
    assert not [finding for finding in findings if finding.status is Status.FAIL]
    assert {finding.check for finding in findings} >= {"journals", "journals disk", "lake", "keys"}
    assert list(tmp_path.iterdir()) == [path], "looking must leave nothing behind"


def test_directories(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "there").mkdir()
    assert check_directory("lake", tmp_path / "there").status is Status.OK
    assert check_directory("lake", tmp_path / "a" / "b").detail.endswith("will be created")
    assert check_directory("lake", tmp_path / "file").status is Status.FAIL


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directories_of_others(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert check_directory("lake", tmp_path / "locked").status is Status.FAIL
    assert check_directory("lake", tmp_path / "locked" / "new").status is Status.FAIL


def test_a_directory_that_refuses_files_fails():
    assert check_directory("lake", Path("/proc/self")).status is Status.FAIL


@pytest.mark.parametrize(
    ("path", "kind"), [("/srv/x", "nfs4"), ("/srv/local disk/x", "xfs"), ("/home", "tmpfs"), ("/srvx", "tmpfs")]
)
def test_the_longest_and_last_mount_counts(path, kind):
    assert file_system_of(Path(path), MOUNTS) == kind
    assert file_system_of(Path(path), "") is None


def test_journals_do_not_live_on_the_network(tmp_path):
    assert check_file_system("journals", tmp_path, f"server:/x {tmp_path} nfs rw 0 0\n").status is Status.FAIL
    assert check_file_system("journals", tmp_path, f"/dev/a {tmp_path} ext4 rw 0 0\n").status is Status.OK
    assert check_file_system("journals", tmp_path).status is not Status.WARN


@pytest.mark.parametrize(
    ("free", "status"),
    [(MIN_FREE_BYTES - 1, Status.FAIL), (MIN_FREE_BYTES, Status.WARN), (GOOD_FREE_BYTES, Status.OK)],
)
def test_room(free, status):
    assert judge_room("room", free, 10 * GOOD_FREE_BYTES).status is status


def test_good_keys_are_one_line(tmp_path):
    authority = create_authority(tmp_path, "CA")
    authority.issue("a", CertificateKind.CLIENT, Names())
    (finding,) = check_keys(tmp_path)
    assert (finding.status, finding.detail) == (Status.OK, f"{tmp_path} has 5 keys, certificates and lists")


def test_certificates_and_lists_that_are_over_or_nearly(tmp_path):
    authority = create_authority(tmp_path, "CA", now=NOW - 100 * DAY)
    authority.write_revocation_list(days=10, now=NOW - 11 * DAY)
    authority.issue("over", CertificateKind.CLIENT, Names(), days=50, now=NOW - 100 * DAY)
    authority.issue("nearly", CertificateKind.CLIENT, Names(), days=110, now=NOW - 100 * DAY)
    found = problems(check_keys(tmp_path))
    assert [status for status, _ in found] == [Status.FAIL, Status.WARN, Status.FAIL]
    for (_, detail), name in zip(found, ["crl.pem", "nearly.pem", "over.pem"], strict=True):
        assert detail.startswith(str(tmp_path / name))


def test_private_keys_that_others_may_read_fail(tmp_path):
    create_authority(tmp_path, "CA")
    (tmp_path / "ca.key").chmod(0o640)
    ((status, detail),) = problems(check_keys(tmp_path))
    assert (status, detail) == (Status.FAIL, f"{tmp_path / 'ca.key'} has mode 0640")


def test_an_epoch_below_a_minute_is_warned_of():
    peers = (SwarmServerSection(name="quick", epoch_ms=5_000), SwarmServerSection(name="calm"))
    (finding,) = check_swarms(peers)
    assert (finding.check, finding.status) == ("swarm/quick/peer", Status.WARN)
    assert "5000 ms" in finding.detail


def test_no_keys_yet_is_well(tmp_path):
    (finding,) = check_keys(tmp_path / "keys")
    assert finding.status is Status.OK


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_port_in_use_fails_and_is_free_again_afterwards(kind):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        if kind == "tcp":
            other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        finding = check_port(kind, address)
        assert (finding.status, finding.detail) == (Status.FAIL, "is in use")
    assert check_port(kind, address).status is Status.OK


def test_an_address_of_another_machine_fails():
    finding = check_port("tcp", "192.0.2.1:0")
    assert finding.detail == "is not an address of this machine"


def test_every_address_of_a_configuration_is_found():
    class Node(Section, frozen=True, kw_only=True):
        listen: ListenTcp = "a:1"
        metrics: ListenTcp | None = None

    class Trial(Config, frozen=True, kw_only=True):
        node: Node = msgspec.field(default_factory=Node)
        nodes: tuple[Node, ...] = (Node(listen="b:2"),)
        named: dict[str, Node] = msgspec.field(default_factory=lambda: {"x": Node(listen="c:3")})
        gossip: ListenUdp = "d:4"

    assert list(listen_addresses(Trial())) == [("tcp", "a:1"), ("tcp", "b:2"), ("tcp", "c:3"), ("udp", "d:4")]


def test_servers_and_what_is_enabled_are_found_in_a_file(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('[[pcp]]\nport = 5\n[[swarm]]\nname = "s"\n[dashboard]\nlisten = "h:6"\n')
    found = [("tcp", "127.0.0.1:5"), ("udp", "127.0.0.1:4711")]
    assert list(listen_addresses(load_config(path, {}).config)) == found
    path.write_text(path.read_text() + "enabled = true\n")
    assert list(listen_addresses(load_config(path, {}).config)) == [*found, ("tcp", "h:6")]
