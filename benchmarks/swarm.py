"""All of the swarm's benchmarks, one after the other: proof of work, one peer on one core, growth.

python -m benchmarks.swarm
"""

from __future__ import annotations

import json

from benchmarks import swarm_growth, swarm_peer, swarm_pow


def main() -> None:
    print("proof of work: thousand hashes per second on one core, beside openssl")
    swarm_pow.main()
    print("\none peer on one core: received over UDP, decoded, verified, journaled, relayed")
    for links, durability, is_mixed in (
        (1, "full", False),
        (4, "full", False),
        (4, "full", True),
        (4, "relaxed", False),
    ):
        result = swarm_peer.measure(links, 40_000, 300, durability, is_mixed)
        print(json.dumps({"links": links, "durability": durability, "mixed": is_mixed} | result), flush=True)
    print("\nsimulated swarms at 30 % loss: bytes are multiples of the ideal")
    for peers in (50, 100, 200, 500, 1000):
        print(json.dumps(swarm_growth.measure(0, peers, 0.3, 30)), flush=True)


if __name__ == "__main__":
    main()
