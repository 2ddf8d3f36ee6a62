"""What an operator can configure in a broker, including the authorisation rules."""

from __future__ import annotations

import contextlib
import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dovetail.model.errors import ConfigError
from dovetail.model.memory_shares import LinkMemory
from dovetail.pcp.names import check_names
from dovetail.pcp.uri import parse_uri

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Milliseconds = Annotated[int, Meta(ge=1, le=365 * 24 * 3600 * 1000)]
MountPath = Annotated[str, Meta(pattern=r"^(/[A-Za-z0-9._~-]+)+$")]
Pattern = Annotated[str, Meta(pattern=r"^pcp://[^/]*/[^/]+$", max_length=1024)]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One authorisation rule; the first that matches sender, target and message type decides."""

    allow: Annotated[bool, Meta(description="whether a match allows or denies")]
    sender: Annotated[
        Pattern, Meta(description="URI of the sender; the name may be a pattern with * or @group, the type *")
    ] = "pcp://*/*"
    target: Annotated[Pattern, Meta(description="URI of the target, in the same form; the broker is pcp:///server")] = (
        "pcp://*/*"
    )
    message_type: Annotated[
        str, Meta(description="a message type, a prefix of one followed by *, or *", max_length=1024)
    ] = "*"
    name: Annotated[str, Meta(description="name of the rule in traces and logs", max_length=100)] = ""

    def describe(self) -> str:
        """The rule as one line."""
        verdict = "allow" if self.allow else "deny"
        title = f"{self.name}: " if self.name else ""
        return f"{title}{verdict} {self.sender} -> {self.target} {self.message_type}"


class BodyRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the journal stores the bytes of a message type, or only their address."""

    message_type: Annotated[str, Meta(description="a message type, a prefix of one followed by *, or *")]
    bodies: Literal["keep", "address"]


