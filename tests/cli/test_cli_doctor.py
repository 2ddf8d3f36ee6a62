import json
import socket

import pytest

from dovetail.keys import create_authority


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A configuration file in its own directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "site.toml"
    path.write_text("")
    return path


def test_json_has_an_object_per_check(dovetail, site):
    ran = dovetail("doctor", "--config", site, "--json")
    findings = [json.loads(line) for line in ran.out.splitlines()]
    assert {finding["status"] for finding in findings} <= {"ok", "warn", "fail"}
    assert {"python", "java", "spark", "sqlite", "clock", "keys"} <= {finding["check"] for finding in findings}
    assert ran.code == (1 if any(finding["status"] == "fail" for finding in findings) else 0)


def test_a_failure_says_what_to_do_and_exits_with_3(dovetail, site):
    create_authority(site.parent / "keys", "CA")
    (site.parent / "keys" / "ca.key").chmod(0o644)
    ran = dovetail("doctor", "--config", site)
    assert ran.code == 3
    lines = ran.out.splitlines()
    at = lines.index(f"fail  keys: {site.parent}/keys/ca.key has mode 0644")
    assert lines[at + 1].startswith("      -> chmod 600 ")


def test_ports_are_checked_when_asked(dovetail, site):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = dovetail("doctor", "--listen", f"127.0.0.1:{port}", "--listen", f"udp:127.0.0.1:{port}")
    assert ran.code == 3
    assert f"fail  port tcp:127.0.0.1:{port}: is in use\n" in ran.out
    assert f"ok    port udp:127.0.0.1:{port}: is free\n" in ran.out


def test_a_bad_address_is_misuse(dovetail):
    ran = dovetail("doctor", "--listen", "nonsense")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "dovetail: --listen: 'nonsense' is not HOST:PORT\n"


def test_a_bad_configuration_is_an_error(dovetail, site):
    site.write_text("lake = 1")
    assert dovetail("doctor", "--config", site).code == 1
