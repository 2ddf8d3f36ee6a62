"""What a site takes: memory of its processes, memory of connected agents, and bytes of journal and lake for hops.

    python -m benchmarks.sizing [--agents N] [--hops N] [--dir DIR] [--json]

Memory is the resident set of each process of `dovetail up` with one broker, node and peer, idle; then that of the
broker with N agents connected over TLS with client certificates and associated, less what it had before, divided by
their number. Disk is measured on messages of 480 random bytes, which no compression helps: `one to one` is each
accepted and delivered once, `one to 1,000` each accepted and delivered to a thousand; the journal after its last
checkpoint, and the lake after sealing. Sealing is timed on the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scratch import Row, make_parser, print_rows
from dovetail.journal.writer import JournalWriter
from dovetail.keys import create_signing_key
from dovetail.keys.authority import CertificateKind, Names, create_authority
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.runtime.pcp_client import PcpClient
from dovetail.runtime.tls import client_context
from dovetail.tlog.keys import Signer

MESSAGE_BYTES = 480
MIB = 1 << 20
SERVER = "pcp://broker/server"
AGENT = "pcp://agent/agent"
RECIPIENTS = tuple(f"pcp://host{number:05d}.example.com/agent" for number in range(1000))
_AT_ONCE = 20


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextlib.contextmanager
def running_site(directory: Path) -> Iterator[tuple[dict[str, int], int]]:
    """`dovetail up` with one server of each fabric; the processes by name, and the broker's port."""
    broker, node = free_port(), free_port()
    uri = f"https://localhost:{node}/won/resource"
    (directory / "site.toml").write_text(
        f"""
        [[pcp]]
        port = {broker}
        access_log = false
        rules = [{{ allow = true }}]
        [[won]]
        uri = "{uri}"
        listen = "127.0.0.1:{node}"
        [[swarm]]
        name = "fleet"
        listen = ["127.0.0.1:{free_port(socket.SOCK_DGRAM)}"]
        """
    )
    keys = directory / "keys"
    authority = create_authority(keys, "Benchmark")
    authority.issue("broker", CertificateKind.SERVER, Names(dns=["localhost"], ip=["127.0.0.1"]))
    authority.issue("localhost", CertificateKind.PEER, Names())
    authority.issue("agent", CertificateKind.CLIENT, Names())
    create_signing_key(keys, SERVER)
    create_signing_key(keys, uri)
    log = directory / "up.log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "dovetail", "up", str(directory / "site.toml")]
        process = subprocess.Popen(command, stderr=file, start_new_session=True)
    try:
        while "processes run;" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        started = re.findall(r" (\S+): starting: process (\d+)$", log.read_text(), re.MULTILINE)
        yield {"up": process.pid, **{name: int(pid) for name, pid in started}}, broker
    finally:
        process.terminate()
        process.wait()


async def connect_agents(port: int, keys: Path, count: int, pid: int) -> float:
    """Memory of the broker per agent; the first is not counted, since it also loads what all connections share."""
    context = client_context(str(keys / "agent.pem"), str(keys / "agent.key"), str(keys / "ca.pem"))
    async with contextlib.AsyncExitStack() as stack:

        async def connect(number: int) -> PcpClient:
            uri = f"pcp://agent/agent-{number}"
            agent = PcpClient(f"wss://127.0.0.1:{port}/pcp", uri, context=context)
            await stack.enter_async_context(agent)
            await agent.wait_associated()
            return agent

        first = await connect(0)
        before = resident_bytes(pid)
        for start in range(1, count + 1, _AT_ONCE):
            await asyncio.gather(*(connect(number) for number in range(start, min(start + _AT_ONCE, count + 1))))
        inventory = await first.inventory("pcp://*/*")
        assert len(inventory) > count, f"{len(inventory)} of {count + 1} agents are connected"
        return (resident_bytes(pid) - before) / count


def deliver(fan_out: int) -> list[Observation]:
    """One message: accepted, and delivered to `fan_out` recipients."""
    raw = os.urandom(MESSAGE_BYTES)
    at_us, message = time.time_ns() // 1000, address_of(raw)
    return [
        Observation(at_us=at_us, stage=Stage.ACCEPTED, message=message, counterparts=(AGENT,), raw=raw),
        Observation(at_us=at_us, stage=Stage.DELIVERED, message=message, counterparts=RECIPIENTS[:fan_out]),
    ]


def measure_disk(name: str, fan_out: int, hops: int, directory: Path) -> Row:
    path, lake = directory / f"{fan_out}.journal", directory / f"{fan_out}.lake"
    group = max(1, 200 // (1 + fan_out))
    with JournalWriter.open(path, server=SERVER, signer=Signer(SERVER, Ed25519PrivateKey.generate())) as writer:
        while writer.size < hops:
            writer.commit([each for _ in range(group) for each in deliver(fan_out)])
        writer.index()
        writer.checkpoint()
        written = writer.size
    journal_bytes = sum(file.stat().st_size for file in directory.glob(f"{path.name}*"))
    began = time.process_time()
    seal_journal(path, LocalStore(lake), target_bytes=128 * MIB)
    spent = time.process_time() - began
    lake_bytes = sum(file.stat().st_size for file in lake.rglob("*") if file.is_file())
    return {
        "hops": f"{written} {name}",
        "journal, MB a million": round(journal_bytes / written),
        "lake, MB a million": round(lake_bytes / written),
        "sealing, thousand hops a CPU second": round(written / spent / 1000),
    }


def measure(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    with running_site(directory) as (pids, port):
        for name, pid in pids.items():
            yield {"process": name.partition("/")[0], "idle, MB": round(resident_bytes(pid) / 1e6)}
        each = asyncio.run(connect_agents(port, directory / "keys", arguments.agents, pids["pcp/broker"]))
        yield {"agents": arguments.agents, "MB a thousand": round(each / 1000, 1)}
    yield measure_disk("one to one", 1, arguments.hops, directory)
    yield measure_disk("one to 1,000", 1000, arguments.hops, directory)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--agents", type=int, default=2_000, help="connected at once")
    parser.add_argument("--hops", type=int, default=1_000_000, help="written for each shape")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for the broker too, which inherits it
    return print_rows(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
