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
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")


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
        if any(ip.version == network.version and ip in network for network in self._networks):
            return True
        if isinstance(ip, ipaddress.IPv6Address):
            inside = _address_inside(ip)
            if inside is not None:
                return self.is_allowed(str(inside))
            if ip.is_site_local or ip in _LOCAL_NAT64:
                return False
        return ip.is_global and not ip.is_multicast


def _address_inside(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that the kernel or a gateway would send to."""
    if ip in _NAT64 or ip in _COMPATIBLE:
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped or ip.sixtofour
