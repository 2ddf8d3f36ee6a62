"""S3 servers on loopback for tests: moto in this process, versitygw as a process if it is installed."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from dovetail.lake import object_store
from dovetail.lake.object_store import ObjectStore

ACCESS, SECRET, REGION = "AKIATESTTESTTESTTEST", "secret-of-the-tests", "us-east-1"
BUCKET = "lakes"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server with one bucket, and the environment in which our programs find it."""

    host: str
    port: int

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
        }

    def put_unsigned(self, key: str, data: bytes = b"") -> None:
        """Store an object under any name, even one that our own code would refuse; moto needs no signature."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request("PUT", f"/{BUCKET}/{quote(key)}", body=data)
            assert connection.getresponse().status == 200
        finally:
            connection.close()


@contextlib.contextmanager
def use(server: S3Server) -> Iterator[S3Server]:
    """Point the environment of this process to the server; cached clients are dropped."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ.items():
            patch.setenv(name, value)
        patch.setattr(object_store, "_clients", {})
        yield server


@contextlib.contextmanager
def run_moto() -> Iterator[S3Server]:
    """One request at a time: moto checks for an object and stores it in two steps, which can interleave."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def answer(environ, start_response):
        with one_at_a_time:
            return application(environ, start_response)

    running = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        host, port = "127.0.0.1", running.server_port
        server = S3Server(host, port)
        connection = http.client.HTTPConnection(host, port, timeout=60)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()
        yield server
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


@contextlib.contextmanager
def run_moto_apart() -> Iterator[S3Server]:
    """moto in a separate process: for clients that hold the GIL while they wait for an answer."""
    program = (
        "import logging, sys\n"
        "from lake.s3_servers import run_moto\n"
        "logging.getLogger('werkzeug').setLevel(logging.ERROR)\n"
        "with run_moto() as server:\n"
        "    print(server.port, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield S3Server("127.0.0.1", int(process.stdout.readline()))
        finally:
            process.kill()


def find_versitygw() -> str | None:
    """The program, from the PATH or where `go install` puts it."""
    return shutil.which("versitygw") or shutil.which("versitygw", path=str(Path.home() / "go" / "bin"))


@contextlib.contextmanager
def run_versitygw(directory: Path) -> Iterator[S3Server]:
    """A real server whose objects are files below a directory; a bucket is a directory there."""
    program = find_versitygw()
    if program is None:
        pytest.skip("versitygw is not installed: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0")
    for name in ("objects", "sidecar"):
        (directory / name).mkdir(parents=True)
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = [program, "--port", f"127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET, "--region", REGION]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "posix", "--sidecar", str(directory / "sidecar"), str(directory / "objects")],
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(directory)},
        )
    try:
        (directory / "objects" / BUCKET).mkdir()
        while True:
            assert process.poll() is None, (directory / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield S3Server("127.0.0.1", port)
    finally:
        process.terminate()
        process.wait(60)


def fresh_store(name: str) -> ObjectStore:
    """A separate lake in the server's bucket."""
    return ObjectStore(BUCKET, name)
