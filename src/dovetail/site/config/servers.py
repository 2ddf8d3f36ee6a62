"""The tables of servers: `[[pcp]]`, `[[won]]` and `[[swarm]]`, one for each server that `dovetail up` runs.

Each has the fabric's own settings and what the site adds: where the server listens, what it keeps, and its role. Unset
values come from the sections `[journal]` and `[keys]`; `site/servers` combines them.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from dovetail.pcp.settings import PcpSettings, Rule
from dovetail.pcp.uri import BROKER_URI
from dovetail.pcp.vocabulary import ASSOCIATE_REQUEST
from dovetail.site.config.fields import Endpoint, ListenTcp, ListenUdp, Section, is_private, path_text
from dovetail.swarm.settings import Hex20, PeerSettings, SwarmSettings
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import NODE_PATH

Role = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]*$", max_length=64)]
_ROLE = Meta(description="With `dovetail up --role`, only what has one of the roles named there is run.")
_DURABILITY = Meta(
    description="`full` acknowledges after fsync, `relaxed` before. As `journal.durability` where not given."
)
_METRICS = Meta(description="Address of the server's own /metrics and /healthz; none where not given.")
Durability = Literal["full", "relaxed"]
_JournalPath = Annotated[
    str | None, path_text, Meta(description="The journal; a file in `journal.directory` where not given.")
]


class PcpServerSection(PcpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pcp broker. Its certificate, key, CA and signing key are looked for in `keys.directory`."""

    role: Annotated[Role, _ROLE] = ""
    certificate: Annotated[
        str | None, path_text, Meta(description="The certificate (PEM); NAME.pem among the keys where not given.")
    ] = None
    key: Annotated[str | None, path_text, Meta(description="Its private key; NAME.key where not given.")] = None
    authority: Annotated[
        str | None, path_text, Meta(description="The CA that signs clients (PEM); ca.pem where not given.")
    ] = None
    revocations: Annotated[
        str | None,
        path_text,
        Meta(description="The CA's revocation list, watched; crl.pem where not given and there is one."),
    ] = None
    journal: _JournalPath = None
    signing_key: Annotated[
        str | None,
        path_text,
        Meta(description="The key that signs checkpoints; that of the broker's URI where not given."),
    ] = None
    durability: Annotated[Durability | None, _DURABILITY] = None  # type: ignore[assignment]
    groups: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="Lists of certificates' names and patterns with *, for rules and types to name as @group.",
            examples=[{"controllers": ["controller-*"]}],
        ),
    ] = msgspec.field(default_factory=dict)
    types: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="Whose certificates may claim which client type: names, patterns with *, @groups."
            " A type that is not listed may be claimed by nobody; without any list, by everybody.",
            examples=[{"controller": ["@controllers"], "agent": ["*"]}],
        ),
    ] = msgspec.field(default_factory=dict)
    rules: Annotated[
        tuple[Rule, ...],
        Meta(
            description="Who may send what to whom; the first match decides, no match denies.",
            examples=[
                [
                    {"name": "associate", "message_type": ASSOCIATE_REQUEST, "target": BROKER_URI, "allow": True},
                    {"name": "controllers command", "sender": "pcp://*/controller", "allow": True},
                    {
                        "name": "agents answer",
                        "sender": "pcp://*/agent",
                        "target": "pcp://*/controller",
                        "allow": True,
                    },
                ]
            ],
        ),
    ] = ()

    @property
    def label(self) -> str:
        """The name of the process."""
        return f"pcp/{self.name}"

    def listens(self) -> list[tuple[str, str]]:
        """Kind and address of everything it listens on."""
        metrics = [("tcp", join_host(self.metrics_host, self.metrics_port))] if self.metrics_port is not None else []
        return [("tcp", join_host(self.host, self.port)), *metrics]


class WonServerSection(Section, frozen=True, kw_only=True):
    """A won node. Its certificate, key, CA and signing key are looked for in `keys.directory`."""

    uri: Annotated[
        str,
        Meta(
            pattern=rf"^https://[^\s/?#@]+{NODE_PATH}$",
            description="The node's URI, by which it is known to everybody for ever.",
            extra={"allowed": f"https://HOST[:PORT]{NODE_PATH}"},
            examples=["https://localhost:8443/won/resource"],
        ),
    ]
    role: Annotated[Role, _ROLE] = ""
    listen: Annotated[ListenTcp, Meta(description="Address to listen on.")] = "127.0.0.1:8443"
    certificate: Annotated[
        str | None, path_text, Meta(description="The certificate (PEM); HOST.pem among the keys where not given.")
    ] = None
    key: Annotated[str | None, path_text, Meta(description="Its private key; HOST.key where not given.")] = None
    authority: Annotated[
        str | None, path_text, Meta(description="The CA that certifies other nodes; ca.pem where not given.")
    ] = None
    journal: _JournalPath = None
    signing_key: Annotated[
        str | None,
        path_text,
        Meta(description="The key that signs messages and checkpoints; that of the node's URI where not given."),
    ] = None
    durability: Annotated[Durability | None, _DURABILITY] = None
    metrics: Annotated[ListenTcp | None, _METRICS] = None
    limits: WonSettings = WonSettings()

    @property
    def host(self) -> str:
        """The host in its URI."""
        return urlsplit(self.uri).hostname or ""

    @property
    def label(self) -> str:
        """The name of the process."""
        return f"won/{urlsplit(self.uri).netloc}"

    def listens(self) -> list[tuple[str, str]]:
        """Kind and address of everything it listens on."""
        return [("tcp", self.listen), *([("tcp", self.metrics)] if self.metrics else [])]


class SwarmServerSection(SwarmSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A peer of a swarm. The keys from `name` to `secret` are the agreement: the same for all peers."""

    name: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            description="What people call the swarm; part of URIs.",
            examples=["example"],
        ),
    ]
    secret: Annotated[Hex20 | None, is_private, Meta(description="Secret of a private swarm; never shown.")] = None
    role: Annotated[Role, _ROLE] = ""
    peer: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9._-]{1,64}$",
            description="What this peer is called here; tells several peers of one swarm apart.",
        ),
    ] = "peer"
    listen: Annotated[
        tuple[ListenUdp, ...], Meta(description="Addresses to listen on, one for IPv4 and one for IPv6.")
    ] = ("127.0.0.1:4711",)
    bootstrap: Annotated[tuple[Endpoint, ...], Meta(description="Peers to begin with, each HOST:PORT.")] = ()
    directory: Annotated[
        str | None,
        path_text,
        Meta(description="Key, journal and control socket; a folder in `journal.directory` where not given."),
    ] = None
    durability: Annotated[Durability | None, _DURABILITY] = None
    metrics: Annotated[ListenTcp | None, _METRICS] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Threads for the proof of work; one per core where not given."),
    ] = None
    tuning: PeerSettings = PeerSettings()

    @property
    def label(self) -> str:
        """The name of the process."""
        return f"swarm/{self.name}/{self.peer}"

    def listens(self) -> list[tuple[str, str]]:
        """Kind and address of everything it listens on."""
        return [*(("udp", each) for each in self.listen), *([("tcp", self.metrics)] if self.metrics else [])]


ServerSection = PcpServerSection | WonServerSection | SwarmServerSection


def join_host(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
