"""What floods make a swarm peer take and send, and what an honest peer notices of them.

    python -m benchmarks.swarm_hostile [--seconds S] [--only NAME] [--json]

Attacks on a real `dovetail swarm serve` that holds 2,000 messages, each on a fresh process, as fast as one sender can.
Those from strangers come from 1,000 addresses that never answer, as spoofed ones do not: rubbish, hellos, questions for
everything, and packets of which only one fragment comes. Those from a partner come from an address that has proven
itself: the same questions, messages whose references nobody has, and lists without end of hashes that do not exist.
Memory is the peer's resident set: before, the most during the attack, and 5 seconds after it. `cpu` is the share of a
core. `in` and `out` are bytes that the peer read and sent; `out/in` is the amplification. An honest peer pulls one
message again and again: `honest s` is the median until it has it, `lost` the share that did not come within 2 seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.scratch import Row, make_parser, print_rows
from dovetail import sync
from dovetail.swarm.content import HASH_BYTES, Content, MsgHash, Reference, encode_content, message_address
from dovetail.swarm.fragments import encode_fragments
from dovetail.swarm.packet import SwarmSigner, decode_packet, encode_packet
from dovetail.swarm.peer_exchange import (
    I_RELAY_TO_YOU,
    YOU_RELAY_TO_ME,
    Answer,
    Hello,
    PeerAddress,
    decode_exchange,
    encode_answer,
    encode_hello,
)
from dovetail.swarm.peer_exchange import INDICATOR as EXCHANGE
from dovetail.swarm.pow import HashlibSearch, solve
from dovetail.swarm.queries import (
    MAX_HASHES_SENT,
    PullRange,
    decode_message,
    encode_pull_hashes,
    encode_pull_range,
    encode_range_list,
)
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.settings import SwarmSettings

MIB = 1 << 20
BOTH = I_RELAY_TO_YOU | YOU_RELAY_TO_ME
STRANGERS = 1_000
HELD = 2_000
AFTER_S = 5.0
LIMIT_S = 2.0
SETTINGS = SwarmSettings(name="hostile", work=2, max_ttl_epochs=1440)
_SIGNER = SwarmSigner(SETTINGS.key, SETTINGS.slot_slack)
_RUN = "from dovetail.cli.swarm import app; app()"
_random = random.Random(1)

Attack = Callable[["Victim"], Iterator[tuple[socket.socket, bytes]]]


class Victim:
    """The attacked peer, a running process."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        settings = directory / "swarm.toml"
        settings.write_text(f'name = "{SETTINGS.name}"\nwork = {SETTINGS.work}\nmax_ttl_epochs = 1440\n')
        command = [sys.executable, "-c", _RUN, "serve", "--settings", str(settings), "--dir", str(directory / "peer")]
        self._log = (directory / "log").open("w")
        self._process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--threads", "1"],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=dict(os.environ),
        )
        assert self._process.stdout is not None
        host, _, port = json.loads(self._process.stdout.readline())["listen"][0].rpartition(":")
        self.endpoint = (host, int(port))

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def status(self) -> dict[str, object]:
        """The peer's own status report."""
        with sync.connect(f"unix:{self._directory / 'peer'}") as peer:
            status: dict[str, object] = peer.status()
            return status

    @property
    def resident_mib(self) -> float:
        """Resident memory of the process."""
        text = Path(f"/proc/{self._process.pid}/statm").read_text()
        return int(text.split()[1]) * resource.getpagesize() / MIB

    @property
    def cpu_s(self) -> float:
        """CPU seconds that the process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_socket(address: str, timeout_s: float | None = None) -> socket.socket:
    """A socket bound to a local address; non-blocking without a time limit."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((address, 0))
    opened.settimeout(timeout_s or 0)
    return opened


def pack(message: bytes) -> bytes:
    """A packet of this swarm, signed for the current time."""
    return encode_packet(message, _SIGNER, int(time.time() * 1000), 0)


