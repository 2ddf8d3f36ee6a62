"""Simulated swarms from 50 to 1000 peers at 30 % loss: convergence, reach within 1 s, bytes sent against the ideal.

    python -m benchmarks.swarm_growth [--peers 50 100 200 500 1000] [--loss 0.3] [--seeds 1] [--seconds 30]

One message of 200 bytes of payload a second from random peers. The ideal is that every peer gets every message exactly
once. Everything after the warm-up is counted: relay, repair (pulls, lists, served and pushed again), upkeep (hellos).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from swarm.swarm_world import SwarmWorld

WARM_UP_S = 20


def measure(seed: int, peers: int, loss: float, seconds: int) -> dict[str, object]:
    start = time.perf_counter()
    world = SwarmWorld(seed, peers, loss=loss)
    world.run(WARM_UP_S)
    before = world.bytes_by_purpose()
    world.traffic(seconds)
    converged = world.seconds_to_converge(60)
    after, ideal = world.bytes_by_purpose(), world.ideal_bytes()
    sent = {f"{purpose}_of_ideal": round((after[purpose] - before[purpose]) / ideal, 2) for purpose in after}
    return {
        "peers": peers,
        "loss": loss,
        "seed": seed,
        "converged_s": round(converged, 1),
        "share_within_1s": round(world.share_within(1), 4),
        **sent,
        "wall_s": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[50, 100, 200, 500, 1000])
    parser.add_argument("--loss", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=30)
    arguments = parser.parse_args()
    for peers in arguments.peers:
        for seed in range(arguments.seeds):
            print(json.dumps(measure(seed, peers, arguments.loss, arguments.seconds)), flush=True)


if __name__ == "__main__":
    main()
