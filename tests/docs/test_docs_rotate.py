"""The commands of the page on rotation against a broker under `dovetail up`: it loads what is new, agents get in."""

import re
import shlex
import shutil
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
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=10) as answer:
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
