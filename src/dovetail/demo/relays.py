"""The bad network: a UDP relay that drops datagrams, and a TCP proxy that can cut off a server in one direction."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable

from dovetail.runtime.swarm_udp import MAX_DATAGRAM_BYTES

MAX_BATCH = 64
CHUNK_BYTES = 65_536
_HOST = "127.0.0.1"


class LossyRelay:
    """A relay between all peers of a swarm: each knows the others only by a port (door) of the relay.

    What peer i sends to door k leaves door i towards peer k, so that answers find their way back.
    """

    def __init__(self, loss: float, chance: random.Random) -> None:
        self._loss = loss
        self._chance = chance
        self._doors: list[socket.socket] = []
        self._homes: list[tuple[str, int] | None] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self.passed = 0
        self.dropped = 0

    def add_door(self) -> int:
        """Open a new door; returns its number."""
        door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        door.setblocking(False)
        door.bind((_HOST, 0))
        self._doors.append(door)
        self._homes.append(None)
        number = len(self._doors) - 1
        asyncio.get_running_loop().add_reader(door.fileno(), self._pass, number)
        return number

    def endpoint(self, number: int) -> str:
        """The endpoint to give to other peers."""
        return f"{_HOST}:{self._doors[number].getsockname()[1]}"

    def place(self, number: int, endpoint: str) -> None:
        """Attach the peer bound to this endpoint to this door."""
        home = (_HOST, int(endpoint.rpartition(":")[2]))
        self._homes[number] = home
        self._numbers[home] = number

    def close(self) -> None:
        """Stop relaying."""
        for door in self._doors:
            asyncio.get_running_loop().remove_reader(door.fileno())
            door.close()
        self._doors.clear()

    def _pass(self, receiver: int) -> None:
        door, home = self._doors[receiver], self._homes[receiver]
        for _ in range(MAX_BATCH):
            try:
                data, address = door.recvfrom(MAX_DATAGRAM_BYTES)
            except OSError:
                return
            sender = self._numbers.get(address)
            if sender is None or home is None or self._chance.random() < self._loss:
                self.dropped += 1
                continue
            try:
                self._doors[sender].sendto(data, home)
            except OSError:
                self.dropped += 1
            else:
                self.passed += 1


class Front:
    """A port that stays the same while the server behind it restarts, and that can be cut."""

    def __init__(self) -> None:
        self.port = 0
        self.target: int | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._is_cut = False

    async def start(self) -> None:
        """Listen; there is no server behind it until `target` is set."""
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """From now on nothing comes out: what the server sends is lost, and new connections are refused."""
        self._is_cut = True

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await asyncio.sleep(0)  # the loop closes aborted sockets in its next iteration

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None or self._is_cut:
            writer.transport.abort()
            return
        try:
            inner_reader, inner_writer = await asyncio.open_connection(_HOST, self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, inner_writer}
        self._writers |= both
        pumps = {
            asyncio.create_task(self._pump(reader, inner_writer, lambda: True)),
            asyncio.create_task(self._pump(inner_reader, writer, lambda: not self._is_cut)),
        }
        self._pumps |= pumps
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.close()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= both
            self._pumps -= pumps

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: Callable[[], bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if is_open():
                    writer.write(data)
                    await writer.drain()