def make_content(number: int, references: tuple[Reference, ...] = ()) -> bytes:
    """A message with valid work."""
    content = Content(
        timestamp_ms=int(time.time() * 1000), ttl_epochs=60, references=references, payload=f"{number:0200}".encode()
    )
    solved = solve(encode_content(content), SETTINGS.rules.pow_target, number << 20, HashlibSearch(), run=64)
    assert solved is not None
    return solved


class Partner:
    """A peer that has proven its address."""

    def __init__(self, victim: Victim, address: str, flags: int = 0) -> None:
        self.socket = open_socket(address, LIMIT_S)
        self.victim = victim
        self.identity = PeerAddress(_random.randbytes(20))
        token = bytes(4)
        for _ in range(2):
            self.send(encode_hello(Hello(b"tick", self.identity, flags, token)))
            token = self._await_answer()

    def send(self, message: bytes) -> None:
        """Send a message to the victim."""
        self.socket.sendto(pack(message), self.victim.endpoint)

    def receive(self) -> bytes:
        """The next message; TimeoutError if none arrives."""
        while True:
            data = self.socket.recv(65_536)
            with contextlib.suppress(Refusal):
                return decode_packet(data, _SIGNER, int(time.time() * 1000))

    def _await_answer(self) -> bytes:
        while True:
            message = self.receive()
            with contextlib.suppress(Refusal):
                if isinstance(answer := decode_exchange(message), Answer):
                    return answer.token

    def drain(self) -> list[bytes]:
        """The messages that have arrived; does not wait."""
        self.socket.settimeout(0)
        found = []
        with contextlib.suppress(OSError):
            while True:
                found.append(self.receive())
        return found


def fill(victim: Victim) -> None:
    """Give the victim `HELD` messages."""
    partner = Partner(victim, "127.0.0.9")
    for number in range(HELD):
        partner.send(make_content(number))
        if number % 50 == 49:
            time.sleep(0.02)
            partner.drain()
    partner.socket.close()


