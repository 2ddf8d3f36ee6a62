"""The URIs that name peers in journals: `swarm://name/peer` if the peer is known, else `udp://endpoint`."""

from __future__ import annotations

import re
from typing import Final

SCHEME: Final = "swarm"
SWARM_NAME_PATTERN: Final = rf"^{SCHEME}://([^/]+)/"
"""The first group is the swarm's name; works in Python and in Spark."""
_SWARM_NAME: Final = re.compile(SWARM_NAME_PATTERN)


def peer_uri(swarm_name: str, address: bytes) -> str:
    """The URI of a peer: the swarm's name and the 20-byte peer address in hex."""
    return f"{SCHEME}://{swarm_name}/{address.hex()}"


def endpoint_uri(endpoint: str) -> str:
    """The URI of an endpoint whose peer is not known."""
    return f"udp://{endpoint}"


def swarm_name_of(uri: str) -> str:
    """The swarm's name in a peer's URI; empty for all other URIs."""
    match = _SWARM_NAME.match(uri)
    return match[1] if match else ""
