"""`dovetail up` with real servers: killed, stopped, misconfigured; and nothing acknowledged is lost."""

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from dovetail.journal.reader import JournalReader
from dovetail.keys import create_signing_key
from dovetail.model.hop import Stage
from lake.lakes import manifests_of
from lake.s3_servers import BUCKET, run_moto
from system.up_site import ENVIRONMENT, dovetail, free_port, is_alive, json_lines, running, until

pytestmark = pytest.mark.system


class Place(NamedTuple):
    """A directory with `site.toml`, and the ports in it."""

    directory: Path
    broker: int
    peer: int
    metrics: int

    @property
    def peer_directory(self) -> Path:
        return self.directory / "journals" / "swarm_test_peer"

    @property
    def broker_journal(self) -> Path:
        return self.directory / "journals" / "pcp_broker_server.journal"

    def run(self, *arguments: object) -> str:
        ran = dovetail(*arguments, cwd=self.directory)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def send(self, target: str, *, ends: tuple[int, str] = (3, "nobody_there")) -> None:
        """Send a message and await the broker's report, which it sends once it has journaled the message."""
        url = f"ws://127.0.0.1:{self.broker}/pcp"
        sent = dovetail("pcp", "send", target, "--url", url, "--as", "pcp://a/agent", "--json", cwd=self.directory)
        assert (sent.returncode, json.loads(sent.stdout)["outcome"]) == ends, sent.stderr

    def publish(self, text: str) -> str:
        """Publish a message; returns its address."""
        return json.loads(self.run("swarm", "publish", "--dir", self.peer_directory, text, "--json"))["address"]


@pytest.fixture
def directory():
    """A directory with a short path: the path of a peer's control socket is limited."""
    with tempfile.TemporaryDirectory(prefix="up") as name:
        yield Path(name)


@pytest.fixture
def site(directory):
    """A file with a broker and a peer, and the key that the broker needs."""
    broker, peer, metrics = free_port(), free_port(socket.SOCK_DGRAM), free_port()
    (directory / "site.toml").write_text(
        f"""
        [supervisor]
        metrics = "127.0.0.1:{metrics}"
        restart_min_s = 0.1
        [lake]
        seal_interval_s = 1
        [journal]
        checkpoint_interval_s = 0.5
        [[pcp]]
        role = "hub"
        insecure_plain = true
        port = {broker}
        rules = [{{ allow = true }}]
        [[swarm]]
        role = "edge"
        name = "test"
        work = 1
        listen = ["127.0.0.1:{peer}"]
        """
    )
    create_signing_key(directory / "keys", "pcp://broker/server")
    return Place(directory, broker, peer, metrics)


