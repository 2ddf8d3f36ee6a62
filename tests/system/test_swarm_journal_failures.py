"""A peer whose journal fails: it stops with one line and exit code 1; on a full disk it waits and then continues."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dovetail import sync
from dovetail.journal.reader import JournalReader
from dovetail.model.hop import Stage
from dovetail.runtime.swarm_control import CONTROL_FILE
from dovetail.swarm.content import Content, encode_content, message_address
from dovetail.swarm.packet import SwarmSigner, encode_packet
from dovetail.swarm.peer_exchange import YOU_RELAY_TO_ME, Answer, Hello, decode_exchange, encode_hello
from dovetail.swarm.settings import parse_swarm_settings
from system.up_site import free_port, running

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

JOURNAL = "journal.db"


@pytest.fixture
def place(tmp_path):
    """A directory with the settings of a swarm without proof of work."""
    (tmp_path / "swarm.toml").write_text('name = "failing"\nwork = 1\n')
    return tmp_path


class Served:
    """One `dovetail swarm serve`, and its standard error."""

    def __init__(
        self, place: Path, *options: str, limit_bytes: int | None = None, prefix: tuple[str, ...] = ()
    ) -> None:
        self.home = place / "peer"
        command = [*prefix, sys.executable, "-m", "dovetail", "swarm", "serve", "--dir", str(self.home)]
        command += ["--settings", str(place / "swarm.toml"), "--listen", "127.0.0.1:0", *options]

        def limit() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
            preexec_fn=limit,
        )
        self.ready = json.loads(self.process.stdout.readline())
        host, _, port = self.ready["listen"][0].rpartition(":")
        self.endpoint = host, int(port)

    def assert_stopped_with_one_line(self) -> str:
        out, err = self.process.communicate(timeout=20)
        assert out == ""
        assert self.process.returncode == 1
        # apart from the journal's own log lines there is one line, and it is the last
        *logged, line = err.splitlines()
        assert line.startswith("dovetail: ")
        assert JOURNAL in line
        assert [entry for entry in logged if " dovetail.journal " not in entry] == []
        return line

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        err = self.process.communicate(timeout=20)[1]
        assert self.process.returncode == 0
        return err


@contextlib.contextmanager
def serving(*arguments, **options):
    served = Served(*arguments, **options)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.communicate()


class Played:
    """A neighbour that the peer relays to, and a stranger that sends to it."""

    def __init__(self, place: Path, endpoint: tuple[str, int]) -> None:
        self.signer = SwarmSigner(parse_swarm_settings((place / "swarm.toml").read_bytes(), "swarm.toml").key)
        self.neighbour = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for each in (self.neighbour, self.stranger):
            each.connect(endpoint)
        self.neighbour.settimeout(5)
        self.sent: list[bytes] = []
        token = bytes(4)
        for wishes in (0, YOU_RELAY_TO_ME):
            self.neighbour.send(self.packet(encode_hello(Hello(b"tick", b"\x09" * 20, wishes, token))))
            token = self._answer().token
        self.neighbour.setblocking(False)

    def packet(self, message: bytes) -> bytes:
        return encode_packet(message, self.signer, time.time_ns() // 1_000_000, 3)

    def _answer(self) -> Answer:
        while True:
            message = self.neighbour.recv(2048)[8:]
            if message[:2] == b"\x70\x02":
                return decode_exchange(message)

    def send(self, size: int = 1000) -> bytes:
        payload = len(self.sent).to_bytes(4) + os.urandom(size)
        message = encode_content(Content(timestamp_ms=time.time_ns() // 1_000_000, ttl_epochs=60, payload=payload))
        self.sent.append(message)
        # once the peer is gone, the kernel reports it to a connected socket
        with contextlib.suppress(ConnectionRefusedError):
            self.stranger.send(self.packet(message))
        return message

    def relayed(self) -> set[bytes]:
        found = set()
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while True:
                message = self.neighbour.recv(2048)[8:]
                if message[:2] == b"\x79\x10":
                    found.add(message)
        return found

    def close(self) -> None:
        self.neighbour.close()
        self.stranger.close()


def accepted(home: Path) -> set[bytes]:
    with JournalReader.open(home / JOURNAL) as reader:
        return {hop.message for hop in reader.hops() if hop.stage is Stage.ACCEPTED}


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_an_error_of_the_disk_stops_the_peer(place, durability):
    with (
        serving(place, "--durability", durability, limit_bytes=600_000) as served,
        contextlib.closing(Played(place, served.endpoint)) as played,
    ):
        relayed: set[bytes] = set()
        while served.process.poll() is None:  # a peer that goes on without a journal meets the test's time limit
            played.send()
            relayed |= played.relayed()
            time.sleep(0.002)
        assert "disk I/O error" in served.assert_stopped_with_one_line()
        relayed |= played.relayed()
        kept = accepted(served.home)
        assert len(kept) > 5
        if durability == "full":
            assert {message_address(message) for message in relayed} <= kept
    with serving(place) as again:
        assert again.ready["restored"] == len(kept)
        again.stop()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_journal_that_is_removed_or_replaced_stops_the_peer(place, how):
    with serving(place) as served:
        journal = served.home / JOURNAL
        if how == "removed":
            journal.unlink()
        else:
            shutil.copy(journal, served.home / "other")
            (served.home / "other").replace(journal)
        assert "was removed or replaced" in served.assert_stopped_with_one_line()
        assert not (served.home / CONTROL_FILE).exists()


def test_up_starts_a_peer_again_whose_journal_has_failed():
    # a short path: the path of a control socket is limited
    with tempfile.TemporaryDirectory(prefix="up") as name:
        site = Path(name)
        (site / "site.toml").write_text(
            f"""
            [supervisor]
            restart_min_s = 0.1
            [[swarm]]
            name = "test"
            work = 1
            listen = ["127.0.0.1:{free_port(socket.SOCK_DGRAM)}"]
            """
        )
        home = site / "journals" / "swarm_test_peer"
        with running(site, "site.toml") as up:
            up.await_line(" swarm/test/peer: running: ")
            (home / JOURNAL).rename(home / "elsewhere.db")
            up.await_line(" swarm/test/peer: .*journal.db was removed or replaced while it was being written")
            # a journal that is gone is not recreated: its hops may already be signed
            up.await_line(" swarm/test/peer: .*journal.db is missing, but journal.db.mark is there")
            (home / "elsewhere.db").rename(home / JOURNAL)
            up.await_line(" swarm/test/peer: running: ", count=2)
            assert up.stop() == 0


def test_a_journal_that_is_not_one_is_said_at_the_start(place):
    (place / "peer").mkdir()
    (place / "peer" / JOURNAL).write_bytes(b"garbage!" * 4096)
    command = [sys.executable, "-m", "dovetail", "swarm", "serve", "--dir", str(place / "peer")]
    command += ["--settings", str(place / "swarm.toml"), "--listen", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)
    (line,) = found.stderr.splitlines()
    assert found.returncode == 1
    assert line.startswith("dovetail: ")
    assert "not a database" in line


def _small_disk(directory: Path) -> tuple[str, ...]:
    """A command that runs another one with 2 MB of disk in a directory, if the system allows it; else skip."""
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    if unshare is None or mount is None:
        pytest.skip("no unshare here")
    script = f'{mount} -t tmpfs -o size=2m tmpfs {directory} && exec "$@"'
    prefix = (unshare, "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    return prefix


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_on_a_full_disk_the_peer_acknowledges_and_relays_nothing_and_then_goes_on(place, durability):
    (place / "peer").mkdir()
    prefix = _small_disk(place / "peer")
    with (
        serving(place, "--durability", durability, prefix=prefix) as served,
        contextlib.closing(Played(place, served.endpoint)) as played,
    ):
        # the small disk is mounted for that process alone
        home = Path(f"/proc/{served.process.pid}/root{served.home}")
        before = played.send()
        _eventually(lambda: before in played.relayed())
        with contextlib.suppress(OSError), (home / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        # with relaxed durability it is noticed when the next commit is written
        _eventually(lambda: played.send() and not time.sleep(0.3) and not played.relayed())
        publish = [sys.executable, "-m", "dovetail", "swarm", "publish", "--dir", str(home), "--timeout", "0.5", "late"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        late = subprocess.run(publish, capture_output=True, text=True, env=environment, timeout=60)
        assert (late.returncode, late.stdout, late.stderr.count("\n")) == (1, "", 1)
        assert "may still be journaled and sent when there is room: no room left for" in late.stderr
        held = [played.send() for _ in range(30)]
        time.sleep(1)
        assert played.relayed() == set()
        assert served.process.poll() is None
        (home / "filler").unlink()
        relayed: set[bytes] = set()
        _eventually(lambda: relayed.update(played.relayed()) or relayed >= set(held))
        with sync.connect(f"unix:{home}") as peer:
            assert peer.status()["messages"] == len(played.sent) + 1, "and the one that was published late"
        lines = served.stop().splitlines()
        assert [line for line in lines if " dovetail.journal " not in line] == []
        warning, comfort = [line for line in lines if "waiting" in line or "writing again" in line]
        assert "waiting and retrying: no room left" in warning
        assert "writing again" in comfort


def _eventually(is_true, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)
