"""Where a demo keeps things, and what of it stays.

OUT/journals/*.journal   the journals of all servers, as they were before anybody touched the lake
OUT/lake/                the sealed journals, tampered with
OUT/tables/              what the audit made of them
OUT/trust/servers.vkey   the servers' public keys, as one would know them from elsewhere
OUT/swarm.toml           the agreement of the swarm
OUT/faults.json          what was injected; OUT/comparison.json what was found of it
OUT/report.html          the report
OUT/site/                private keys, certificates, owners' homes, logs: removed at the end unless kept
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dovetail.model.errors import DovetailError, UsageError

MARKER = ".dovetail-demo"
MIB = 1 << 20
MIN_FREE_BYTES = 256 * MIB
"""Servers whose journals have no room wait for some, and a demo would wait with them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below one output directory."""

    out: Path

    @property
    def journals(self) -> Path:
        """The servers' journals."""
        return self.out / "journals"

    @property
    def lake(self) -> Path:
        """The lake."""
        return self.out / "lake"

    @property
    def tables(self) -> Path:
        """The audit's tables."""
        return self.out / "tables"

    @property
    def trust(self) -> Path:
        """Public keys of all servers, one a line."""
        return self.out / "trust" / "servers.vkey"

    @property
    def swarm(self) -> Path:
        """The agreement of the swarm."""
        return self.out / "swarm.toml"

    @property
    def faults(self) -> Path:
        """What was injected."""
        return self.out / "faults.json"

    @property
    def comparison(self) -> Path:
        """What was found of it."""
        return self.out / "comparison.json"

    @property
    def report(self) -> Path:
        """The report."""
        return self.out / "report.html"

    @property
    def site(self) -> Path:
        """What only running servers and clients need."""
        return self.out / "site"

    @property
    def logs(self) -> Path:
        """What the server processes say."""
        return self.site / "logs"

    def prepare(self) -> None:
        """Make an empty place for this run; only what an earlier demo left is removed."""
        if self.out.exists():
            if not self.out.is_dir():
                raise UsageError(f"{self.out} is not a directory; give another one with --out")
            if any(self.out.iterdir()) and not (self.out / MARKER).exists():
                raise UsageError(f"{self.out} is not empty and not from an earlier demo; give another with --out")
            self.clear()
        self.out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.out).free
        if free < MIN_FREE_BYTES:
            self.clear()
            raise DovetailError(
                f"{self.out} has {free / MIB:.0f} MiB of room and a demo wants {MIN_FREE_BYTES / MIB:.0f}: "
                "make room, or give another place with --out"
            )
        (self.out / MARKER).touch()
        for path in (self.journals, self.logs, self.trust.parent):
            path.mkdir(parents=True)

    def clear(self) -> None:
        """Remove everything a demo made, the directory itself included if nothing else is in it."""
        for path in (self.journals, self.lake, self.tables, self.trust.parent, self.site):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.swarm, self.faults, self.comparison, self.report, self.out / MARKER):
            path.unlink(missing_ok=True)
        for path in self.out.glob("*.receipt"):
            path.unlink()
        if self.out.is_dir() and not any(self.out.iterdir()):
            self.out.rmdir()

    def tidy(self) -> None:
        """Remove private keys and whatever else only running servers need."""
        shutil.rmtree(self.site, ignore_errors=True)
