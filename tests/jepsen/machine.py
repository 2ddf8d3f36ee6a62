"""What gets broken: server processes, the network between them, and their disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = str(Path(__file__).parents[2] / "src")
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE}
CHUNK_BYTES = 65_536
READY_S = 60


class Server:
    """One `dovetail ... serve`, which reports in one JSON line that it is ready."""

    def __init__(self, arguments: Sequence[str | Path], log: Path) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self._log = log
        self.process: asyncio.subprocess.Process | None = None
        self.ready: dict[str, object] = {}

    async def start(self) -> None:
        """Run it; retries while its disk is full."""
        async with asyncio.timeout(READY_S):
            while True:
                with self._log.open("ab") as log:
                    self.process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "dovetail", *self.arguments),
                        env=ENVIRONMENT,
                        stdout=subprocess.PIPE,
                        stderr=log,
                    )
                line = await self.process.stdout.readline()
                if line:
                    self.ready = json.loads(line)
                    return
                await self.process.wait()
                await asyncio.sleep(0.5)

    async def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        await self.process.wait()

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP, then SIGCONT after a while."""
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """SIGTERM; a server that does not end is killed."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(30):
                await self.process.wait()
        except TimeoutError:
            await self.kill()


class Relay:
    """A port in front of a server that can be cut: traffic is lost, and then every connection breaks."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, target: int = 0) -> None:
        """Listen on a free port, in front of `target`."""
        self.target = target
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self, seconds: float) -> None:
        """Drop all traffic for a while, silently; then reset the connections."""
        self._is_cut = True
        await asyncio.sleep(seconds)
        for writer in tuple(self._writers):
            writer.transport.abort()
        self._is_cut = False

    async def stop(self) -> None:
        """Close everything."""
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._is_cut:
                raise ConnectionError
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, inner_writer}
        self._writers |= both
        pumps = {
            asyncio.create_task(self._pump(reader, inner_writer)),
            asyncio.create_task(self._pump(inner_reader, writer)),
        }
        self._tasks |= pumps
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for each in both:
            each.transport.abort()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._writers -= both
        self._tasks -= pumps

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if not self._is_cut:
                    writer.write(data)
                    await writer.drain()


class Disk:
    """A small disk for journals that can be filled: a tmpfs, if we may mount one; else it never fills."""

    def __init__(self, path: Path, size_mb: int = 256) -> None:
        self.path = path
        path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path)]
        self.is_small = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0

    async def fill(self, seconds: float) -> None:
        """Leave no byte free for a while."""
        if not self.is_small:
            return
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while stream.write(bytes(size)) == size:
                        pass
        await asyncio.sleep(seconds)
        filler.unlink()

    def release(self) -> None:
        """Unmount."""
        if self.is_small:
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


async def break_things(
    servers: Sequence[Server], relays: Sequence[Relay], disk: Disk, seconds: float, seed: int, *, may_kill: bool = True
) -> str:
    """Inject one fault after another until the time is over; returns how many of each."""
    chance, loop = random.Random(seed), asyncio.get_running_loop()
    counts = dict.fromkeys(("kill", "restart", "freeze", "cut", "full disk"), 0)
    if not may_kill:
        del counts["kill"]
    due: list[str] = []
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(chance.uniform(0.5, 2))
        if not due:
            due = [name for name in counts if name != "cut" or relays]
            chance.shuffle(due)
        kind = due.pop()
        counts[kind] += 1
        if kind in ("kill", "restart"):
            server = chance.choice(servers)
            await (server.kill() if kind == "kill" else server.stop())
            await asyncio.sleep(chance.uniform(0, 1))
            await server.start()
        elif kind == "freeze":
            await chance.choice(servers).freeze(chance.uniform(0.5, 3))
        elif kind == "cut":
            await chance.choice(relays).cut(chance.uniform(0.2, 3))
        else:
            await disk.fill(chance.uniform(0.5, 3))
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) + (
        "" if disk.is_small else " (the disk is not ours to fill)"
    )
