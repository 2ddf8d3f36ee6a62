"""What all peers of a swarm agree on, and what each peer decides for itself.

`SwarmSettings` is the agreement: every peer has the same file. Its hash is part of the swarm address, so peers that
disagree about an epoch or a target are in different swarms instead of silently refusing each other's messages:

    address = SHA-256(name)[:12] + SHA-256(canonical JSON of the agreement)[:8]

A swarm of other software has its own address: set it as `address`; nothing verifies the agreement then. The secret of
a private swarm is not hashed into the address; it is part of every packet's signature.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from dovetail.model.errors import ConfigError
from dovetail.model.fabric import Agreement
from dovetail.swarm.content import MAX_TTL_EPOCHS, ContentRules
from dovetail.swarm.packet import swarm_key
from dovetail.swarm.room import DEFAULT_BYTES, DEFAULT_MESSAGES

MAX_SETTINGS_BYTES: Final = 8_192
"""TOML of this size is parsed within about a second, whatever it contains."""
SAFE_EPOCH_MS: Final = 60_000
"""UEP-12: an epoch should be much longer than the broadcast of one packet takes to converge, "e.g. 1 minute"."""
_NAME_BYTES: Final = 12
_HASH_BYTES: Final = 8

Hex20 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{40}$", description="20 bytes as 40 hex digits")]


class SwarmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agreement of all peers of a swarm."""

    name: Annotated[
        str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="the swarm's display name; part of URIs")
    ]
    epoch_ms: Annotated[
        int, Meta(ge=1_000, le=86_400_000, description="length of an epoch; much longer than convergence takes")
    ] = 60_000
    max_ttl_epochs: Annotated[int, Meta(ge=1, le=MAX_TTL_EPOCHS, description="longest lifetime in epochs")] = 1_440
    work: Annotated[
        int, Meta(ge=1, le=1 << 40, description="hashes a message costs on average; the target is 2^256 / work")
    ] = 100_000
    max_future_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="how far ahead of the peer's own clock a timestamp may be")
    ] = 60_000
    slot_slack: Annotated[
        int, Meta(ge=1, le=8, description="slots of 16.384 s by which the clocks of two peers may differ")
    ] = 1
    address: Annotated[Hex20 | None, Meta(description="address of a swarm created by other software")] = None
    secret: Annotated[Hex20 | None, Meta(description="secret of a private swarm")] = None

    @property
    def warnings(self) -> list[str]:
        """What is allowed but unwise in the agreement, one line each."""
        if self.epoch_ms >= SAFE_EPOCH_MS:
            return []
        return [f"an epoch of {self.epoch_ms} ms, expected at least {SAFE_EPOCH_MS}: messages may expire on their way"]

    @property
    def agreement(self) -> Agreement:
        """The part that affects the meaning of its messages' bytes."""
        return Agreement(epoch_ms=self.epoch_ms, work_target=self.rules.pow_target)

    @property
    def rules(self) -> ContentRules:
        """The limits on content messages."""
        return ContentRules(
            epoch_ms=self.epoch_ms,
            max_ttl_epochs=self.max_ttl_epochs,
            pow_target=(1 << 256) // self.work,
            max_future_ms=self.max_future_ms,
        )

    @property
    def swarm_address(self) -> bytes:
        """The 20 bytes that name the swarm."""
        if self.address is not None:
            return bytes.fromhex(self.address)
        agreed = {
            name: getattr(self, name)
            for name in ("name", "epoch_ms", "max_ttl_epochs", "work", "max_future_ms", "slot_slack")
        }
        canonical = msgspec.json.encode(agreed, order="sorted")
        return (
            hashlib.sha256(self.name.encode()).digest()[:_NAME_BYTES] + hashlib.sha256(canonical).digest()[:_HASH_BYTES]
        )

    @property
    def key(self) -> bytes:
        """The key of the packets' signatures."""
        return swarm_key(self.swarm_address, bytes.fromhex(self.secret) if self.secret else None)


class PeerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one peer decides for itself."""

    forward_links: Annotated[int, Meta(ge=1, le=32, description="peers to relay to")] = 5
    backward_links: Annotated[int, Meta(ge=1, le=32, description="peers that relay to us")] = 5
    spare_links: Annotated[int, Meta(ge=0, le=32, description="additional links, granted on request")] = 1
    plain_links: Annotated[
        int, Meta(ge=0, le=32, description="peers to relay to that lack the peer exchange, in addition to pinned ones")
    ] = 4
    push_limit: Annotated[
        int,
        Meta(ge=0, le=255, description="the messages of a range with at most this many are sent along with the answer"),
    ] = 4
    serve_bytes_per_second: Annotated[
        int, Meta(ge=1_000, le=1 << 32, description="maximum average rate at which one source is served")
    ] = 2_000_000
    queries_per_second: Annotated[
        int, Meta(ge=1, le=100_000, description="maximum average rate of answered pulls from one source")
    ] = 50
    rejections_per_second: Annotated[
        int,
        Meta(ge=0, le=10_000, description="maximum average rate of refusals written to the journal; all are counted"),
    ] = 5
    max_wanted: Annotated[
        int,
        Meta(
            ge=64, le=65_536, description="missing messages pulled at the same time; at most a quarter for one source"
        ),
    ] = 4_096
    max_held_messages: Annotated[
        int,
        Meta(ge=64, le=1 << 32, description="messages held; one source may use at most as much as is still free"),
    ] = DEFAULT_MESSAGES
    max_held_bytes: Annotated[
        int, Meta(ge=1 << 20, le=1 << 40, description="memory for held messages: their bytes and 1,024 bytes each")
    ] = DEFAULT_BYTES
    obfuscate: Annotated[
        bool, Meta(description="mask all datagrams (UEP-6); otherwise only those to peers that mask theirs")
    ] = False


def parse_swarm_settings(data: bytes, source: str) -> SwarmSettings:
    """Parse the agreement from TOML; ConfigError names the source and what is wrong."""
    if len(data) > MAX_SETTINGS_BYTES:
        raise ConfigError(f"{source}: {len(data)} bytes, expected at most {MAX_SETTINGS_BYTES}")
    try:
        return msgspec.toml.decode(data, type=SwarmSettings)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: {error}") from None