class PcpSettings(LinkMemory, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[pcp]` of the configuration."""

    name: Annotated[str, Meta(description="common name of the broker, used in hops", pattern=r"^[\w\-.:]+$")] = "broker"
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="port to listen on; 0 takes any free one")] = 8142
    mount_v1: Annotated[MountPath, Meta(description="path of protocol version 1")] = "/pcp"
    mount_v2: Annotated[MountPath, Meta(description="path of protocol version 2")] = "/pcp2"
    certificate: Annotated[str | None, Meta(description="PEM file with the broker's certificate chain")] = None
    key: Annotated[str | None, Meta(description="PEM file with the broker's private key")] = None
    authority: Annotated[str | None, Meta(description="PEM file with the CA that signs clients")] = None
    revocations: Annotated[
        str | None, Meta(description="PEM or DER file with the CA's revocation list; reread on change")
    ] = None
    insecure_plain: Annotated[bool, Meta(description="plain WebSocket without identities; loopback only")] = False
    journal: Annotated[str | None, Meta(description="path of the journal; none keeps no journal")] = None
    signing_key: Annotated[str | None, Meta(description="file of the key that signs the journal's checkpoints")] = None
    durability: Annotated[
        Literal["relaxed", "full"], Meta(description="full: reports and deliveries wait for the disk")
    ] = "relaxed"
    metrics_host: Annotated[str, Meta(description="address of /metrics and /healthz")] = "127.0.0.1"
    metrics_port: Annotated[Port | None, Meta(description="port of /metrics and /healthz; none switches them off")] = (
        None
    )
    event_loop: Annotated[Literal["asyncio", "uvloop"], Meta(description="uvloop must be installed")] = "asyncio"
    access_log: Annotated[bool, Meta(description="one line per message at INFO")] = True
    restore_hops: Annotated[
        int,
        Meta(
            description="hops at the end of the journal that are read at start-up; messages accepted earlier are not"
            " delivered again, and the audit reports those without an outcome",
            ge=0,
        ),
    ] = 1_000_000
    max_message_bytes: Annotated[Bytes, Meta(description="larger messages are refused", le=2**31 - 1)] = (
        64 * 1024 * 1024
    )
    max_connections: Annotated[Count, Meta(description="more are refused with 503 before the upgrade")] = 100_000
    max_connections_per_address: Annotated[Count, Meta(description="connections from one address or IPv6 /64")] = 10_000
    client_messages_per_s: Annotated[
        Count,
        Meta(
            description="frames per second from one certificate; above that it is read more slowly; four entries of a"
            " long list of targets, or of an inventory it asks for, count as one"
        ),
    ] = 10_000
    client_bytes_per_s: Annotated[Bytes, Meta(description="bytes per second from one certificate")] = 64 * 1024 * 1024
    association_timeout_ms: Annotated[Milliseconds, Meta(description="time limit for associating, v1")] = 30_000
    idle_timeout_ms: Annotated[Milliseconds, Meta(description="silence after which a client is dropped")] = 360_000
    handshake_timeout_ms: Annotated[Milliseconds, Meta(description="time limit for TLS and the upgrade")] = 10_000
    max_handshakes: Annotated[
        Count, Meta(description="concurrent TLS handshakes; above that the oldest is dropped")
    ] = 500
    handshakes_per_s: Annotated[Count, Meta(description="TLS handshakes started per second; more wait")] = 300
    drain_timeout_ms: Annotated[
        Milliseconds, Meta(description="time limit for writing queued frames when stopping")
    ] = 5_000
    clock_skew_ms: Annotated[int, Meta(description="tolerated after `expires`", ge=0, le=24 * 3600 * 1000)] = 0
    reply_ttl_ms: Annotated[Milliseconds, Meta(description="lifetime of the broker's own messages")] = 60_000
    notice_ttl_ms: Annotated[Milliseconds, Meta(description="how long ttl_expired waits for a sender that is away")] = (
        3_600_000
    )
    translated_ttl_ms: Annotated[Milliseconds, Meta(description="lifetime given to v2 messages for v1 clients")] = (
        60_000
    )
    inventory_batch_ms: Annotated[Milliseconds, Meta(description="how often inventory updates are sent")] = 1_000
    hops: Annotated[bool, Meta(description="append a debug chunk with hops to what is forwarded in v1")] = False
    queue_bytes: Annotated[Bytes, Meta(description="queue of one connection; above that it is closed as slow")] = (
        8 * 1024 * 1024
    )
    memory_bytes: Annotated[
        Bytes,
        Meta(
            description="memory for messages, beyond 41 KB per connection: half for messages waiting for clients, a"
            " quarter for incomplete ones, an eighth each for those not yet handled and those not yet sent"
        ),
    ] = 1024**3
    redelivery_messages: Annotated[Count, Meta(description="messages waiting for one client to reconnect")] = 1_000
    sender_queue_messages: Annotated[
        Count,
        Meta(
            description="waiting messages of one sender (a name in certificates), counted per recipient; above that its"
            " oldest are dropped"
        ),
    ] = 100_000
    sender_queue_bytes: Annotated[Bytes, Meta(description="bytes of the waiting messages of one sender")] = (
        128 * 1024 * 1024
    )
    max_lifetime_ms: Annotated[
        Milliseconds, Meta(description="longest time a message waits for its recipient, whatever its `expires` says")
    ] = 7 * 24 * 3600 * 1000
    evidence_bytes: Annotated[int, Meta(description="bytes kept of a rejected message", ge=0)] = 4_096
    refusals_per_s: Annotated[
        Count,
        Meta(description="refusals per client and second that are answered and journaled; of more only the number"),
    ] = 100
    total_refusals_per_s: Annotated[Count, Meta(description="the same for all clients together")] = 1_000
    revocation_spread_ms: Annotated[
        Milliseconds, Meta(description="time over which the closing of revoked clients is spread")
    ] = 10_000
    groups: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="lists of certificate names and patterns with *; rules and types refer to them as @group"),
    ] = msgspec.field(default_factory=dict)
    types: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="which certificates may claim which client type: names, patterns with *, @groups;"
            " nobody may claim a type that is not listed; if none is listed, anybody may claim any"
        ),
    ] = msgspec.field(default_factory=dict)
    rules: Annotated[tuple[Rule, ...], Meta(description="authorisation; no match denies")] = ()
    bodies: Annotated[tuple[BodyRule, ...], Meta(description="what the journal keeps; no match keeps")] = ()

    def __post_init__(self) -> None:
        if self.mount_v1 == self.mount_v2:
            raise ConfigError(f"mount_v1 and mount_v2 are both {self.mount_v1!r}, expected different paths")
        for group, names in self.groups.items():
            check_names([f"@{group}"], self.groups, where="groups")
            check_names(names, self.groups, where=f"groups.{group}", allows_groups=False)
        for client_type, names in self.types.items():
            check_names(names, self.groups, where=f"types.{client_type}")
        for number, rule in enumerate(self.rules):
            for field, uri in (("sender", rule.sender), ("target", rule.target)):
                name = parse_uri(uri).name
                if name:
                    check_names([name], self.groups, where=f"rules[{number}].{field}")

    @property
    def queue_share(self) -> int:
        """Bytes for waiting messages."""
        return self.memory_bytes // 2

    @property
    def server_uri(self) -> str:
        """The broker's own URI, as used in hops and journals."""
        return f"pcp://{self.name}/server"


def check_settings(settings: PcpSettings) -> None:
    """Reject what would be unsafe or cannot work; raises ConfigError."""
    if settings.insecure_plain:
        is_loopback = settings.host == "localhost"
        with contextlib.suppress(ValueError):
            is_loopback = is_loopback or ipaddress.ip_address(settings.host).is_loopback
        if not is_loopback:
            raise ConfigError(f"host {settings.host!r} with insecure_plain, expected a loopback address")
        return
    for name in ("certificate", "key", "authority"):
        if not getattr(settings, name):
            raise ConfigError(
                f"{name} is missing: TLS needs certificate, key and authority; to try without, give insecure_plain "
                "(--insecure-plain), on loopback only"
            )


ALLOW_ALL = (Rule(allow=True, name="allow all"),)
