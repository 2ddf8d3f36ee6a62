"""What to try after a demo, as commands with real addresses that work as printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.demo.evidence import Tables
from dovetail.demo.faults import Fault, Kind, Ledger
from dovetail.demo.layout import Layout
from dovetail.journal.reader import read_identity
from dovetail.won.vocabulary import node_of_atom

_SHORT = 16
"""How many hex digits of an address are printed: enough to be unique."""


class NextStep(NamedTuple):
    """One command, without the program's name, and what it shows."""

    arguments: tuple[str, ...]
    shows: str

    @property
    def text(self) -> str:
        """The command as typed."""
        return shlex.join([*program(), *self.arguments])


def program() -> list[str]:
    """The words that run this program from here; `make demo` does not put it on the PATH."""
    called = Path(sys.argv[0])
    if called.name != "dovetail":
        return [sys.executable, "-m", "dovetail"]
    found = shutil.which("dovetail")
    return ["dovetail"] if found and Path(found).samefile(called) else [os.fspath(called)]


def suggest(layout: Layout, ledger: Ledger, tables: Tables) -> list[NextStep]:
    """Suggest commands for what a demo left; `layout` has the path as the user gave it."""
    lost = _first(ledger, Kind.LOST_RESPONSE)
    forked = _first(ledger, Kind.OWNER_FORK)
    message, nodes = _provable(ledger, tables)
    journals = _journals(layout, nodes)
    receipt, fork = str(layout.out / "delivery.receipt"), str(layout.out / "fork.receipt")
    trust = ("--trust", str(layout.trust))
    evidence = _journals(layout, [str(forked.server), ""])
    both = [address[:_SHORT] for address in forked.messages]
    places = [f"--{name}" for name in ("journals", "lake", "tables")]
    folders = [str(folder) for folder in (layout.journals, layout.lake, layout.tables)]
    return [
        NextStep(
            ("audit", "why", lost.messages[1][:_SHORT], "--tables", str(layout.tables)), "what happened to the lost s2"
        ),
        NextStep(("audit", "show", "findings", "--tables", str(layout.tables), "--limit", "0"), "all that is wrong"),
        NextStep(("receipt", "build", message[:_SHORT], *journals, "-o", receipt), "prove one delivery"),
        NextStep(("receipt", "verify", receipt, *trust), "check it, offline"),
        NextStep(("receipt", "fork", *both, *evidence, *trust, "-o", fork), "prove that the owner forked"),
        NextStep(
            ("journal", "verify", str(layout.journals)), "the journals are intact; only the lake was tampered with"
        ),
        NextStep(
            ("dashboard", *(word for pair in zip(places, folders, strict=True) for word in pair)),
            "search and follow every message in a browser, until Ctrl-C",
        ),
    ]


def _first(ledger: Ledger, kind: Kind) -> Fault:
    return next(fault for fault in ledger.faults if fault.kind is kind)


def _provable(ledger: Ledger, tables: Tables) -> tuple[str, Sequence[str]]:
    """A message whose whole chain both nodes have, and the two nodes."""
    faulty = {address for fault in ledger.faults for address in (*fault.tampered, *fault.messages)}
    said = set(ledger.sent.won) - faulty
    for row in tables.rows("chains"):
        if row["message"] in said and row["state"] == "complete" and not row["only_at"]:
            return row["message"], sorted({node_of_atom(row["sender"]), node_of_atom(row["recipient"])})
    raise LookupError("no chain is complete")


def _journals(layout: Layout, servers: Sequence[str]) -> list[str]:
    """`--journal` for each of these servers; an empty name means an owner's journal."""
    found: list[str] = []
    for path in sorted(layout.journals.glob("*.journal")):
        server = read_identity(path).server
        if server in servers or ("" in servers and "/atom/" in server):
            found += ["--journal", str(path)]
    return found
