"""The registry of fabrics: the only module above the cores that names them.

A core is imported on first use of its fabric, so that a broker does not load what only nodes need.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import NamedTuple

from dovetail.model.address import Address
from dovetail.model.fabric import Fabric


class Entry(NamedTuple):
    """The schemes of its servers' URIs, and the module whose `FABRIC` implements it."""

    schemes: tuple[str, ...]
    module: str


REGISTRY: dict[str, Entry] = {
    "pcp": Entry(("pcp",), "dovetail.pcp.fabric"),
    "won": Entry(("https", "http"), "dovetail.won.fabric"),
    "swarm": Entry(("swarm",), "dovetail.swarm.fabric"),
}


def fabric_named(name: str) -> Fabric:
    """The fabric of this name; raises ValueError if there is none."""
    return _load(REGISTRY[check_name(name)].module)


@functools.cache
def _load(module: str) -> Fabric:
    fabric: Fabric = import_module(module).FABRIC
    return fabric


def check_name(name: str) -> str:
    """Return the name if a fabric has it; raises ValueError if none has."""
    if name not in REGISTRY:
        raise ValueError(f"fabric {name[:80]!r}, expected one of {', '.join(REGISTRY)}")
    return name


def fabric_of(server: str) -> Fabric:
    """The fabric of a server, from its URI; raises ValueError if there is none."""
    return fabric_named(name_of(server))


def name_of(server: str) -> str:
    """The name of a server's fabric, from its URI; raises ValueError if there is none."""
    scheme = server.partition("://")[0]
    for name, entry in REGISTRY.items():
        if scheme in entry.schemes:
            return name
    raise ValueError(f"{server[:80]!r} is not the URI of a broker, node or peer")


def is_server_name(name: str) -> bool:
    """Whether this is the URI of a broker, node or peer; a key with such a name is nobody's witness."""
    return name.partition("://")[0] in {scheme for entry in REGISTRY.values() for scheme in entry.schemes}


def address_text(address: Address, fabric: str) -> str:
    """An address in its display form."""
    return fabric_named(fabric).show_address(address)


def every_fabric() -> list[Fabric]:
    """All fabrics."""
    return [fabric_named(name) for name in REGISTRY]
