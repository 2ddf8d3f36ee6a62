"""What the kernel alone takes to send one message to many receivers: below this no broker can be at workload b1.

    python -m benchmarks.send_floor [--receivers 1000] [--size 484] [--rounds 500] [--json]

One thread writes the same bytes to each of many TCP connections, one system call each, and waits until another process
has read them all, as the sender of b1 waits for its receivers. Prints the CPU microseconds of one write, with the loop
around it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import sys
import time


def read_all(address: tuple[str, int], receivers: int, size: int, told: socket.socket) -> None:
    """The process that receives: sends one byte whenever every receiver has its message."""
    with selectors.DefaultSelector() as selector:
        for _ in range(receivers):
            selector.register(socket.create_connection(address), selectors.EVENT_READ)
        received = 0
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(65_536)
                if not data:
                    return
                received += len(data)
            if received >= receivers * size:
                received -= receivers * size
                told.send(b"\0")


def measure(receivers: int, size: int, rounds: int) -> float:
    """CPU microseconds of one write."""
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0), backlog=receivers) as listener:
        reading = multiprocessing.get_context("fork").Process(
            target=read_all, args=(listener.getsockname(), receivers, size, theirs)
        )
        reading.start()
        connections = [listener.accept()[0] for _ in range(receivers)]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = bytes(size)
        start = time.process_time()
        for _ in range(rounds):
            for connection in connections:
                connection.send(message)
            ours.recv(1)
        spent = time.process_time() - start
        for connection in connections:
            connection.close()
        reading.join()
    return spent / rounds / receivers * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receivers", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=484)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    row = {
        "receivers": arguments.receivers,
        "bytes": arguments.size,
        "us per write": round(measure(arguments.receivers, arguments.size, arguments.rounds), 2),
    }
    print(json.dumps(row) if arguments.json else ", ".join(f"{key}: {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
