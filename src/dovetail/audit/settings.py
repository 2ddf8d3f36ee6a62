"""Input of the audit that is not in the lake: agreements of communities, and trusted keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.fabrics import every_fabric
from dovetail.keys import load_verifier_keys
from dovetail.keys.files import read_bounded
from dovetail.model.errors import ConfigError
from dovetail.model.fabric import Agreement
from dovetail.tlog.keys import Verifier

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """`agreements` are by community, "" for all others; `trusted` are keys of servers.

    With `proven_only` the rows of a file of which any row was altered, removed or added count as missing.
    `loss_timeout_us` is the loss timeout: how long something may be in flight before it is lost, or a chain overdue.
    """

    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    trusted: Sequence[Verifier] = ()
    loss_timeout_us: int = 30_000_000
    proven_only: bool = False

    def fingerprint(self) -> str:
        """A digest of all settings."""
        parts = sorted(self.agreements.items()), sorted(v.text() for v in self.trusted), self.loss_timeout_us
        text = repr((*parts, self.proven_only))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def named_agreements(self) -> dict[str, Agreement]:
        """Those given by name: a lifetime that is only assumed removes no bytes."""
        return {name: agreement for name, agreement in self.agreements.items() if name}


def load_settings(
    agreement_files: Sequence[Path] = (),
    trust_files: Sequence[Path] = (),
    *,
    loss_timeout_s: float = 30,
    proven_only: bool = False,
) -> AuditSettings:
    """Settings from files of agreements, and trust stores (`keys.load_verifier_keys`)."""
    agreements: dict[str, Agreement] = {}
    for path in agreement_files:
        agreements |= read_agreements(path)
    if len(agreement_files) == 1:
        agreements[""] = next(iter(agreements.values()))
    trusted = load_verifier_keys(*trust_files)
    return AuditSettings(
        agreements=agreements,
        trusted=trusted,
        loss_timeout_us=int(loss_timeout_s * 1_000_000),
        proven_only=proven_only,
    )


def read_agreements(path: Path) -> dict[str, Agreement]:
    """The agreement in a file, by the names of its community, read by the first fabric that knows the format."""
    document, problem = read_bounded(path, MAX_FILE_BYTES, ConfigError), ""
    for fabric in every_fabric():
        if fabric.default_agreement is not None:
            try:
                return fabric.parse_agreements(document)
            except ValueError as error:
                problem = problem or str(error)
    raise ConfigError(f"{path}: {problem}")
