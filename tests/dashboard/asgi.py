"""Sends requests to an ASGI application without a socket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(app, address: str, *, method: str = "GET", host: str = "127.0.0.1:8600", **headers: str) -> Reply:
    """One request; `user_agent="x"` is a header."""
    parts = urlsplit(address)
    given = {"host": host, "accept": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8600),
    }
    sent: list[dict] = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    async def run():
        await asyncio.wait_for(app(scope, receive, send), 30)

    asyncio.run(run())
    start = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Reply(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body)