def health(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def hops(journal: Path) -> list[tuple[Stage, bytes | None]]:
    with JournalReader.open(journal) as reader:
        return [(hop.stage, hop.raw) for hop in reader.hops()]


def test_killed_servers_are_back_and_nothing_acknowledged_is_lost(site):
    with running(site.directory, "site.toml") as up:
        for name in ("pcp/broker", "swarm/test/peer", "seal"):
            up.await_line(f" {name}: running: ")
        assert health(site.metrics) == (200, "ok\n")
        addresses = [site.publish(f"before {n}") for n in range(3)]
        site.send("pcp://b/agent")
        for name in ("pcp/broker", "swarm/test/peer"):
            os.kill(up.pid_of(name), signal.SIGKILL)
            up.await_line(f" {name}: waiting: was killed by SIGKILL; starts again in ")
            up.await_line(f" {name}: running: ", count=2)
        assert health(site.metrics) == (200, "ok\n")
        status = json_lines(site.run("swarm", "status", "--dir", site.peer_directory, "--json"))[0]
        assert status["messages"] == 3
        site.send("pcp://c/agent")
        addresses.append(site.publish("after"))
        assert up.stop() == 0
    created = [raw for stage, raw in hops(site.peer_directory / "journal.db") if stage is Stage.CREATED]
    assert [
        raw is not None and text in raw
        for raw, text in zip(created, (b"before 0", b"before 1", b"before 2", b"after"), strict=True)
    ] == [True] * 4
    assert len(set(addresses)) == 4
    assert sum(stage is Stage.ACCEPTED for stage, _ in hops(site.broker_journal)) >= 2
    verified = site.run("journal", "verify", site.broker_journal, site.peer_directory / "journal.db")
    assert verified.count(": intact; ") == 2
    sealed = {manifest.server: manifest.end for manifest in manifests_of(site.directory / "lake")}
    for journal in (site.broker_journal, site.peer_directory / "journal.db"):
        with JournalReader.open(journal) as reader:
            assert sealed[reader.identity.server] == reader.size, "the last sealing has everything"


def test_sighup_makes_the_broker_read_its_rules_again_and_keeps_them_where_the_file_is_bad(site):
    file = site.directory / "site.toml"
    allowing = file.read_text()
    with running(site.directory, "site.toml") as up:
        for name in ("pcp/broker", "swarm/test/peer", "seal"):
            up.await_line(f" {name}: running: ")
        file.write_text(allowing.replace("allow = true", "allow = maybe"))
        up.process.send_signal(signal.SIGHUP)
        up.await_line("rules not loaded, keeping the previous ones")
        site.send("pcp://*/agent", ends=(0, "accepted"))
        file.write_text(allowing.replace("allow = true", "allow = false"))
        up.process.send_signal(signal.SIGHUP)
        up.await_line("rules changed: 1 rules decide now")
        url = f"ws://127.0.0.1:{site.broker}/pcp"
        message = ["pcp://*/agent", "--url", url, "--as", "pcp://a/agent"]
        assert dovetail("pcp", "send", *message, cwd=site.directory).returncode == 4
        assert len(up.find(" pcp/broker: starting")) == 1
        assert health(site.metrics) == (200, "ok\n")


def test_when_the_supervisor_is_killed_nothing_stays_behind(site):
    with running(site.directory, "site.toml", "--role", "edge") as up:
        up.await_line(" swarm/test/peer: running: ")
        up.await_line(" seal: running: ")
        assert not up.find("pcp/broker"), "it has another role"
        pids = [up.pid_of("swarm/test/peer"), up.pid_of("seal")]
        up.process.kill()
        until(lambda: not any(map(is_alive, pids)))


def test_the_example_runs_as_it_is_with_the_keys_that_its_first_lines_make(directory):
    text = dovetail("config", "example", cwd=directory).stdout
    commands = re.findall(r"^#     dovetail (.+)$", text, re.MULTILINE)
    assert len(commands) == 5
    # The ports of the example may be in use on the machine that runs this test; everything else is unchanged.
    broker, node, peer = free_port(), free_port(), free_port(socket.SOCK_DGRAM)
    for old, new in (("port = 8142", f"port = {broker}"), (":8443", f":{node}"), (":4711", f":{peer}")):
        assert old in text
        text = text.replace(old, new)
    (directory / "site.toml").write_text(text)
    for command in commands:
        made = dovetail(*command.replace(":8443", f":{node}").split(), cwd=directory)
        assert made.returncode == 0, made.stderr
    uri = f"https://localhost:{node}/won/resource"
    with running(directory, "site.toml") as up:
        for name in ("pcp/broker", f"won/localhost:{node}", "swarm/example/peer", "seal"):
            up.await_line(f" {name}: running: ")

        def ask(name: str, kind: str) -> subprocess.CompletedProcess[str]:
            client = [
                "--certificate",
                f"keys/{name}.pem",
                "--tls-key",
                f"keys/{name}.key",
                "--authority",
                "keys/ca.pem",
            ]
            url = ["--url", f"wss://localhost:{broker}/pcp", "--as", f"pcp://{name}/{kind}"]
            return dovetail("pcp", "inventory", "pcp://*/*", *url, *client, "--json", cwd=directory)

        for name in ("agent-1", "controller-1"):
            made = dovetail("keys", "issue", name, "--kind", "client", cwd=directory)
            assert made.returncode == 0, made.stderr
        there = ask("controller-1", "controller")
        assert json_lines(there.stdout) == [{"uri": "pcp://controller-1/controller"}], there.stderr
        refused = ask("agent-1", "controller")
        assert "may not claim the client type 'controller'" in refused.stderr
        atom = dovetail("won", "create", "--node", uri, "--authority", "keys/ca.pem", "--home", "owner", cwd=directory)
        assert atom.returncode == 0, atom.stderr
        assert up.stop() == 0
    verified = dovetail("journal", "verify", *(directory / "journals").rglob("*.journal"), cwd=directory)
    assert verified.stdout.count(": intact; ") == 2, verified.stdout
    servers = {manifest.server for manifest in manifests_of(directory / "lake")}
    assert servers == {"pcp://broker/server", uri}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["site.toml", "--rloe", "hub"], 2, "no such option: --rloe"),
        (["site.toml", "--role", "hbu"], 2, "there are: edge, hub"),
        (["none.toml"], 1, "none.toml cannot be read: No such file or directory"),
        (["site.toml", "--only", "pcp/nobody"], 2, "no such process; there are: pcp/broker, swarm/test/peer, seal"),
    ],
)
def test_misuse_is_one_line(site, arguments, code, text):
    ran = dovetail("up", *arguments, cwd=site.directory)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (code, 1), ran.stderr
    assert text in ran.stderr


