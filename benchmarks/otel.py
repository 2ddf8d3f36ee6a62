"""What exporting spans costs: a journal of requests and replies, read, made into spans and encoded, but not sent.

    python -m benchmarks.otel [--messages N] [--dir DIR] [--json]

Each message is a pcp frame, accepted and delivered. Times are those of the processor.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scratch import Row, make_parser, print_rows
from dovetail.journal.reader import JournalReader
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.otel.journal_spans import JournalSpans
from dovetail.otel.otlp import encode_span
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.tlog.keys import Signer

SERVER = "pcp://broker.example/server"
BOSS, AGENT = "pcp://boss/controller", "pcp://agent/agent"
GROUP = 100


def write_journal(path: Path, messages: int) -> None:
    with JournalWriter.open(path, server=SERVER, signer=Signer(SERVER, Ed25519PrivateKey.generate())) as writer:
        for first in range(0, messages, GROUP):
            writer.commit([hop for number in range(first, first + GROUP) for hop in deliver(number)])


def deliver(number: int) -> Iterator[Observation]:
    envelope = Envelope(
        id=str(uuid.uuid4()),
        message_type="http://example.com/ask",
        expires="2999-01-01T00:00:00Z",
        targets=[AGENT],
        sender=BOSS,
    )
    raw = encode_frame(envelope, b'{"number": %d}' % number)
    at_us, message = 1_700_000_000_000_000 + 1_000 * number, address_of(raw)
    yield Observation(at_us=at_us, stage=Stage.ACCEPTED, message=message, counterparts=(BOSS,), raw=raw)
    yield Observation(at_us=at_us + 500, stage=Stage.DELIVERED, message=message, counterparts=(AGENT,))


def measure(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    path = directory / "bench.journal"
    write_journal(path, arguments.messages)
    encoded = count = 0
    began = time.process_time()
    with JournalReader.open(path) as reader:
        spans = JournalSpans(reader, settle_s=5.0, position=0)
        is_at_end = False
        while not is_at_end:
            closed, is_at_end = spans.read(0.0)
            closed += spans.finish() if is_at_end else []
            count += len(closed)
            encoded += sum(len(encode_span(span)) for span in closed)
    spent = time.process_time() - began
    yield {"spans": count, "CPU us a span": round(spent / count * 1e6), "bytes a span": round(encoded / count)}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    return print_rows(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
