"""A journal with deliveries, and an OTLP receiver on loopback that can be slow, full, gone or failing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.tlog.keys import Signer
from pcp.pcp_frames import frame_v1

SERVER = "pcp://broker.example/server"
T0 = 1_794_772_740_000_000  # 2026-11-15T19:59:00Z
SECOND = 1_000_000
BOSS, AGENT = "pcp://boss/controller", "pcp://agent7/agent"
REQUEST_ID, REPLY_ID = "6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11", "0b0e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b12"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUEST = frame_v1(
    json.dumps({"traceparent": TRACEPARENT}).encode(),
    id=REQUEST_ID,
    sender=BOSS,
    targets=[AGENT],
    message_type="http://e/ask",
)
REPLY = frame_v1(b"{}", id=REPLY_ID, sender=AGENT, targets=[BOSS], in_reply_to=REQUEST_ID, message_type="http://e/told")
LOST = frame_v1(b"{}", id="dead7a46-1c1c-4b5e-9d1a-2f1f6a3c9b13", sender=BOSS, targets=["pcp://gone/agent"])


def seen(raw: bytes, stage: Stage, *counterparts: str, at_us: int = T0, reason: Reason | None = None) -> Observation:
    """A hop; only the first one has the bytes, as with a server."""
    kept = raw if stage in (Stage.ACCEPTED, Stage.CREATED, Stage.REJECTED) else None
    return Observation(
        at_us=at_us, stage=stage, message=address_of(raw), counterparts=counterparts, reason=reason, raw=kept
    )


EXCHANGE = (
    seen(REQUEST, Stage.ACCEPTED, BOSS),
    seen(REQUEST, Stage.DELIVERED, AGENT, at_us=T0 + 2_000),
    seen(REPLY, Stage.ACCEPTED, AGENT, at_us=T0 + SECOND),
    seen(REPLY, Stage.DELIVERED, BOSS, at_us=T0 + SECOND + 1_000),
    seen(LOST, Stage.ACCEPTED, BOSS, at_us=T0 + 2 * SECOND),
    seen(LOST, Stage.UNDELIVERABLE, "pcp://gone/agent", at_us=T0 + 2 * SECOND, reason=Reason.NO_RECIPIENT),
)


def write(path: Path, *commits: Sequence[Observation]) -> Path:
    """Append to the journal of SERVER."""
    signer = Signer(SERVER, Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with JournalWriter.open(path, server=SERVER, signer=signer, durability="relaxed") as writer:
        for observations in commits:
            writer.commit(list(observations))
    return path


Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"{}")


class Receiver:
    """What arrived, decoded; `answers` are used in turn, the last one for ever."""

    def __init__(self, answers: Sequence[Answer | Callable[[], Answer]]) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.came = threading.Condition()
        self.url = ""

    def answer(self, headers: dict[str, str], body: bytes) -> Answer:
        with self.came:
            chosen = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            answer = chosen() if callable(chosen) else chosen
            self.headers.append(headers)
            if answer[0] == 200:
                self.requests.append(json.loads(body))
                self.bodies.append(body)
            self.came.notify_all()
        return answer

    def await_spans(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.spans) >= count, 60)

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for request in self.requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@contextmanager
def receiving(*answers: Answer | Callable[[], Answer], port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(answers or (OK,))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, data = receiver.answer({"path": self.path, **self.headers}, body)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(record: dict[str, Any]) -> dict[str, str | int]:
    return {
        each["key"]: each["value"].get("stringValue", each["value"].get("intValue")) for each in record["attributes"]
    }
