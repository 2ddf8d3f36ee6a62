"""How `dovetail journal` prints hops and verdicts: as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import escape, print_json, print_text, say
from dovetail.fabrics import address_text
from dovetail.model.times import time_text

if TYPE_CHECKING:
    from dovetail.journal.verify import Verdict
    from dovetail.model.hop import Hop


def print_hop(hop: Hop, *, as_json: bool) -> None:
    """Print one hop."""
    message = address_text(hop.message, hop.fabric)
    if as_json:
        print_json(
            {
                "server": hop.server,
                "seq": hop.seq,
                "at": time_text(hop.at_us),
                "stage": str(hop.stage),
                "message": message,
                "counterpart": hop.counterpart,
                "reason": str(hop.reason) if hop.reason else None,
                "size": hop.size,
                "raw": hop.raw.hex() if hop.raw is not None else None,
            }
        )
        return
    reason = f" ({hop.reason})" if hop.reason else ""
    size = f" {hop.size} bytes" if hop.size is not None else ""
    line = f"{hop.seq:>8} {time_text(hop.at_us)} {hop.stage:<13} {message[:20]} {hop.counterpart or '-'}{reason}{size}"
    print_text(escape(line) + "\n")


def print_verdict(path: Path, verdict: Verdict, *, as_json: bool) -> None:
    """Print what is wrong with a journal, or that nothing is."""
    if as_json:
        print_json(
            {
                "path": str(path),
                "server": verdict.server,
                "intact": verdict.is_intact,
                "hops": verdict.hops,
                "messages": verdict.messages,
                "checkpoints": verdict.checkpoints,
                "committed": verdict.committed,
                "first": str(verdict.first) if verdict.first else None,
                "findings": [{"seq": f.seq, "last": f.last, "detail": f.detail} for f in verdict.findings],
            }
        )
    elif verdict.is_intact:
        print_text(
            f"{path}: intact; {verdict.hops} hops and {verdict.messages} messages of {verdict.server}, "
            f"{verdict.checkpoints} checkpoints, {verdict.hops - verdict.committed} hops not signed yet\n"
        )
    else:
        print_text(f"{path}: NOT intact; {verdict.first}\n")
        for finding in verdict.findings:
            say(f"  {finding}")
