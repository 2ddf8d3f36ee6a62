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
_ROLE = Meta(description="`dovetail up --role` runs only what has one of the named roles.")
_DURABILITY = Meta(description="`full` acknowledges after fsync, `relaxed` earlier; `journal.durability` if not given.")
_METRICS = Meta(description="Address of the server's own /metrics and /healthz; none if not given.")
Durability = Literal["full", "relaxed"]
_JournalPath = Annotated[
    str | None, path_text, Meta(description="The journal; a file in `journal.directory` if not given.")
]


class PcpServerSection(PcpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pcp broker. Its certificate, key, CA and signing key are expected in `keys.directory`."""

    role: Annotated[Role, _ROLE] = ""
    certificate: Annotated[
        str | None, path_text, Meta(description="The certificate (PEM); NAME.pem in `keys.directory` if not given.")
    ] = None
    key: Annotated[str | None, path_text, Meta(description="Its private key; NAME.key if not given.")] = None
    authority: Annotated[
        str | None, path_text, Meta(description="The CA that signs clients (PEM); ca.pem if not given.")
    ] = None
    revocations: Annotated[
        str | None,
        path_text,
        Meta(description="The CA's revocation list, reread when it changes; crl.pem, if it exists, if not given."),
    ] = None
    journal: _JournalPath = None
    signing_key: Annotated[
        str | None,
        path_text,
        Meta(description="The key that signs checkpoints; by default the one named after the broker's URI."),
    ] = None
    durability: Annotated[Durability | None, _DURABILITY] = None  # type: ignore[assignment]
    groups: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="Lists of certificate names and patterns with *; rules and types refer to them as @group.",
            examples=[{"controllers": ["controller-*"]}],
        ),
    ] = msgspec.field(default_factory=dict)
    types: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="Which certificates may claim which client type: names, patterns with *, @groups."
            " Nobody may claim a type that is not listed; if no type is listed, anybody may claim any.",
            examples=[{"controller": ["@controllers"], "agent": ["*"]}],
        ),
    ] = msgspec.field(default_factory=dict)
    rules: Annotated[
        tuple[Rule, ...],
        Meta(
            description="Who may send what to whom; the first matching rule decides, no match denies.",
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
    """A won node. Its certificate, key, CA and signing key are expected in `keys.directory`."""

    uri: Annotated[
        str,
        Meta(
            pattern=rf"^https://[^\s/?#@]+{NODE_PATH}$",
            description="The node's URI, its permanent public name.",
            extra={"allowed": f"https://HOST[:PORT]{NODE_PATH}"},
            examples=["https://localhost:8443/won/resource"],
        ),
    ]
    role: Annotated[Role, _ROLE] = ""
    listen: Annotated[ListenTcp, Meta(description="Address to listen on.")] = "127.0.0.1:8443"
    certificate: Annotated[
        str | None, path_text, Meta(description="The certificate (PEM); HOST.pem in `keys.directory` if not given.")
    ] = None
    key: Annotated[str | None, path_text, Meta(description="Its private key; HOST.key if not given.")] = None
    authority: Annotated[
        str | None, path_text, Meta(description="The CA that certifies other nodes; ca.pem if not given.")
    ] = None
    journal: _JournalPath = None
    signing_key: Annotated[
        str | None,
        path_text,
        Meta(description="The key that signs messages and checkpoints; by default the one named after the node's URI."),
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
            description="The swarm's display name; part of URIs.",
            examples=["example"],
        ),
    ]
    secret: Annotated[Hex20 | None, is_private, Meta(description="Secret of a private swarm; never shown.")] = None
    role: Annotated[Role, _ROLE] = ""
    peer: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9._-]{1,64}$",
            description="The peer's name on this site; distinguishes several peers of one swarm.",
        ),
    ] = "peer"
    listen: Annotated[
        tuple[ListenUdp, ...], Meta(description="Addresses to listen on, one for IPv4 and one for IPv6.")
    ] = ("127.0.0.1:4711",)
    bootstrap: Annotated[tuple[Endpoint, ...], Meta(description="Peers to contact first, each HOST:PORT.")] = ()
    directory: Annotated[
        str | None,
        path_text,
        Meta(description="Key, journal and control socket; a folder in `journal.directory` if not given."),
    ] = None
    durability: Annotated[Durability | None, _DURABILITY] = None
    metrics: Annotated[ListenTcp | None, _METRICS] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Threads for the proof of work; one per core if not given."),
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
