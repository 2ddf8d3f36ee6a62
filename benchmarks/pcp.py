"""What a delivered message costs the broker, beside mosquitto and NATS over WebSocket in the same interleaved rounds.

    python -m benchmarks.pcp [--rounds N] [--seconds S] [--loop asyncio|uvloop] [--connections N] [--json]

Server CPU microseconds per delivered message of about 480 bytes. Ours runs as an operator would: authorisation by
rules, metrics and the journal on (relaxed durability, its default). The load comes from benchmarks/pcp_load.c, which
needs gcc; peers take part where they are installed. Workloads: a1, 100 pairs with one message under way each; a32, 20
pairs with 32; b1, one sender to 1,000 receivers by a wildcard, one message under way; b4, four.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MESSAGE_BYTES = 480
WORKLOADS = {"a1": ("pairs", 100, 1), "a32": ("pairs", 20, 32), "b1": ("fan", 1000, 1), "b4": ("fan", 1000, 4)}
REACH = {
    "a1": {"mosquitto": 1.8, "nats": 1.1},
    "a32": {"mosquitto": 1.3, "nats": 3.0},
    "b1": {"mosquitto": 0.8, "nats": 0.8},
    "b4": {"mosquitto": 0.5, "nats": 0.8},
}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """A broker under test, as a process of its own."""

    name: str
    protocol: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

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


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing listens on port {port}")
        time.sleep(0.05)


def start(name: str, protocol: str, command: list[str], port: int) -> Server:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(port)
    return Server(name, protocol, port, process)


def start_dovetail(directory: Path, loop: str) -> Server:
    port = free_port()
    config = directory / "broker.toml"
    config.write_text(
        f'[pcp]\nname = "bench"\nport = {port}\ninsecure_plain = true\nevent_loop = "{loop}"\naccess_log = false\n'
        f'journal = "{directory / "bench.journal"}"\nmetrics_port = {free_port()}\n'
        '[[pcp.rules]]\nname = "controllers"\nallow = true\nsender = "pcp://*/controller"\ntarget = "pcp://*/agent"\n'
        '[[pcp.rules]]\nname = "agents"\nallow = true\nsender = "pcp://*/agent"\ntarget = "pcp://*/controller"\n'
        '[[pcp.rules]]\nname = "broker"\nallow = true\ntarget = "pcp:///server"\n'
    )
    command = [sys.executable, "-m", "dovetail", "--log-level", "error", "pcp", "serve", "--config", str(config)]
    return start("dovetail", "pcp", command, port)


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
    return start("mosquitto", "mqtt", [program, "-c", str(config)], port)


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
    return start("nats", "nats", [program, "-c", str(config)], port)


class Load:
    """A load generator connected to one server."""

    def __init__(self, program: Path, server: Server, mode: str, count: int, window: int) -> None:
        self._process = subprocess.Popen(
            [
                program,
                server.protocol,
                "127.0.0.1",
                str(server.port),
                mode,
                str(count),
                str(window),
                str(MESSAGE_BYTES),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit(f"the load generator could not connect to {server.name}")

    def run(self, seconds: float) -> tuple[int, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"go {seconds}\n")
        self._process.stdin.flush()
        deliveries, elapsed = self._process.stdout.readline().split()
        return int(deliveries), float(elapsed)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(program: Path, server: Server, workload: str, seconds: float) -> tuple[float, float]:
    """CPU microseconds per delivery, and deliveries a second."""
    load = Load(program, server, *WORKLOADS[workload])
    try:
        load.run(seconds / 4)
        before = server.cpu_seconds()
        deliveries, elapsed = load.run(seconds)
        return (server.cpu_seconds() - before) / deliveries * 1e6, deliveries / elapsed
    finally:
        load.close()
        time.sleep(0.3)


def compile_load(directory: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("no gcc here: the load generator benchmarks/pcp_load.c cannot be compiled")
    program = directory / "pcp_load"
    subprocess.run([compiler, "-O2", "-o", program, HERE / "pcp_load.c"], check=True)
    return program


def compare(program: Path, servers: list[Server], rounds: int, seconds: float, *, as_json: bool) -> None:
    for workload in WORKLOADS:
        costs: dict[str, list[float]] = {server.name: [] for server in servers}
        rates: dict[str, list[float]] = {server.name: [] for server in servers}
        for _ in range(rounds):
            for server in servers:
                cost, rate = measure(program, server, workload, seconds)
                costs[server.name].append(cost)
                rates[server.name].append(rate)
        row: dict[str, object] = {"workload": workload}
        ours = statistics.median(costs["dovetail"])
        for name, values in costs.items():
            row[f"{name} us"] = round(statistics.median(values), 2)
            row[f"{name} messages/s"] = round(statistics.median(rates[name]))
            if name != "dovetail":
                row[f"of {name}"] = round(ours / statistics.median(values), 2)
                row[f"reach {name}"] = REACH[workload][name]
        print(json.dumps(row) if as_json else ", ".join(f"{key}: {value}" for key, value in row.items()), flush=True)


def compare_memory(program: Path, servers: list[Server], count: int, *, as_json: bool) -> None:
    for server in servers:
        before = server.resident_bytes()
        load = Load(program, server, "hold", count, 1)
        time.sleep(1)
        used = server.resident_bytes() - before
        load.close()
        row = {
            "workload": f"{count} connections",
            "server": server.name,
            "KB a connection": round(used / count / 1024, 1),
        }
        print(json.dumps(row) if as_json else ", ".join(f"{key}: {value}" for key, value in row.items()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--loop", default="uvloop", choices=["asyncio", "uvloop"])
    parser.add_argument("--connections", type=int, default=10_000, help="held for the memory measurement")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-pcp-"))
    servers: list[Server] = []
    try:
        program = compile_load(directory)
        servers.append(start_dovetail(directory, arguments.loop))
        servers.extend(s for s in (start_mosquitto(directory), start_nats(directory)) if s is not None)
        absent = {"mosquitto", "nats"} - {server.name for server in servers}
        if absent:
            print(f"not installed, so not compared: {', '.join(sorted(absent))}", file=sys.stderr)
        compare(program, servers, arguments.rounds, arguments.seconds, as_json=arguments.json)
        compare_memory(program, servers, arguments.connections, as_json=arguments.json)
    except KeyboardInterrupt:
        return 130
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
