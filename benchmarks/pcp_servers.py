"""The brokers that `benchmarks.pcp` compares, each a separate process, and the load generator connected to one."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS = 20
SETUP_SECONDS = 90
SPARE_SECONDS = 10
CHECKPOINT_SECONDS = 5.0  # of a journal; what it then hashes and signs is part of the cost of the messages before
SYNC_INTERVAL_VERSION = (2, 10, 0)  # of NATS, the first that can sync after every message
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BenchmarkFailed(Exception):
    """A workload could not be completed; says why."""


class Stream:
    """The JetStream stream of a NATS server, over all subjects, asked through its API on the plain port."""

    def __init__(self, port: int) -> None:
        self._port = port
        answer = self._ask(
            "CREATE", {"name": "bench", "subjects": ["all", "t.*"], "storage": "file", "num_replicas": 1}
        )
        if "config" not in answer:
            raise BenchmarkFailed(f"nats: no stream: {answer}")

    def check(self) -> None:
        """Fail unless the stream stores what is sent."""
        if self._ask("INFO")["state"]["messages"] == 0:
            raise BenchmarkFailed("jetstream: the stream has none of the messages")

    def purge(self) -> None:
        """Delete what is stored, so that the disk need not hold all rounds."""
        self._ask("PURGE")

    def _ask(self, verb: str, body: object = None) -> dict[str, Any]:
        payload = b"" if body is None else json.dumps(body).encode()
        request = b'CONNECT {"verbose":false}\r\nSUB answer 1\r\n'
        request += b"PUB $JS.API.STREAM.%s.bench answer %d\r\n%s\r\n" % (verb.encode(), len(payload), payload)
        with socket.create_connection(("127.0.0.1", self._port), SPARE_SECONDS) as link:
            link.sendall(request)
            received = b""
            while not (found := re.search(rb"MSG answer 1 (\d+)\r\n", received)) or len(received) < found.end() + int(
                found[1]
            ):
                part = link.recv(65_536)
                if not part:
                    raise BenchmarkFailed(f"nats: no answer to {verb}")
                received += part
        answer: dict[str, Any] = json.loads(received[found.end() : found.end() + int(found[1])])
        return answer


@dataclass
class Server:
    """A broker under test."""

    name: str
    protocol: str
    port: int
    process: subprocess.Popen[bytes]
    settle_s: float = 0.0
    stream: Stream | None = None
    _ran_at: float = 0.0

    def cpu_seconds(self, *, of_main_thread: bool = False) -> float:
        """CPU of all threads, or of the first one, in the kernel too. In ours the other threads keep the journal."""
        task = f"task/{self.process.pid}/" if of_main_thread else ""
        fields = Path(f"/proc/{self.process.pid}/{task}stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def ran(self) -> None:
        """Called after a load on this server."""
        self._ran_at = time.monotonic()

    def settle(self) -> None:
        """Wait for what a broker does after it has delivered: ours writes, hashes and signs its journal."""
        time.sleep(max(0.0, self._ran_at + self.settle_s - time.monotonic()))
        deadline = time.monotonic() + 2 * self.settle_s
        while time.monotonic() < deadline:
            before = self.cpu_seconds()
            time.sleep(0.25)
            if self.cpu_seconds() - before < 2 / _TICKS:
                return

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start(name: str, protocol: str, command: list[str], port: int, *more_ports: int) -> Server:
    """A server that listens on all of these ports; the load uses the first."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = Server(name, protocol, port, process)
    deadline = time.monotonic() + START_SECONDS
    while True:
        if all(map(_listens, (port, *more_ports))):
            return server
        if time.monotonic() > deadline or process.poll() is not None:
            server.stop()
            raise BenchmarkFailed(f"{name} does not listen")
        time.sleep(0.05)


def start_dovetail(directory: Path, loop: str, *, keeps_journal: bool = True, durability: str = "relaxed") -> Server:
    """As an operator would run it: rules, metrics and the journal, whose default is relaxed durability.

    The rate limit of a client is raised: without certificates all of the load counts as one client.
    """
    port = free_port()
    journal = f'journal = "{directory / f"{port}.journal"}"\n' if keeps_journal else ""
    config = directory / f"broker-{durability}.toml"
    config.write_text(
        f'[pcp]\nname = "bench"\nport = {port}\ninsecure_plain = true\nevent_loop = "{loop}"\naccess_log = false\n'
        f"client_messages_per_s = 10_000_000\nclient_bytes_per_s = {1 << 34}\n"
        f'{journal}durability = "{durability}"\nmetrics_port = {free_port()}\n'
        '[[pcp.rules]]\nname = "controllers"\nallow = true\nsender = "pcp://*/controller"\ntarget = "pcp://*/agent"\n'
        '[[pcp.rules]]\nname = "agents"\nallow = true\nsender = "pcp://*/agent"\ntarget = "pcp://*/controller"\n'
        '[[pcp.rules]]\nname = "broker"\nallow = true\ntarget = "pcp:///server"\n'
    )
    command = [sys.executable, "-m", "dovetail", "--log-level", "error", "pcp", "serve", "--config", str(config)]
    server = _start("dovetail" if durability == "relaxed" else "dovetail full", "pcp", command, port)
    server.settle_s = CHECKPOINT_SECONDS if keeps_journal else 0.0
    return server


