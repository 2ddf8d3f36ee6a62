"""The report of a demo's audit, and a server to view it."""

from __future__ import annotations

import http.server
from pathlib import Path

from dovetail.audit.tables import Tables
from dovetail.demo.layout import Layout
from dovetail.report.page import write_page
from dovetail.report.receipts import Origins
from dovetail.report.survey import take_numbers


def write_report(layout: Layout) -> None:
    """Write the report."""
    tables = Tables.open(layout.tables)
    # the lake was tampered with, the journals were not
    origins = Origins(journals=sorted(layout.journals.glob("*.journal")))
    write_page(tables, take_numbers(tables), layout.report, origins=origins)


def serve_report(path: Path) -> http.server.ThreadingHTTPServer:
    """A server on loopback that serves this one page; the caller runs it and closes it."""
    page = path.read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path in ("/", f"/{path.name}")
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page) if is_known else 0))
            self.end_headers()
            if is_known:
                self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
            """Log nothing."""

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