class Honest(threading.Thread):
    """Publishes a message and pulls it again and again."""

    def __init__(self, victim: Victim) -> None:
        super().__init__(daemon=True)
        self._partner = Partner(victim, "127.0.0.2")
        self._message = make_content(HELD)
        self._is_over = threading.Event()
        self.waits: list[float] = []
        self._partner.send(self._message)

    def run(self) -> None:
        """Pull until stopped."""
        msg_hash = MsgHash(message_address(self._message)[:HASH_BYTES])
        while not self._is_over.is_set():
            began = time.monotonic()
            self._partner.send(encode_pull_hashes([msg_hash]))
            with contextlib.suppress(TimeoutError):
                self._partner.socket.settimeout(LIMIT_S)
                while self._partner.receive() != self._message:
                    if time.monotonic() - began > LIMIT_S:
                        break
            self.waits.append(min(LIMIT_S, time.monotonic() - began))
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop, and wait until the thread has ended."""
        self._is_over.set()
        self.join()


def strangers() -> list[socket.socket]:
    """Sockets bound to many addresses; they never read."""
    return [open_socket(f"127.1.{number // 250}.{number % 250 + 1}") for number in range(STRANGERS)]


def send_rubbish(_: Victim) -> Iterator[tuple[socket.socket, bytes]]:
    for stranger in itertools.cycle(strangers()):
        yield stranger, _random.randbytes(200)


def send_hellos(_: Victim) -> Iterator[tuple[socket.socket, bytes]]:
    for stranger in itertools.cycle(strangers()):
        yield stranger, pack(encode_hello(Hello(_random.randbytes(4), PeerAddress(_random.randbytes(20)), 3)))


def ask_for_everything(_: Victim) -> Iterator[tuple[socket.socket, bytes]]:
    for stranger in itertools.cycle(strangers()):
        yield stranger, pack(encode_pull_range(_random.randbytes(4), 0, int(time.time() * 1000)))


def send_fragments(_: Victim) -> Iterator[tuple[socket.socket, bytes]]:
    for stranger in itertools.cycle(strangers()):
        yield stranger, encode_fragments(pack(_random.randbytes(8_000)))[0]


def ask_as_partner(victim: Victim) -> Iterator[tuple[socket.socket, bytes]]:
    partner = Partner(victim, "127.0.0.3")
    partner.socket.settimeout(0)
    while True:
        yield partner.socket, pack(encode_pull_range(_random.randbytes(4), 0, int(time.time() * 1000)))


def refer_to_nothing(victim: Victim) -> Iterator[tuple[socket.socket, bytes]]:
    partner = Partner(victim, "127.0.0.3")
    partner.socket.settimeout(0)
    for number in itertools.count(HELD + 1):
        references = tuple(Reference(MsgHash(_random.randbytes(8)), 0) for _ in range(4))
        yield partner.socket, pack(make_content(number, references))


def list_nothing(victim: Victim) -> Iterator[tuple[socket.socket, bytes]]:
    """As a neighbour, answer every range pull with hashes that do not exist."""
    partner = Partner(victim, "127.0.0.3", BOTH)
    while True:
        for message in partner.drain():
            with contextlib.suppress(Refusal):
                if message[0] == EXCHANGE:
                    hello = decode_exchange(message)
                    if isinstance(hello, Hello):
                        partner.send(encode_answer(Answer(hello.ticket, b"toke", partner.identity, BOTH, ())))
                    continue
                query = decode_message(message)
                if isinstance(query, PullRange):
                    hashes = [MsgHash(_random.randbytes(8)) for _ in range(MAX_HASHES_SENT)]
                    answer = encode_range_list(query.ticket, query.start_ms, query.start_ms + 1, hashes)
                    yield partner.socket, pack(answer)
        time.sleep(0.001)
        yield partner.socket, b"?"


ATTACKS: dict[str, Attack] = {
    "strangers: rubbish": send_rubbish,
    "strangers: hellos": send_hellos,
    "strangers: questions": ask_for_everything,
    "strangers: fragments": send_fragments,
    "partner: questions": ask_as_partner,
    "partner: references": refer_to_nothing,
    "partner: lists": list_nothing,
}


def measure(victim: Victim, attack: Attack, seconds: float) -> dict[str, object]:
    """Run one attack and return its figures."""
    fill(victim)
    honest = Honest(victim)
    honest.start()
    before, peak = victim.resident_mib, 0.0
    earlier, cpu_s, began = victim.status(), victim.cpu_s, time.monotonic()
    for number, (sender, data) in enumerate(attack(victim)):
        with contextlib.suppress(OSError):
            sender.sendto(data, victim.endpoint)
        if number % 200 == 0:
            peak = max(peak, victim.resident_mib)
            if time.monotonic() - began > seconds:
                break
    cpu_s, took = victim.cpu_s - cpu_s, time.monotonic() - began
    later = victim.status()
    honest.stop()
    time.sleep(AFTER_S)
    received = _number(later, "received_bytes") - _number(earlier, "received_bytes")
    sent = _sent(later) - _sent(earlier)
    return {
        "before MiB": round(before, 1),
        "peak MiB": round(max(peak, victim.resident_mib), 1),
        "after MiB": round(victim.resident_mib, 1),
        "cpu": round(cpu_s / took, 2),
        "in": received,
        "out": sent,
        "out/in": round(sent / max(1, received), 2),
        "honest s": round(statistics.median(honest.waits), 4),
        "lost": round(sum(wait >= LIMIT_S for wait in honest.waits) / len(honest.waits), 2),
    }


def _number(status: dict[str, object], name: str) -> int:
    value = status[name]
    assert isinstance(value, int)
    return value


def _sent(status: dict[str, object]) -> int:
    by_purpose = status["sent_bytes"]
    assert isinstance(by_purpose, dict)
    return sum(by_purpose.values())


def measure_all(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    for number, (name, attack) in enumerate(ATTACKS.items()):
        if arguments.only not in name:
            continue
        victim = Victim(directory / str(number))
        try:
            yield {"attack": name, **measure(victim, attack, arguments.seconds)}
        finally:
            victim.close()


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each attack lasts")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    return print_rows(parser, measure_all)


if __name__ == "__main__":
    sys.exit(main())
