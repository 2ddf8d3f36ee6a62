"""The commands of the rotation page against a broker under `dovetail up`: it loads new files, agents can connect."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from docs.kit import ROOT
from system.up_site import dovetail, free_port, running

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
PAGE = ROOT / "docs" / "how-to" / "rotate-certificates.md"
COMMANDS = re.findall(r"^ {4,}(dovetail keys .+|cat .+)$", PAGE.read_text(), re.MULTILINE)
DAY_S = 86_400


class Site:
    """A broker with keys in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.metrics = free_port(), free_port()
        (directory / "site.toml").write_text(
            f"[[pcp]]\nport = {self.port}\nmetrics_port = {self.metrics}\nrules = [{{ allow = true }}]\n"
            "[supervisor]\nrestart_min_s = 0.1\n"
        )
        self.run("dovetail keys ca Test")
        self.run("dovetail keys issue broker --dns localhost --ip 127.0.0.1 --days 10")
        self.run("dovetail keys issue agent --kind client --days 10")
        self.run("dovetail keys issue pcp://broker/server --kind signing")

    def run(self, command: str) -> None:
        words = shlex.split(command)
        if words[0] == "cat":
            *parts, _, target = (self.directory / word for word in words[1:])
            target.write_bytes(b"".join(part.read_bytes() for part in parts))
            return
        ran = dovetail(*words[1:], cwd=self.directory)
        assert ran.returncode == 0, ran.stderr

    def expiry(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        pattern = rf'^dovetail_certificate_expiry_timestamp_seconds{{name="{name}"}} (\S+)$'
        return float(re.search(pattern, text, re.MULTILINE)[1])

    def send(self, keys: str, authority: str) -> None:
        files = ("--certificate", f"{keys}/agent.pem", "--tls-key", f"{keys}/agent.key", "--authority", authority)
        url = ("--url", f"wss://127.0.0.1:{self.port}/pcp", "--as", "pcp://agent/agent")
        words = ("pcp", "send", "pcp://agent/agent", *url, *files, "--wait", "60s")
        sent = dovetail(*words, cwd=self.directory)
        assert sent.returncode == 0, sent.stderr


@pytest.fixture
def site():
    with tempfile.TemporaryDirectory(prefix="rot") as name:
        yield Site(Path(name))


def test_the_script_renews_and_hands_out_what_is_about_to_end(site):
    """The CA is in one directory, and the broker reads its files in another."""
    authority = site.directory / "authority"
    shutil.copytree(site.directory / "keys", authority)
    (site.directory / "keys" / "ca.key").unlink()
    (site.directory / "keys" / "agent.key").unlink()  # an agent's key does not belong to the broker
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def rotate() -> subprocess.CompletedProcess[str]:
        script = [str(ROOT / "deploy" / "rotate-certificates.sh"), str(authority), str(site.directory / "keys")]
        return subprocess.run(script, env=os.environ | programs, capture_output=True, text=True, timeout=120)

    with running(site.directory, "site.toml") as up:
        up.await_line(" pcp/broker: running: ")
        before = site.expiry("certificate")
        ran = rotate()
        assert ran.returncode == 0, ran.stderr
        while site.expiry("certificate") < before + 300 * DAY_S:
            time.sleep(0.1)
        site.send("authority", "authority/ca.pem")
    held = {path.name for path in (site.directory / "keys").iterdir()}
    assert "ca.key" not in held
    assert "agent.key" not in held
    again = rotate()
    assert "broker" not in again.stdout, "what has long to go is left alone"
    (authority / "ca.key").unlink()
    assert rotate().returncode == 1


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed: apt-get install rsync")
def test_the_script_hands_out_files_with_rsync(site, tmp_path):
    """`ssh` is replaced by a shell on this machine; rsync and its receiver are real."""
    authority, held, other = site.directory / "keys", tmp_path / "held", tmp_path / "a b"
    for folder in (held, other):
        folder.mkdir()
        for name in ("broker.key", "broker.pem", "ca.pem", "ca.key"):
            shutil.copy(authority / name, folder / name)
    (held / "broker.key").chmod(0o640)
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o700)
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RSYNC_RSH": str(shell)}

    def rotate(*destinations: str) -> subprocess.CompletedProcess[str]:
        script = [str(ROOT / "deploy" / "rotate-certificates.sh"), str(authority), *destinations]
        return subprocess.run(script, env=os.environ | programs, capture_output=True, text=True, timeout=120)

    before = (held / "ca.key").read_bytes()
    (authority / "ca.key").write_bytes(before + b"\n")  # it must not be copied even where the name exists
    ran = rotate(f"host:{tmp_path}/missing", str(tmp_path / "absent"), f"host:{held}", f"host:{other}")
    assert ran.returncode == 1, "two destinations do not exist"
    assert ran.stderr.count(" has not received all files") == 2
    for folder in (held, other):
        assert {path.name for path in folder.iterdir()} == {"broker.key", "broker.pem", "ca.pem", "ca.key"}
        for name in ("broker.key", "broker.pem"):
            assert (folder / name).read_bytes() == (authority / name).read_bytes()
            assert f"host:{folder}/{name}\n" in ran.stdout
        assert (folder / "ca.key").read_bytes() == before
    assert (held / "broker.key").stat().st_mode & 0o777 == 0o640
    assert ran.stdout.index(f"{held}/broker.key") < ran.stdout.index(f"{held}/broker.pem")
    again = rotate(f"host:{held}")
    assert (again.returncode, again.stdout.count(f"host:{held}")) == (0, 0), again.stderr
    assert not (tmp_path / "missing").exists()


def test_the_commands_of_the_page_rotate_what_it_says(site):
    server, agent, revoke, crl, new_ca, both, *reissue = COMMANDS
    with running(site.directory, "site.toml") as up:
        up.await_line(" pcp/broker: running: ")
        before = site.expiry("certificate")
        site.run(server)
        while site.expiry("certificate") < before + 300 * DAY_S:
            time.sleep(0.1)
        site.run(agent)
        site.send("keys", "keys/ca.pem")
        site.run(crl)
        for command in (new_ca, both, *reissue):
            site.run(command)
        shutil.copy(site.directory / "both.pem", site.directory / "keys" / "ca.pem")
        site.send("keys", "both.pem")
        site.send("keys2", "both.pem")
        for name in ("broker.pem", "broker.key", "ca.pem", "crl.pem"):
            shutil.copy(site.directory / "keys2" / name, site.directory / "keys" / name)
        site.send("keys2", "keys2/ca.pem")
    assert revoke.startswith("dovetail keys revoke keys/agent.pem")
