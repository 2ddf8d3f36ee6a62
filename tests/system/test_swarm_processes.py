"""Ten peer processes on loopback: a fifth of the datagrams dropped, two peers killed and restarted, all equal."""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dovetail import sync
from dovetail.journal.reader import JournalReader
from dovetail.model.hop import Stage

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

PEERS = 10
LOSS = 0.2
SETTINGS = 'name = "system"\nwork = 1000\nmax_ttl_epochs = 100\n'


class LossyRelay:
    """Between all peers: each knows the others only by a socket of the relay, which drops some of the traffic."""

    def __init__(self, loss: float, seed: int) -> None:
        self._loss = loss
        self._chance = random.Random(seed)
        self._doors: list[socket.socket] = []
        self._homes: dict[tuple[str, int], int] = {}
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        self.passed = self.dropped = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def add_door(self) -> str:
        door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        door.bind(("127.0.0.1", 0))
        door.setblocking(False)
        self._selector.register(door, selectors.EVENT_READ, len(self._doors))
        self._doors.append(door)
        return f"127.0.0.1:{door.getsockname()[1]}"

    def place(self, number: int, endpoint: str) -> None:
        self._homes[("127.0.0.1", int(endpoint.rpartition(":")[2]))] = number

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(60)
        for door in self._doors:
            door.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.1):
                self._pass(self._doors[key.data], key.data)

    def _pass(self, door: socket.socket, receiver: int) -> None:
        for _ in range(100):
            try:
                data, sender = door.recvfrom(2048)
            except OSError:
                return
            source = self._homes.get(sender)
            home = next((home for home, number in self._homes.items() if number == receiver), None)
            if source is None or home is None or self._chance.random() < self._loss:
                self.dropped += 1
                continue
            self.passed += 1
            try:
                self._doors[source].sendto(data, home)
            except OSError:
                self.dropped += 1


class PeerProcess:
    """One `dovetail swarm serve`."""

    def __init__(self, directory: Path, settings: Path, bootstrap: list[str]) -> None:
        self.directory = directory
        self._settings = settings
        self._bootstrap = bootstrap
        self.endpoint = "127.0.0.1:0"
        self.restored = 0
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        code = "from dovetail.cli.swarm import app; app()"
        command = [sys.executable, "-c", code, "serve", "--settings", str(self._settings), "--dir", str(self.directory)]
        command += ["--listen", self.endpoint, "--threads", "1"]
        for endpoint in self._bootstrap:
            command += ["--peer", endpoint]
        source = str(Path(__file__).parents[2] / "src")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": source}
        )
        ready = json.loads(self.process.stdout.readline())
        self.endpoint, self.restored = ready["listen"][0], ready["restored"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        return self.process.wait(20)

    def publish(self, text: str) -> str:
        with sync.connect(f"unix:{self.directory}") as peer:
            return peer.publish(text, ttl_epochs=50).address

    def status(self) -> dict:
        with sync.connect(f"unix:{self.directory}") as peer:
            return peer.status()

    def held(self) -> set[str]:
        with JournalReader.open(self.directory / "journal.db") as reader:
            return {hop.message.hex() for hop in reader.hops() if hop.stage in (Stage.ACCEPTED, Stage.CREATED)}


def wait_until(is_true, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.2)


def test_ten_processes_lose_a_fifth_and_two_peers_and_are_equal_at_the_end(tmp_path):
    settings = tmp_path / "swarm.toml"
    settings.write_text(SETTINGS)
    relay = LossyRelay(LOSS, seed=4)
    doors = [relay.add_door() for _ in range(PEERS)]
    relay.start()
    peers = [
        PeerProcess(tmp_path / f"peer{number}", settings, doors[max(0, number - 2) : number]) for number in range(PEERS)
    ]
    try:
        for number, peer in enumerate(peers):
            peer.start()
            relay.place(number, peer.endpoint)
        wait_until(lambda: all(peer.status()["forward"] and peer.status()["backward"] for peer in peers), 90)
        published = [peers[number % PEERS].publish(f"first {number}") for number in range(20)]
        for number in (3, 7):
            peers[number].kill()
        alive = [peer for number, peer in enumerate(peers) if number not in (3, 7)]
        published += [alive[number % 8].publish(f"second {number}") for number in range(16)]
        for number in (3, 7):
            peers[number].start()
            assert peers[number].restored > 0
        published += [peers[number % PEERS].publish(f"third {number}") for number in range(10)]
        wait_until(lambda: all(peer.status()["messages"] == len(published) for peer in peers), 120)
        assert relay.dropped > 0.1 * relay.passed
        assert [peer.stop() for peer in peers] == [0] * PEERS
        assert all(peer.held() == set(published) for peer in peers)
    finally:
        for peer in peers:
            if peer.process is not None and peer.process.poll() is None:
                peer.kill()
        relay.stop()