def start_mosquitto(directory: Path) -> Server | None:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        return None
    port = free_port()
    config = directory / "mosquitto.conf"
    config.write_text(
        # some versions do not start without a plain listener
        f"listener {free_port()} 127.0.0.1\nlistener {port} 127.0.0.1\nprotocol websockets\n"
        "allow_anonymous true\nmax_queued_messages 0\nlog_type none\n"
    )
    return _start("mosquitto", "mqtt", [program, "-c", str(config)], port)


def find_nats() -> tuple[str, tuple[int, ...]] | None:
    """The newest installed nats-server and its version: a distribution's may be too old for `sync_interval`."""
    places = (None, "/usr/sbin", str(Path.home() / "go" / "bin"))
    programs = {found for place in places if (found := shutil.which("nats-server", path=place))}
    versions = [(program, _nats_version(program)) for program in sorted(programs)]
    return max(versions, key=lambda each: each[1], default=None)


def _nats_version(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(number) for number in re.findall(r"\d+", said)[:3])


def start_nats(directory: Path, *, jetstream: bool = False, syncs_always: bool = False) -> Server | None:
    """Plain NATS, or with a JetStream file stream over all subjects, optionally synced after every message.

    Subscribers get a message before the stream stores it. If it is synced, senders also wait for the stream's answer.
    """
    nats = find_nats()
    if nats is None or (syncs_always and nats[1] < SYNC_INTERVAL_VERSION):
        return None
    name = "jetstream always" if syncs_always else "jetstream" if jetstream else "nats"
    port, plain_port = free_port(), free_port()
    sync = ", sync_interval: always" if syncs_always else ""
    store = f'jetstream {{ store_dir: "{directory / name.replace(" ", "-")}"{sync} }}\n' if jetstream else ""
    config = directory / f"{name.replace(' ', '-')}.conf"
    config.write_text(
        f"listen: 127.0.0.1:{plain_port}\nmax_connections: 100000\n{store}"
        f"websocket {{ listen: 127.0.0.1:{port}, no_tls: true }}\n"
    )
    protocol = "jetstream" if syncs_always else "nats"
    server = _start(name, protocol, [nats[0], "-c", str(config)], port, plain_port)
    if jetstream:
        server.settle_s = 0.5
        try:
            server.stream = Stream(plain_port)
        except (BenchmarkFailed, OSError) as error:
            server.stop()
            raise BenchmarkFailed(f"{name}: no stream: {error}") from error
    return server


def compile_load(directory: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BenchmarkFailed("no gcc here: the load generator benchmarks/pcp_load.c cannot be compiled")
    program = directory / "pcp_load"
    subprocess.run([compiler, "-O2", "-o", program, Path(__file__).parent / "pcp_load.c"], check=True)
    return program


@dataclass
class Run:
    """The result of one run of the load."""

    deliveries: int
    elapsed_s: float
    lost: int


class Load:
    """A load generator connected to one server; every step has a time limit."""

    def __init__(self, program: Path, server: Server, mode: str, count: int, window: int, size: int) -> None:
        arguments = [server.protocol, "127.0.0.1", str(server.port), mode, str(count), str(window), str(size)]
        self._name = server.name
        self._process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._output = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._output.register(self._process.stdout, selectors.EVENT_READ)
        if self._answer(SETUP_SECONDS) != "ready":
            raise BenchmarkFailed(f"the load generator could not connect to {server.name}")

    def run(self, seconds: float) -> Run:
        assert self._process.stdin is not None
        self._process.stdin.write(f"go {seconds}\n".encode())
        self._process.stdin.flush()
        deliveries, elapsed, lost = self._answer(seconds + SPARE_SECONDS).split()
        return Run(int(deliveries), float(elapsed), int(lost))

    def _answer(self, limit_s: float) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline() if self._output.select(limit_s) else None
        if line:
            return line.decode().strip()
        self._process.kill()
        said = self._process.communicate()[1].decode().strip()
        raise BenchmarkFailed(f"{self._name}: {said or f'no answer in {limit_s:g} s'}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._output.close()
