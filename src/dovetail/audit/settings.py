"""What the audit must be told, since the lake does not say it: the agreements of swarms, and keys that are trusted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dovetail.model.errors import CheckpointError, ConfigError
from dovetail.model.fabric import Agreement
from dovetail.swarm.content import POW_TARGET, ContentRules
from dovetail.tlog.keys import Verifier, parse_verifier

MAX_TRUST_BYTES = 1 << 20


class SwarmRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the peers of a swarm agreed on, as far as it decides about a message."""

    epoch_ms: int = ContentRules().epoch_ms
    pow_target: int = POW_TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """`swarms` is by name of the swarm, "" for all that are not named; `trusted` are keys of servers.

    `patience_us` is how long something may be under way before it counts as lost, or a chain as overdue.
    """

    swarms: Mapping[str, SwarmRules] = field(default_factory=lambda: {"": SwarmRules()})
    trusted: Sequence[Verifier] = ()
    patience_us: int = 30_000_000

    def fingerprint(self) -> str:
        """Changes when anything here changes."""
        text = repr((sorted(self.swarms.items()), sorted(v.text() for v in self.trusted), self.patience_us))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def agreements(self) -> dict[str, Agreement]:
        """Those that were given by name: a lifetime that is only assumed removes no bytes."""
        return {
            name: Agreement(epoch_ms=rules.epoch_ms, work_target=rules.pow_target)
            for name, rules in self.swarms.items()
            if name
        }

    @property
    def epochs(self) -> dict[str, int]:
        """Epoch by swarm."""
        return {name: rules.epoch_ms for name, rules in self.swarms.items()}


def load_settings(
    swarm_files: Sequence[Path] = (), trust_files: Sequence[Path] = (), *, patience_s: float = 30
) -> AuditSettings:
    """Settings from the agreements of swarms (TOML) and files of trusted keys, one verifier per line."""
    from dovetail.runtime.swarm_settings import load_swarm_settings

    swarms = {"": SwarmRules()}
    for path in swarm_files:
        agreed = load_swarm_settings(path)
        rules = SwarmRules(epoch_ms=agreed.epoch_ms, pow_target=agreed.rules.pow_target)
        swarms[agreed.name] = swarms[agreed.swarm_address.hex()] = rules
        if len(swarm_files) == 1:
            swarms[""] = rules
    trusted = [verifier for path in trust_files for verifier in read_trust(path)]
    return AuditSettings(swarms=swarms, trusted=trusted, patience_us=int(patience_s * 1_000_000))


def read_trust(path: Path) -> list[Verifier]:
    """Verifier keys from a file, one a line; empty lines and lines with `#` are left out."""
    try:
        if path.stat().st_size > MAX_TRUST_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size} bytes, expected at most {MAX_TRUST_BYTES}")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    verifiers = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            try:
                verifiers.append(parse_verifier(line))
            except CheckpointError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from None
    return verifiers
