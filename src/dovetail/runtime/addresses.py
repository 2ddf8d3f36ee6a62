"""Which addresses a won party may connect to on behalf of what others write into messages.

The signer of a message names the host that its key is fetched from, and a recipient names the host of its node. Only
public addresses are connected to; private ones, loopback and the like only if the configuration lists their network. A
party that is itself named localhost means nothing to other machines, and may connect to loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


class AddressRefused(OSError):
    """No connection is made: the address is neither public nor in the configuration."""


class AddressGuard:
    """Resolves names for a party with the URI `own`; `networks` are allowed in addition to public addresses.

    With `trusts_own`, its own host may be anywhere: for an owner that is its node, which its user chose.
    """

    def __init__(self, own: str, networks: Sequence[str] = (), *, trusts_own: bool = False) -> None:
        parts = urlsplit(own)
        self._trusted = parts.hostname if trusts_own else None
        is_local = parts.hostname in LOOPBACK_NAMES
        self._networks = [ipaddress.ip_network(text) for text in networks] + ([*_LOOPBACK] if is_local else [])
        self._may_be_plain = is_local and parts.scheme == "http"

    async def resolve(self, uri: str) -> str:
        """The address to connect to for a URI; AddressRefused says why it is not allowed, OSError if there is none."""
        parts = urlsplit(uri)
        if parts.scheme != "https" and not (self._may_be_plain and parts.hostname in LOOPBACK_NAMES):
            raise AddressRefused(f"{uri[:200]} is not https")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname or "", port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in found]
        for address in addresses:
            if parts.hostname != self._trusted and not self.is_allowed(address):
                raise AddressRefused(f"{parts.hostname} is at {address}, which is not a public address")
        return addresses[0]

    def is_allowed(self, address: str) -> bool:
        """True if an address is public, or in one of the networks."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if any(ip.version == network.version and ip in network for network in self._networks):
            return True
        return ip.is_global and not ip.is_multicast
