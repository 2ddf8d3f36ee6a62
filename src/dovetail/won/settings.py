"""Settings of a won node and its owners, with bounds."""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec
from msgspec import Meta

from dovetail.model.memory_shares import LinkMemory
from dovetail.won.canonical import WIRE, Limits


class WonSettings(LinkMemory, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and times of a won node and its owners."""

    max_frame_bytes: Annotated[
        int, Meta(ge=4096, le=16 << 20, description="largest dataset accepted from the wire")
    ] = 1 << 20
    max_message_quads: Annotated[int, Meta(ge=24, le=2000, description="statements of one message")] = 2000
    max_evidence_bytes: Annotated[
        int, Meta(ge=0, le=1 << 20, description="how much of a refused frame is kept in the journal")
    ] = 4096
    max_clock_skew_ms: Annotated[
        int,
        Meta(ge=1000, description="how far ahead of the node's clock a message may be, and how far off a registration"),
    ] = 1_800_000
    max_references: Annotated[
        int, Meta(ge=2, le=1000, description="earlier responses that one SuccessResponse references")
    ] = 64
    max_links: Annotated[int, Meta(ge=1, description="open links of owners and nodes")] = 4096
    max_links_per_address: Annotated[
        int, Meta(ge=1, description="links from one address or IPv6 /64; more are refused with 503 before the upgrade")
    ] = 1024
    max_atoms: Annotated[
        int, Meta(ge=1, description="atoms of a node, deleted ones included; anybody may make one")
    ] = 100_000
    max_held_frames: Annotated[int, Meta(ge=1, le=65536, description="frames of one link waiting for a key")] = 256
    max_held_bytes: Annotated[
        int, Meta(ge=4096, description="bytes of all frames waiting for keys; at most an eighth of `memory_bytes`")
    ] = 32 << 20
    memory_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="memory for messages, in addition to keys, verdicts, the index of each atom's log and 41 KB per"
            " link: a quarter each for recent and for incomplete messages, an eighth each for those not yet handled,"
            " those waiting for keys and those not yet sent",
        ),
    ] = 512 << 20
    key_timeout_ms: Annotated[int, Meta(ge=100, description="how long a frame waits for its signer's key")] = 10_000
    partner_key_timeout_ms: Annotated[
        int, Meta(ge=1, description="how long an owner waits for a partner's key before it continues with others")
    ] = 2_000
    max_deferred: Annotated[int, Meta(ge=1, description="log entries of an owner waiting for the keys of partners")] = (
        1_000
    )
    max_deferred_bytes: Annotated[int, Meta(ge=4096, description="bytes of these entries")] = 16 << 20
    max_cached_keys: Annotated[int, Meta(ge=16, description="public keys of other nodes and atoms kept in memory")] = (
        10_000
    )
    key_lifetime_ms: Annotated[int, Meta(ge=1000, description="a fetched key is fetched again after this time")] = (
        86_400_000
    )
    max_queue: Annotated[int, Meta(ge=1, description="messages waiting for one destination node")] = 100_000
    max_destinations: Annotated[
        int,
        Meta(
            ge=1,
            description="destination nodes with waiting messages; an atom adds one only while it holds fewer than are"
            " free, so one alone takes at most half",
        ),
    ] = 10_000
    max_dials: Annotated[int, Meta(ge=1, description="links to other nodes being opened at the same time")] = 64
    max_retries_per_s: Annotated[
        int, Meta(ge=1, le=1000, description="attempts a second to reach nodes that could not be reached before")
    ] = 50
    message_lifetime_ms: Annotated[
        int, Meta(ge=1000, description="a message not accepted by its recipient's node within this time has failed")
    ] = 604_800_000
    window: Annotated[int, Meta(ge=1, le=4096, description="unanswered messages in transit to one node")] = 256
    burst_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=16 << 20,
            description="bytes sent over one link before an answer: unanswered messages, or a page of a log;"
            " the last message may exceed it",
        ),
    ] = 8 << 20
    retry_ms: Annotated[int, Meta(ge=10, description="first pause before retrying a destination")] = 500
    max_retry_ms: Annotated[int, Meta(ge=10, description="longest pause before retrying a destination")] = 300_000
    response_timeout_ms: Annotated[
        int, Meta(ge=100, description="an unanswered message is sent again after this time")
    ] = 30_000
    catch_up_page: Annotated[int, Meta(ge=1, le=4096, description="log entries sent to a client per registration")] = (
        256
    )
    page_size: Annotated[int, Meta(ge=1, le=10_000, description="entries on one page of a container document")] = 200
    recent_messages: Annotated[
        int, Meta(ge=64, description="messages whose bytes are kept in memory; older ones are read from the journal")
    ] = 4096
    max_verdicts: Annotated[int, Meta(ge=64, description="addresses whose verification result is remembered")] = 65_536
    serve_conversations: Annotated[
        bool,
        Meta(
            description="serve connections, containers and messages to anybody; otherwise only to participating atoms,"
            " which sign their requests"
        ),
    ] = False
    fetch_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="non-public networks, such as 10.0.0.0/8, in which keys may be fetched and nodes dialled;"
            " a node named localhost may always use loopback"
        ),
    ] = ()

    def __post_init__(self) -> None:
        for network in self.fetch_networks:
            ipaddress.ip_network(network)

    @property
    def recent_share(self) -> int:
        """Bytes for cached messages that the journal has too."""
        return self.memory_bytes // 4

    @property
    def held_share(self) -> int:
        """Bytes of frames that may wait for keys."""
        return min(self.max_held_bytes, self.memory_bytes // 8)

    @property
    def limits(self) -> Limits:
        """Maximum size of a dataset accepted from the wire."""
        return msgspec.structs.replace(WIRE, dataset_bytes=self.max_frame_bytes, message_quads=self.max_message_quads)