def assert_refused(site: Place, text: str) -> None:
    """`up` starts nothing and says why in one line."""
    ran = dovetail("up", "site.toml", cwd=site.directory)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1), ran.stderr
    assert text in ran.stderr
    assert not (site.directory / "journals").exists()


def test_a_mistyped_key_is_one_line(site):
    path = site.directory / "site.toml"
    path.write_text(path.read_text().replace("insecure_plain", "insecure_plian"))
    assert_refused(site, "pcp[0].insecure_plian = true: no such key; did you mean pcp[0].insecure_plain?")


def test_a_missing_key_is_one_line_with_the_command_that_makes_it(site):
    (site.directory / "keys" / "pcp_broker_server.skey").unlink()
    assert_refused(site, "No such file or directory: create it with `dovetail keys issue pcp://broker/server ")


def test_a_port_in_use_is_one_line(site):
    with socket.create_server(("127.0.0.1", site.broker)):
        assert_refused(site, f"tcp:127.0.0.1:{site.broker}: is in use: stop the program that uses it")


def take_port(taker: socket.socket, port: int) -> bool:
    """Listen on a port; False while another process has it."""
    try:
        taker.bind(("127.0.0.1", port))
    except OSError:
        return False
    taker.listen()
    return True


def test_a_port_taken_later_is_given_up_in_one_line_and_the_rest_runs_on(site):
    path = site.directory / "site.toml"
    # long enough for the other program to be first
    path.write_text(path.read_text().replace("restart_min_s = 0.1", "restart_min_s = 3\nrestart_max_s = 3"))
    with running(site.directory, "site.toml") as up:
        up.await_line(" pcp/broker: running: ")
        up.await_line(" swarm/test/peer: running: ")
        broker = up.pid_of("pcp/broker")
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            os.kill(broker, signal.SIGKILL)
            until(lambda: take_port(squatter, site.broker))
            line = up.await_line(" pcp/broker: given up: ")
            assert f"tcp port {site.broker} of 127.0.0.1 is in use: stop the program that uses it" in line.string
        assert health(site.metrics)[0] == 503
        assert "pcp/broker: given up: " in health(site.metrics)[1]
        site.run("swarm", "publish", "--dir", site.peer_directory, "still here")
        assert up.stop() == 1


def back_up(journal: Path, copy: Path) -> None:
    """What sqlite3's `.backup` does, as on the operations page."""
    with contextlib.closing(sqlite3.connect(journal)) as one, contextlib.closing(sqlite3.connect(copy)) as other:
        one.backup(other)


def test_sealing_and_page_are_back_when_killed_and_all_stop_in_stages(site):
    port = free_port()
    path = site.directory / "site.toml"
    path.write_text(path.read_text() + f'\n[dashboard]\nenabled = true\nlisten = "127.0.0.1:{port}"\n')
    with running(site.directory, "site.toml") as up:
        up.await_line(" all 4 processes run; ")
        for number, name in enumerate(("seal", "dashboard"), start=2):
            os.kill(up.pid_of(name), signal.SIGKILL)
            up.await_line(f" {name}: running: ", count=2)
            up.await_line(" all 4 processes run; ", count=number)
        address = site.publish("after the kill")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/message/{address}", timeout=30) as answer:
            assert b"swarm://test/" in answer.read()
        back_up(site.peer_directory / "journal.db", site.directory / "backup.journal")
        assert ": intact; " in site.run("journal", "verify", "backup.journal")
        assert up.stop() == 0
        stopped = [match[1] for match in up.find(r" (\S+): stopped$")]
    assert stopped[0] == "dashboard", "who only looks stops first"
    assert set(stopped[1:3]) == {"pcp/broker", "swarm/test/peer"}
    assert stopped[3:] == ["seal"], "the sealing sees everything that the servers wrote"
    sealed = manifests_of(site.directory / "lake")
    with JournalReader.open(site.peer_directory / "journal.db") as reader:
        assert max(each.end for each in sealed if each.server == reader.identity.server) == reader.size


