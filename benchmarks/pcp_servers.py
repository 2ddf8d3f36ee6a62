"""The brokers that `benchmarks.pcp` compares, each as a process of its own, and the load generator connected to one."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 20
SETUP_SECONDS = 90
SPARE_SECONDS = 10
CHECKPOINT_SECONDS = 5.0  # of a journal: what it hashes and signs then belongs to the messages before
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BenchmarkFailed(Exception):
    """A workload could not be run to its end; says why."""


@dataclass
class Server:
    """A broker under test."""

    name: str
    protocol: str
    port: int
    process: subprocess.Popen[bytes]
    settle_s: float = 0.0

    def cpu_seconds(self, *, of_main_thread: bool = False) -> float:
        """CPU of all threads, or of the first one, in the kernel too. In ours the other threads keep the journal."""
        task = f"task/{self.process.pid}/" if of_main_thread else ""
        fields = Path(f"/proc/{self.process.pid}/{task}stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def settle(self) -> None:
        """Wait for what a broker does after it has delivered: ours writes, hashes and signs its journal."""
        time.sleep(self.settle_s)
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


def _start(name: str, protocol: str, command: list[str], port: int) -> Server:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = Server(name, protocol, port, process)
    deadline = time.monotonic() + START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        if time.monotonic() > deadline or process.poll() is not None:
            server.stop()
            raise BenchmarkFailed(f"{name} does not listen")
        time.sleep(0.05)


def start_dovetail(directory: Path, loop: str, *, keeps_journal: bool = True) -> Server:
    """As an operator would run it: rules, metrics and the journal, whose default is relaxed durability."""
    port = free_port()
    journal = f'journal = "{directory / f"{port}.journal"}"\n' if keeps_journal else ""
    config = directory / "broker.toml"
    config.write_text(
        f'[pcp]\nname = "bench"\nport = {port}\ninsecure_plain = true\nevent_loop = "{loop}"\naccess_log = false\n'
        f"{journal}metrics_port = {free_port()}\n"
        '[[pcp.rules]]\nname = "controllers"\nallow = true\nsender = "pcp://*/controller"\ntarget = "pcp://*/agent"\n'
        '[[pcp.rules]]\nname = "agents"\nallow = true\nsender = "pcp://*/agent"\ntarget = "pcp://*/controller"\n'
        '[[pcp.rules]]\nname = "broker"\nallow = true\ntarget = "pcp:///server"\n'
    )
    command = [sys.executable, "-m", "dovetail", "--log-level", "error", "pcp", "serve", "--config", str(config)]
    server = _start("dovetail", "pcp", command, port)
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


def start_nats(directory: Path) -> Server | None:
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if program is None:
        return None
    port = free_port()
    config = directory / "nats.conf"
    config.write_text(
        f"listen: 127.0.0.1:{free_port()}\nmax_connections: 100000\n"
        f"websocket {{ listen: 127.0.0.1:{port}, no_tls: true }}\n"
    )
    return _start("nats", "nats", [program, "-c", str(config)], port)


def compile_load(directory: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BenchmarkFailed("no gcc here: the load generator benchmarks/pcp_load.c cannot be compiled")
    program = directory / "pcp_load"
    subprocess.run([compiler, "-O2", "-o", program, Path(__file__).parent / "pcp_load.c"], check=True)
    return program


@dataclass
class Run:
    """What came of one run of the load."""

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
