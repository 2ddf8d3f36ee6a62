"""A pcp request with replies, and other traffic of the same and other participants, as one broker's journal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dovetail.model.address import Address, address_of
from dovetail.model.hop import Observation, Stage
from receipt import receipt_samples as samples

AGENTS = tuple(f"pcp://agent{number}.example/agent" for number in range(4))
CONTROLLER, STRANGER = samples.CONTROLLER, "pcp://stranger.example/controller"


def frame(number: int, sender: str, target: str, answers: int | None = None, text: str = "x") -> bytes:
    """A message of protocol version 2."""
    message = {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "message_type": "http://example.org/run",
        "sender": sender,
        "target": target,
        "data": text,
    }
    if answers is not None:
        message["in_reply_to"] = f"00000000-0000-4000-8000-{answers:012d}"
    return json.dumps(message).encode()


@dataclass(frozen=True)
class Said:
    """The journal, and the messages by name."""

    journal: Path
    raws: dict[str, bytes]

    def address(self, name: str) -> Address:
        return address_of(self.raws[name])


def exchange(folder: Path) -> Said:
    """A request to three agents: two reply, one of them twice, one reply is answered; amid much other traffic."""
    raws = {
        "earlier": frame(1, CONTROLLER, AGENTS[0]),
        "request": frame(2, CONTROLLER, "pcp://*/agent"),
        "between strangers": frame(3, STRANGER, AGENTS[3]),
        "reply": frame(4, AGENTS[0], CONTROLLER, 2),
        "second reply": frame(5, AGENTS[0], CONTROLLER, 2, "more"),
        "other reply": frame(6, AGENTS[1], CONTROLLER, 2),
        "answer to the reply": frame(7, CONTROLLER, AGENTS[0], 4),
        "other talk": frame(8, AGENTS[1], STRANGER),
        "reply to another": frame(9, AGENTS[0], CONTROLLER, 1),
        "late reply": frame(10, AGENTS[2], CONTROLLER, 2),
    }
    routes = {
        "request": (CONTROLLER, AGENTS[:3]),
        "between strangers": (STRANGER, (AGENTS[3],)),
        "reply": (AGENTS[0], (CONTROLLER,)),
        "second reply": (AGENTS[0], (CONTROLLER,)),
        "other reply": (AGENTS[1], (CONTROLLER,)),
        "answer to the reply": (CONTROLLER, (AGENTS[0],)),
        "other talk": (AGENTS[1], (STRANGER,)),
        "reply to another": (AGENTS[0], (CONTROLLER,)),
        "late reply": (AGENTS[2], (CONTROLLER,)),
        "earlier": (CONTROLLER, (AGENTS[0],)),
    }
    observations = []
    for number, (name, raw) in enumerate(raws.items()):
        source, targets = routes[name]
        at_us, address = samples.T0 + 1000 * number, address_of(raw)
        observations += [
            Observation(at_us=at_us, stage=Stage.ACCEPTED, message=address, counterparts=(source,), raw=raw),
            Observation(at_us=at_us + 5, stage=Stage.DELIVERED, message=address, counterparts=targets),
        ]
    purged = address_of(b"bytes that the journal never had")
    observations.append(
        Observation(at_us=samples.T0 + 9500, stage=Stage.REJECTED, message=purged, counterparts=(AGENTS[1],))
    )
    folder.mkdir(parents=True, exist_ok=True)
    return Said(samples.write(folder / "broker.journal", samples.BROKER, observations, after=3), raws)