@pytest.mark.timeout(400)
@pytest.mark.soak
def test_the_audit_follows_is_back_when_killed_and_stops_with_the_site(site):
    path = site.directory / "site.toml"
    path.write_text(path.read_text() + "\n[audit]\nenabled = true\ninterval_s = 1\n")
    with running(site.directory, "site.toml") as up:
        up.await_line(" swarm/test/peer: running: ")
        address = site.publish("hello")
        up.await_line(" audit: running: ")
        until(lambda: dovetail("audit", "why", address, "--tables", "audit", cwd=site.directory).returncode == 0, 300)
        os.kill(up.pid_of("audit"), signal.SIGKILL)
        up.await_line(" audit: waiting: was killed by SIGKILL")
        up.await_line(" audit: running: ", count=2)
        again = site.publish("hello again")
        until(lambda: dovetail("audit", "why", again, "--tables", "audit", cwd=site.directory).returncode == 0, 300)
        pid = up.pid_of("audit")
        assert up.stop() == 0, up.lines
        assert not is_alive(pid)
        assert not up.find("Traceback"), up.lines


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_lake_and_tables_are_in_an_object_store(site, monkeypatch):
    port = free_port()
    path = site.directory / "site.toml"
    places = f'[lake]\ndirectory = "s3://{BUCKET}/site"\n'
    path.write_text(
        path.read_text().replace("[lake]\n", places)
        + f'\n[audit]\nenabled = true\ninterval_s = 1\ndirectory = "s3://{BUCKET}/tables"\n'
        + f'\n[dashboard]\nenabled = true\nlisten = "127.0.0.1:{port}"\n'
    )

    def page(name: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=60) as answer:
            return answer.read().decode()

    with run_moto() as server:
        for name, value in server.environ.items():
            monkeypatch.setitem(ENVIRONMENT, name, value)
        with running(site.directory, "site.toml") as up:
            up.await_line(" all 5 processes run; ", timeout_s=120)
            address = site.publish("hello")
            asked = ("audit", "why", address, "--tables", f"s3://{BUCKET}/tables")
            until(lambda: dovetail(*asked, cwd=site.directory).returncode == 0, 400)
            assert "swarm://test/" in page(f"message/{address}")
            assert "swarm://test/" in page("audit")
            assert health(site.metrics)[0] == 200, health(site.metrics)
            with urllib.request.urlopen(f"http://127.0.0.1:{site.metrics}/metrics", timeout=60) as answer:
                assert "dovetail_audit_lag_seconds " in answer.read().decode()
            built = ("receipt", "build", address, "--lake", f"s3://{BUCKET}/site", "-o", "hello.receipt")
            site.run(*built)
            assert up.stop(120) == 0, up.lines
            assert not up.find("Traceback"), up.lines
    assert not (site.directory / "lake").exists()
    assert not (site.directory / "audit").exists()
    assert not [found for found in site.directory.iterdir() if found.name.startswith("s3")]


def test_the_dashboard_shows_the_site(site):
    port = free_port()
    path = site.directory / "site.toml"
    path.write_text(path.read_text() + f'\n[dashboard]\nenabled = true\nlisten = "127.0.0.1:{port}"\n')
    with running(site.directory, "site.toml", "--role", "edge") as up:
        up.await_line(" swarm/test/peer: running: ")
        assert not up.find("dashboard"), "a section without a role runs only where no role is asked for"
        assert up.stop() == 0
    with running(site.directory, "site.toml") as up:
        up.await_line(" swarm/test/peer: running: ")
        up.await_line(f" dashboard: running: page dashboard on http://127.0.0.1:{port}/")
        address = site.publish("seen on the page")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/message/{address}", timeout=30) as answer:
            assert "swarm://test/" in answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            assert answer.read() == b"ok\n"
        assert up.stop() == 0
