"""Where a demo stores things, and which of them remain.

OUT/journals/*.journal   the journals of all servers, from before the lake was tampered with
OUT/lake/                the sealed journals, tampered with
OUT/tables/              the audit's tables
OUT/trust/servers.vkey   the servers' public keys, as if received out of band
OUT/swarm.toml           the agreement of the swarm
OUT/faults.json          what was injected; OUT/comparison.json what was found of it
OUT/report.html          the report
OUT/site/                private keys, certificates, owners' homes, logs: removed at the end, unless `--keep`
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dovetail.keys.files import make_private_directory
from dovetail.model.errors import DovetailError, UsageError

MARKER = ".dovetail-demo"
MIB = 1 << 20
MIN_FREE_BYTES = 256 * MIB
"""Servers wait while the disk is full, and the demo would wait with them."""


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
        """Public keys of all servers, one per line."""
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
        """What is needed only while servers and clients run."""
        return self.out / "site"

    @property
    def logs(self) -> Path:
        """The output of the server processes."""
        return self.site / "logs"

    def prepare(self) -> None:
        """Prepare an empty directory for this run; removes only what an earlier demo left."""
        if self.out.exists():
            if not self.out.is_dir():
                raise UsageError(f"{self.out} is not a directory; choose another one with --out")
            if any(self.out.iterdir()) and not (self.out / MARKER).exists():
                raise UsageError(f"{self.out} is not empty and not from an earlier demo; choose another with --out")
            self.clear()
        make_private_directory(self.out)
        free = shutil.disk_usage(self.out).free
        if free < MIN_FREE_BYTES:
            self.clear()
            raise DovetailError(
                f"{self.out} has {free / MIB:.0f} MiB free, but a demo needs {MIN_FREE_BYTES / MIB:.0f}: "
                "free some space, or choose another directory with --out"
            )
        (self.out / MARKER).touch()
        for path in (self.journals, self.logs, self.trust.parent):
            make_private_directory(path)

    def clear(self) -> None:
        """Remove everything a demo created, including the directory itself if nothing else is in it."""
        for path in (self.journals, self.lake, self.tables, self.trust.parent, self.site):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.swarm, self.faults, self.comparison, self.report, self.out / MARKER):
            path.unlink(missing_ok=True)
        for path in self.out.glob("*.receipt"):
            path.unlink()
        if self.out.is_dir() and not any(self.out.iterdir()):
            self.out.rmdir()

    def tidy(self) -> None:
        """Remove private keys and everything else that only running servers need."""
        shutil.rmtree(self.site, ignore_errors=True)
