"""A proxy in front of an S3 server: counts requests, and drops those it is told to drop."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from lake.s3_servers import S3Server, use

_NOT_PASSED = {"connection", "transfer-encoding", "content-length", "date", "server"}

Judge = Callable[[str, str], str]
"""Method and path -> what happens to a request: `pass`, `lose` its answer, `refuse` (503) or `crash` before it."""


class Proxy(ThreadingHTTPServer):
    """Forwards requests one by one."""

    daemon_threads = True

    def __init__(self, behind: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.judge: Judge = lambda method, path: "pass"
        self.requests: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def server(self) -> S3Server:
        return S3Server("127.0.0.1", self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            kind = "LIST" if self.command == "GET" and "list-type" in self.path else self.command
            self.server.requests[kind] += 1
            fate = self.server.judge(self.command, urlsplit(self.path).path)
        if fate == "refuse":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fate == "crash":
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(self.server.behind.host, self.server.behind.port, timeout=60)
        try:
            # keep the Host header, because it is signed
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _NOT_PASSED - {"content-length", "date"}:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            if fate == "lose":
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _NOT_PASSED:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(data)
        finally:
            connection.close()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def run_proxy(behind: S3Server) -> Iterator[Proxy]:
    """A proxy that our clients use instead of the server."""
    proxy = Proxy(behind)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        with use(proxy.server):
            yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join(60)
