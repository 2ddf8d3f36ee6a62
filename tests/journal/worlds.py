"""Journals for tests: keys, observations and a model that is too simple to be wrong."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.hop import Hop, Observation, Reason, Stage
from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.tlog.keys import Signer

SERVER = "pcp://broker.example/server"
SIGNER = Signer(SERVER, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
START_US = 1_700_000_000_000_000


def open_writer(path: Path, **options) -> JournalWriter:
    return JournalWriter.open(path, server=SERVER, signer=SIGNER, **options)


def expiring(text: bytes, expires_us: int) -> bytes:
    """The bytes of a message to nobody, with this text and an expiry."""
    number = str(uuid.UUID(bytes=address_of(text)[:16], version=4))
    return encode_frame(Envelope(number, "http://example/work", time_text(expires_us), [], SERVER), text)


def observe(
    text: bytes, stage: Stage = Stage.ACCEPTED, *counterparts: str, at_us: int = START_US, **more
) -> Observation:
    """An observation of the message with bytes `text`, or with an expiry if one is given."""
    if more.get("expires_us") is not None:
        text = expiring(text, more["expires_us"])
    more.setdefault("raw", text)
    return Observation(at_us=at_us, stage=stage, message=address_of(text), counterparts=counterparts, **more)


def random_observations(rng: random.Random, at_us: int, count: int) -> list[Observation]:
    """Everything a fabric may report: repeats, fan-outs, refusals, truncated evidence, messages without bytes."""
    made = []
    for _ in range(count):
        at_us += rng.choice([0, 0, 1, 1000, 2_000_000, -5000])
        number = rng.randrange(40)
        text = b"message %d" % number * rng.choice([1, 1, 30])
        ends_us = (None, START_US + 1_000_000, START_US + 10**12)[number % 3]
        text = text if ends_us is None else expiring(text, ends_us)
        names = tuple(f"pcp://host{rng.randrange(30)}/agent" for _ in range(rng.choice([0, 1, 1, 2, 17])))
        stage = rng.choice([s for s in Stage if s is not Stage.PURGED])
        reason = rng.choice(list(Reason)) if stage is Stage.REJECTED else None
        raw, size = rng.choice([(text, None), (text, None), (None, None), (text[:5], len(text)), (None, len(text))])
        made.append(
            Observation(
                at_us=at_us,
                stage=stage,
                message=address_of(text),
                counterparts=names,
                reason=reason,
                raw=raw,
                size=size,
                expires_us=ends_us if raw == text and stage in (Stage.ACCEPTED, Stage.CREATED) else None,
            )
        )
    return made


class Model:
    """What a journal must contain, kept in a list."""

    def __init__(self) -> None:
        self.hops: list[Hop] = []
        self._with_body: set[bytes] = set()

    def append(self, observations: list[Observation]) -> None:
        for o in observations:
            last = self.hops[-1].at_us if self.hops else o.at_us
            for name in o.counterparts or (None,):
                has_body = (o.raw is not None or o.size is not None) and o.message not in self._with_body
                if has_body:
                    self._with_body.add(o.message)
                size = o.size if o.size is not None else len(o.raw or b"")
                self.hops.append(
                    Hop(
                        server=SERVER,
                        seq=len(self.hops),
                        at_us=max(last, o.at_us),
                        fabric="pcp",
                        stage=o.stage,
                        message=o.message,
                        counterpart=name,
                        reason=o.reason,
                        raw=o.raw if has_body else None,
                        size=size if has_body else None,
                    )
                )

    def raw(self, address: bytes) -> bytes | None:
        return next((hop.raw for hop in self.hops if hop.message == address and hop.raw is not None), None)
