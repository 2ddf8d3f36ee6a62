"""Hostile clients with a certificate, and an honest one; each is a separate process.

    python -m benchmarks.pcp_hostile_clients flood|rubbish|deaf|honest DIRECTORY PORT SECONDS
    python -m benchmarks.pcp_hostile_clients knock DIRECTORY PORT ADDRESS

`flood` sends valid messages without a recipient as fast as it can, `rubbish` frames that are refused, `deaf` opens 50
connections that never read and sends to all of them. `honest` sends to itself, one message at a time, and prints one
JSON object: how many came back, and the median and longest round trip in seconds. `knock` connects from an address
again and again until it is terminated, and prints how many seconds TLS and the upgrade took, or the time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import statistics
import struct
import sys
import time
import uuid
from pathlib import Path

from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope

UPGRADE = (
    b"GET /pcp HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
DEAF = 50
LIMIT_S = 8.0


def client_context(directory: Path) -> ssl.SSLContext:
    """TLS with the client's certificate."""
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    context.load_cert_chain(directory / "client.pem", directory / "client.key")
    return context


def frame_head(opcode: int, size: int, *, is_final: bool = True) -> bytes:
    """The head of a frame masked with zeros."""
    first = (0x80 if is_final else 0) | opcode
    if size < 126:
        return struct.pack(">BBI", first, 0x80 | size, 0)
    if size < 1 << 16:
        return struct.pack(">BBHI", first, 0xFE, size, 0)
    return struct.pack(">BBQI", first, 0xFF, size, 0)


def message(sender: str, target: str, kind: str = "http://example.com/x", data: bytes = b"{}") -> bytes:
    """A masked frame with a message of version 1 and a lifetime of one minute."""
    expires = time_text(int((time.time() + 60) * 1_000_000))
    payload = encode_frame(Envelope(str(uuid.uuid4()), kind, expires, [target], sender), data)
    return frame_head(2, len(payload)) + payload


def upgrade(context: ssl.SSLContext, port: int, address: str = "", limit_s: float = 60) -> ssl.SSLSocket:
    """A connection from a local address that is a WebSocket."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=limit_s, source_address=(address, 0))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link = context.wrap_socket(raw, server_hostname="localhost")
    link.sendall(UPGRADE)
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = link.recv(1)
        if not piece:
            raise ConnectionResetError
        answer += piece
    return link


def associate(directory: Path, port: int, client_type: str) -> tuple[ssl.SSLSocket, str]:
    """An associated connection and its URI."""
    link = upgrade(client_context(directory), port)
    uri = f"pcp://client/{client_type}"
    link.sendall(message(uri, "pcp:///server", "http://puppetlabs.com/associate_request", b""))
    read_message(link)
    return link, uri


def read_message(link: ssl.SSLSocket) -> bytes:
    """The payload of the next frame."""

    def read(size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = link.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data

    size = read(2)[1]
    if size >= 126:
        size = int.from_bytes(read(2 if size == 126 else 8))
    return read(size)


def send_for(link: ssl.SSLSocket, piece: bytes, seconds: float) -> None:
    """Send as much as possible in this time."""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            link.sendall(piece)


def flood(directory: Path, port: int, seconds: float) -> None:
    link, uri = associate(directory, port, f"flood{os.getpid()}")
    send_for(link, b"".join(message(uri, "pcp://nobody/agent") for _ in range(100)), seconds)


def rubbish(directory: Path, port: int, seconds: float) -> None:
    link, _ = associate(directory, port, f"rubbish{os.getpid()}")
    send_for(link, (frame_head(2, 8) + b"rubbish!") * 100, seconds)


def deaf(directory: Path, port: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    links = [associate(directory, port, f"deaf{number}") for number in range(DEAF)]
    sender, uri = associate(directory, port, "sender")
    data = b'"' + b"x" * 30_000 + b'"'
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            sender.sendall(b"".join(message(uri, target, data=data) for _, target in links))
    time.sleep(600)  # keep the connections open until killed


def honest(directory: Path, port: int, seconds: float) -> None:
    link, uri = associate(directory, port, "honest")
    took: list[float] = []
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            began = time.monotonic()
            link.sendall(message(uri, uri))
            read_message(link)
            took.append(time.monotonic() - began)
            time.sleep(0.05)
    print(json.dumps({"count": len(took), "median": statistics.median(took or [60.0]), "longest": max(took or [60.0])}))


def knock(directory: Path, port: int, address: str) -> None:
    context = client_context(directory)
    while True:
        began = time.monotonic()
        try:
            upgrade(context, port, address, LIMIT_S).close()
            took = time.monotonic() - began
        except OSError:
            took = LIMIT_S
        print(took, flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    kind, directory, port, last = sys.argv[1:]
    kinds = {"flood": flood, "rubbish": rubbish, "deaf": deaf, "honest": honest}
    if kind == "knock":
        knock(Path(directory), int(port), last)
    else:
        kinds[kind](Path(directory), int(port), float(last))
