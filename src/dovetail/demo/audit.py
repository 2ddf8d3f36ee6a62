"""After the traffic: seals the journals, tampers with the lake, and audits it on Spark."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.demo.faults import Fault, Ledger
from dovetail.demo.layout import Layout
from dovetail.demo.plan import LOSS_TIMEOUT_S
from dovetail.demo.screen import Screen
from dovetail.demo.site import BROKER
from dovetail.demo.tampering import Tamperer
from dovetail.journal.reader import read_identity
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.times import to_datetime

if TYPE_CHECKING:
    from dovetail.audit.summary import Summary

MASTER = "local[2]"


def write_trust(layout: Layout) -> None:
    """Write the servers' public keys, as an auditor would get them out of band: before anyone tampers with the lake."""
    journals = sorted(layout.journals.glob("*.journal"))
    layout.trust.write_text("".join(f"{read_identity(path).verifier.text()}\n" for path in journals))


def seal_all(layout: Layout) -> int:
    """Seal every journal; returns the number of hops."""
    lake = LocalStore(layout.lake)
    manifests = [seal_journal(path, lake) for path in sorted(layout.journals.glob("*.journal"))]
    return sum(manifest.end for manifest in manifests if manifest is not None)


def tamper(layout: Layout, ledger: Ledger, node: str, peer: str, seed: int) -> Sequence[Fault]:
    """Change a byte at the broker, remove a row at a node, remove a file of a peer."""
    spared = frozenset(address for fault in ledger.faults for address in fault.messages)
    tamperer = Tamperer(layout.lake, random.Random(seed), spared)  # noqa: S311 - chooses a row
    return [tamperer.change_byte(BROKER), tamperer.remove_row(node), tamperer.remove_file(peer)]


class _Steps:
    """Shows on the screen which step of the audit is running."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._number = 0

    def step(self, name: str) -> None:
        """This step starts now."""
        self._number += 1
        self._screen.status(f"step {self._number}: {name}")


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the stderr of processes started in this block to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def run_audit(layout: Layout, ended_us: int, screen: Screen) -> Summary:
    """Run the audit as any user would: it has the lake, the swarm's agreement and the servers' keys."""
    from dovetail.audit.run import Audit
    from dovetail.audit.session import SMALL_JAVA, SessionOptions, open_session
    from dovetail.audit.settings import load_settings

    screen.status("start Spark")
    # Java's output goes to a file
    with _stderr_to(layout.logs / "spark.log"):
        spark = open_session(SessionOptions(master=MASTER, conf={"spark.driver.extraJavaOptions": SMALL_JAVA}))
    try:
        summary = Audit(
            spark=spark,
            lake=layout.lake.resolve(),
            tables=layout.tables.resolve(),
            settings=load_settings([layout.swarm], [layout.trust], loss_timeout_s=LOSS_TIMEOUT_S),
            as_of=to_datetime(ended_us),
            progress=_Steps(screen),
        ).run()
    finally:
        spark.stop()
    screen.status(f"{summary.hops} hops of {len(summary.servers)} servers, {sum(summary.messages.values())} messages")
    return summary
