"""`python -m jepsen [--seconds N] [--seed N] [--unusual] [--out DIR] [FABRIC...]`: exit code 3 at a loss not named."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

from jepsen import pcp, swarm, won
from jepsen.verdict import judge

FABRICS = {"pcp": pcp.run, "won": won.run, "swarm": swarm.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="jepsen", description=__doc__)
    parser.add_argument("fabric", nargs="*", metavar="FABRIC", help="pcp, won or swarm; all by default")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unusual", action="store_true", help="draw settings and lifetimes from the seed")
    parser.add_argument("--out", type=Path, help="keep journals, logs, lake and tables in this directory")
    arguments = parser.parse_args()
    is_fine = True
    for name in arguments.fabric or FABRICS:
        with contextlib.ExitStack() as stack:
            if arguments.out is not None:
                folder = arguments.out / name
                folder.mkdir(parents=True)
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"jepsen-{name}-")))
            seen = asyncio.run(FABRICS[name](folder, arguments.seconds, arguments.seed, arguments.unusual))
            verdict = judge(seen, folder)
        sys.stdout.write(verdict.text() + "\n")
        sys.stdout.flush()
        is_fine = is_fine and verdict.is_fine
    return 0 if is_fine else 3


if __name__ == "__main__":
    sys.exit(main())
