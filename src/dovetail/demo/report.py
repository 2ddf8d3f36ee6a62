"""The report of a demo's audit, where this installation has reports, and a page to look at it."""

from __future__ import annotations

import http.server
import importlib.util
from pathlib import Path

from dovetail.demo.layout import Layout


def write_report(layout: Layout) -> bool:
    """Write the report; False where this installation has none to write."""
    if importlib.util.find_spec("dovetail.report") is None:
        return False
    from importlib import import_module

    tables = import_module("dovetail.report.tables").Tables.open(layout.tables)
    numbers = import_module("dovetail.report.survey").take_numbers(tables)
    # the lake was tampered with, the journals were not
    origins = import_module("dovetail.report.receipts").Origins(journals=sorted(layout.journals.glob("*.journal")))
    import_module("dovetail.report.page").write_page(tables, numbers, layout.report, origins=origins)
    return True


def serve_report(path: Path) -> http.server.ThreadingHTTPServer:
    """A server on loopback that has this one page; the caller runs it and closes it."""
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
            """Say nothing."""

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
