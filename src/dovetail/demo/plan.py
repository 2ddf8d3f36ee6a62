"""How large a demo is: everything that `--scale` changes, in one place."""

from __future__ import annotations

from dataclasses import dataclass

LOSS = 0.2
"""The fraction of the swarm's datagrams that the relay drops."""
LOSS_TIMEOUT_S = 2.0
"""What is in transit for longer than this when the traffic ends counts as lost."""
_USUAL_SECONDS = 28.0
_LEAST_SECONDS = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Numbers of clients, owners and peers, and the traffic they generate."""

    seconds: float
    agents: int
    controllers: int
    owners_per_node: int
    peers: int
    requests_per_second: float
    words_per_second: float
    """Messages of all won conversations together."""
    posts_per_second: float
    """Messages published in the swarm."""

    @classmethod
    def of(cls, scale: float) -> Plan:
        """The default demo is scale 1. Larger is more traffic in the same time, smaller a shorter demo with less."""
        small = min(1.0, scale)
        return cls(
            seconds=max(_LEAST_SECONDS, _USUAL_SECONDS * small),
            agents=max(8, round(36 * small)),
            controllers=4,
            owners_per_node=3 if scale >= 1 else 2,
            peers=12 if scale >= 1 else 8,
            requests_per_second=40.0 * max(0.25, scale),
            words_per_second=12.0 * max(0.5, scale),
            posts_per_second=8.0 * max(0.5, scale),
        )
