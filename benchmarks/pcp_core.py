"""What a message costs the broker's core alone, without sockets and journal: the best of many turns.

    python -m benchmarks.pcp_core [--turns N] [--json]

Steadier than `benchmarks.pcp` on a busy machine, so it tells whether a change of the core helps. `alike`: each sender
keeps writing to one client; `varied`: each sender changes its target every time, so that everything is decoded;
`fan`: one sender to 1,000 clients by a wildcard, counted per delivery. Each turn is fed, drained and framed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import time
import uuid

from dovetail.model.times import time_text
from dovetail.model.wire import Frame, SendFrames
from dovetail.pcp.broker import Broker
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.pcp.settings import PcpSettings, Rule
from dovetail.runtime.frames import encode_frames

NOW = 1_800_000_000_000_000
DATA = b"x" * 250
LOAD = "http://example.com/load"
ASSOCIATE = "http://puppetlabs.com/associate_request"
RULES = (
    Rule(allow=True, sender="pcp://*/controller", target="pcp://*/agent"),
    Rule(allow=True, sender="pcp://*/agent", target="pcp://*/controller"),
    Rule(allow=True, target="pcp:///server"),
)


def frame(sender: str, target: str, message_type: str = LOAD, data: bytes | None = DATA, number: int = 0) -> bytes:
    expires = time_text(NOW + 60_000_000 + number * 7_919)
    return encode_frame(Envelope(str(uuid.uuid4()), message_type, expires, [target], sender), data)


class World:
    """A broker with controllers and agents."""

    def __init__(self, controllers: int, agents: int) -> None:
        self.broker = Broker(PcpSettings(insecure_plain=True, rules=RULES), lambda: str(uuid.uuid4()))
        numbers = itertools.count()
        self.controllers = [self._open(next(numbers), "controller") for _ in range(controllers)]
        self.agents = [self._open(next(numbers), "agent") for _ in range(agents)]
        self.turn([])

    def _open(self, number: int, kind: str) -> tuple[str, str]:
        connection, uri = str(number), f"pcp://host{number:06}.example.com/{kind}"
        self.broker.receive_opened(connection, None, f"/pcp/{kind}", NOW)
        self.broker.receive_frame(frame(uri, "pcp:///server", ASSOCIATE, None), connection, NOW)
        return connection, uri

    def turn(self, fed: list[Frame]) -> int:
        """What a runtime does in one turn; returns the number of messages to write."""
        self.broker.receive_frames(fed, NOW)
        written = 0
        for item in self.broker.to_send():
            if isinstance(item, SendFrames):
                encode_frames(item.frames, False)
                for _ in item.links:
                    written += len(item.frames)
        self.broker.events()
        return written


def measure(world: World, batch: list[Frame], deliveries: int, turns: int) -> float:
    """Microseconds per delivery."""
    best = float("inf")
    for _ in range(turns):
        began = time.perf_counter()
        written = world.turn(batch)
        best = min(best, time.perf_counter() - began)
        assert written == deliveries
    return best / deliveries * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    pairs, fan = World(20, 20), World(1, 1000)
    alike: list[Frame] = []
    varied: list[Frame] = []
    for index, number in itertools.product(range(20), range(32)):
        connection, sender = pairs.controllers[index]
        alike.append((frame(sender, pairs.agents[index][1], number=number), connection, False))
        varied.append((frame(sender, pairs.agents[(index + number) % 20][1], number=number), connection, False))
    connection, sender = fan.controllers[0]
    wide = [(frame(sender, "pcp://*/agent"), connection, False)]
    gc.collect()
    gc.freeze()
    for name, world, batch, deliveries in (
        ("alike", pairs, alike, len(alike)),
        ("varied", pairs, varied, len(varied)),
        ("fan", fan, wide, 1000),
    ):
        row = {"messages": name, "us per delivery": round(measure(world, batch, deliveries, arguments.turns), 2)}
        print(json.dumps(row) if arguments.json else ", ".join(f"{k}: {v}" for k, v in row.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
