"""Proof of work: nonces examined per second on one core, beside `openssl speed -evp sha256` in the same run.

python benchmarks/swarm_pow.py

The widest vectors of this machine are measured, and 8 lanes as a machine with AVX2 and no AVX-512 would run them.
"""

from __future__ import annotations

import subprocess
import time

from dovetail.swarm.content import Content, encode_content
from dovetail.swarm.pow import HashlibSearch, WorkSearch, best_search

SIZES = (100, 500, 1400)
SECONDS = 1.0
AVX2_LANES = 8


def hashes_per_second(search: WorkSearch, size: int) -> float:
    message = encode_content(Content(timestamp_ms=1_700_000_000_000, ttl_epochs=60, payload=bytes(size - 20)))
    count = 1 << 14
    while True:
        # processor time, as openssl measures too: both mean the same on a busy machine
        start = time.thread_time()
        search.find(message, 1, 12345, count)
        elapsed = time.thread_time() - start
        if elapsed > SECONDS / 4:
            return count / elapsed
        count *= 2


def openssl_hashes_per_second(size: int) -> float:
    command = ["openssl", "speed", "-evp", "sha256", "-bytes", str(size), "-seconds", "1"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(output.split()[-1].removesuffix("k")) * 1000 / size


def main() -> None:
    searches: list[WorkSearch] = [HashlibSearch()]
    if not isinstance(best_search(), HashlibSearch):
        from dovetail.swarm.pow_llvm import VectorSearch, host_lanes

        searches += [VectorSearch(lanes) for lanes in sorted({min(AVX2_LANES, host_lanes()), host_lanes()})]
    print(f"{'bytes':>6} {'openssl':>10}" + "".join(f"{search.name:>20} {'times':>6}" for search in searches))
    for size in SIZES:
        openssl = openssl_hashes_per_second(size)
        row = f"{size:>6} {openssl / 1e3:>8.0f} k"
        for search in searches:
            rate = max(hashes_per_second(search, size) for _ in range(3))
            row += f"{rate / 1e3:>18.0f} k {rate / openssl:>6.2f}"
        print(row)


if __name__ == "__main__":
    main()
