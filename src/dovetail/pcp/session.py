"""One connection as the broker sees it: who is behind it, whether it may send, and what waits to be written to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dovetail.model.wire import LinkId
from dovetail.pcp.authorization import Policy
from dovetail.pcp.frame_template import Template
from dovetail.pcp.message import Message, OutgoingMessage
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.uri import PatternSet, client_uri

DEFAULT_CLIENT_TYPE = "agent"
MAX_PATH_CHARS = 2048
HELD_ENTRY_BYTES = 512
UNIDENTIFIED = "unidentified"


class Mount(NamedTuple):
    """What the path of an upgrade request says: protocol version, and client type if given."""

    version: int
    client_type: str | None


class Permission(NamedTuple):
    """What one session may do with one message type, and whether the journal stores its bytes."""

    policy: Policy
    keeps_body: bool


class DeliverToOne(msgspec.Struct, frozen=True):
    """The decision on the common message: accept it for the one client it is addressed to, which is connected."""

    receiver: Session
    keeps_body: bool


class Subscription(NamedTuple):
    """A subscription to inventory changes; `start` is its first change in the current batch."""

    patterns: PatternSet
    start: int


class Held:
    """One message that waits for one client: in the outbox of `session`, or, if that is None, for the client's return.

    A retry is one whose earlier attempt broke. `message` is None once it has its outcome. `may_have_arrived`: it had no
    outcome when the broker stopped, perhaps between handing it over and recording that.
    """

    __slots__ = ("is_retry", "may_have_arrived", "message", "session", "size", "uri")

    def __init__(self, message: Message, uri: str, *, is_retry: bool, may_have_arrived: bool = False) -> None:
        self.message: Message | None = message
        self.uri = uri
        self.size = len(message.payload) + HELD_ENTRY_BYTES
        self.is_retry = is_retry
        self.may_have_arrived = may_have_arrived
        self.session: Session | None = None


_NOTHING_QUEUED: deque[Held] = deque()


class Session:
    """State of one connection; `uri` is None until a v1 client has associated.

    `common_name` is the certificate's; None on a plain connection, where a v1 client's claim is believed.
    """

    __slots__ = (
        "common_name",
        "connection",
        "decision",
        "handed",
        "is_closing",
        "is_direct",
        "is_paused",
        "is_unsettled",
        "is_waiting",
        "last_seen_us",
        "last_target",
        "mount",
        "outbox",
        "outbox_bytes",
        "pending",
        "permissions",
        "subscription",
        "template",
        "unsent",
        "uri",
        "uri_alone",
        "version",
    )

    def __init__(self, connection: LinkId, common_name: str | None, mount: Mount, now: int) -> None:
        self.connection = connection
        self.common_name = common_name
        self.mount = mount
        self.version = mount.version
        self.uri: str | None = None
        self.uri_alone: tuple[str, ...] = (self.address_for_replies,)  # created once, for every delivery's observation
        self.last_seen_us = now
        self.is_closing = False
        self.is_paused = False
        self.is_waiting = False  # for the outcome of what was handed to an earlier connection of this client
        self.is_unsettled = False  # ended, and what was handed to it has no outcome yet
        self.is_direct = False  # associated, v1, nothing queued: what is routed to it goes straight into `pending`
        self.pending: list[OutgoingMessage] = []
        self.handed: list[OutgoingMessage] = []  # passed to the transport since the last `events`
        self.unsent: Sequence[OutgoingMessage] = ()  # passed to the transport, not taken by the kernel
        self.outbox = _NOTHING_QUEUED
        self.outbox_bytes = 0
        self.permissions: dict[str, Permission] = {}
        self.subscription: Subscription | None = None
        self.template: Template | None = None  # of the last message; `decision` is the decision on it
        self.decision: DeliverToOne | None = None
        self.last_target = ""

    @property
    def address_for_replies(self) -> str:
        """Where replies go: the session's URI, or the most likely one before it has any."""
        return self.uri or client_uri(self.common_name or UNIDENTIFIED, self.mount.client_type or DEFAULT_CLIENT_TYPE)

    def associate(self, uri: str) -> None:
        """Give the session this URI."""
        self.uri = uri
        self.uri_alone = (uri,)

    def drop_template(self) -> None:
        """Decode and decide the next message in full."""
        self.template = self.decision = None

    def open_outbox(self) -> deque[Held]:
        """The outbox for adding to it; most connections never need their own."""
        if self.outbox is _NOTHING_QUEUED:
            self.outbox = deque()
        return self.outbox

    def refresh_direct(self) -> None:
        """Call this after changing anything that `is_direct` depends on."""
        self.is_direct = (
            self.version == 1
            and self.uri is not None
            and not (self.is_paused or self.outbox or self.is_closing or self.is_waiting)
        )


def parse_mount(path: str, settings: PcpSettings) -> Mount | None:
    """Version and client type from the path of an upgrade request; None if nothing is mounted there."""
    if len(path) > MAX_PATH_CHARS:
        return None
    path = path.partition("?")[0]
    for version, mount in ((1, settings.mount_v1), (2, settings.mount_v2)):
        if path in (mount, mount + "/"):
            return Mount(version, None)
        if path.startswith(mount + "/") and "/" not in path[len(mount) + 1 :]:
            return Mount(version, path[len(mount) + 1 :])
    return None
