"""The links of a node, and the frames held on them until their signers' keys arrive.

Frames of one link are handled strictly in order. If a key is missing, only this link waits: one unreachable key server
never blocks the traffic of others. The number of links, the frames held on each, and the total bytes held are bounded.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.model.wire import CloseLink, LinkId
from dovetail.won import vocabulary as v
from dovetail.won.events import KeyWanted
from dovetail.won.keys import KeyRing, check_address, read_key_document
from dovetail.won.message import Bundle, decode_bundle
from dovetail.won.output_buffer import OutputBuffer
from dovetail.won.settings import WonSettings
from dovetail.won.signing import expected_signer
from dovetail.won.timers import Timers

CLOSE_TRY_AGAIN = 1013
_LINK_SHARE = 8
"""A link may hold one part in this many of all bytes that may be held."""


class LinkKind(enum.StrEnum):
    """Who is at the other end; the value is the label sent by the opener."""

    OWNER = "owner"
    NODE = "node"


class Link:
    """One WebSocket, seen from a node; `decoded` is its first frame, decoded."""

    __slots__ = ("atoms", "decoded", "frames", "held_bytes", "kind", "name", "node", "waiting")

    def __init__(self, name: LinkId, kind: LinkKind, node: str | None = None) -> None:
        self.name = name
        self.kind = kind
        self.node = node
        self.frames: deque[bytes] = deque()
        self.decoded: Bundle | None = None
        self.held_bytes = 0
        self.waiting: set[str] = set()
        self.atoms: set[str] = set()

    @property
    def counterpart(self) -> str:
        """How the journal names the other end if no genuine message identifies it."""
        return self.node or f"{self.kind.value}:{self.name}"


class Links:
    """All links of a node. `take` handles a bundle whose signers' keys are known; `closed` is called for every end."""

    def __init__(
        self,
        keys: KeyRing,
        settings: WonSettings,
        output: OutputBuffer,
        *,
        take: Callable[[Bundle, Link, int], None],
        closed: Callable[[LinkId, int], None],
    ) -> None:
        self._keys = keys
        self._settings = settings
        self._output = output
        self._take = take
        self._closed = closed
        self._links: dict[LinkId, Link] = {}
        self._deadlines = Timers()
        self._wanted: dict[str, dict[LinkId, None]] = {}
        self._held_bytes = 0

    @property
    def waiting(self) -> int:
        """Number of links waiting for a key."""
        return len(self._deadlines)

    def count(self) -> dict[LinkKind, int]:
        """Number of links of each kind."""
        kinds = [link.kind for link in self._links.values()]
        return {kind: kinds.count(kind) for kind in set(kinds)}

    def accept(self, name: LinkId, kind: LinkKind) -> None:
        """Accept a link opened by the other end; at the limit it is closed again."""
        if len(self._links) >= self._settings.max_links:
            self._output.send(CloseLink(name, CLOSE_TRY_AGAIN))
        else:
            self._links[name] = Link(name, kind)

    def add(self, name: LinkId, node: str | None) -> None:
        """A link that we requested is open."""
        self._links[name] = Link(name, LinkKind.NODE, node)

    def remove(self, name: LinkId) -> Link | None:
        """A link has ended."""
        link = self._links.pop(name, None)
        self._deadlines.set(name, None)
        if link is not None:
            self._held_bytes -= link.held_bytes
            for uri in link.waiting & self._wanted.keys():
                self._wanted[uri].pop(name, None)
                if not self._wanted[uri]:
                    del self._wanted[uri]
        return link

    def receive(self, data: bytes, name: LinkId, now: int) -> None:
        """Handle a frame received on a link."""
        link = self._links.get(name)
        if link is None:
            return
        if link.waiting and (
            len(link.frames) >= self._settings.max_held_frames
            or link.held_bytes + len(data) > self._settings.held_share // _LINK_SHARE
            or self._held_bytes + len(data) > self._settings.held_share
        ):
            error = RemoteProtocolError(Reason.QUEUE_FULL, "too many frames wait for a key")
            self._output.reject_frame(data, link.counterpart, error, now)
            self._close(link, now)
            return
        link.frames.append(data)
        self._hold(link, len(data))
        if not link.waiting:
            self._drain(link, now)

    def receive_document(self, uri: str, data: bytes | None, now: int) -> None:
        """Handle the document found at `uri`, None if there was none."""
        key = read_key_document(uri, data) if data is not None else None
        if key is not None:
            self._keys.add(uri, key, now)
        for name in self._wanted.pop(uri, ()):
            link = self._links.get(name)
            if link is None:
                continue
            link.waiting.discard(uri)
            if key is None:
                self._reject_unverifiable(link, uri, now)
            elif not link.waiting:
                self._drain(link, now)

    def handle_timer(self, now: int) -> None:
        """Stop waiting for keys that did not arrive in time."""
        for name in self._deadlines.pop_due(now):
            link = self._links[name]
            self._reject_unverifiable(link, min(link.waiting), now)

    def handle_clock_step(self, now: int) -> None:
        """The clock was set back: links that wait for keys wait as if they had begun now."""
        for name in self._deadlines:
            self._deadlines.set(name, now + self._settings.key_timeout_ms * 1000)

    def next_timer(self) -> int | None:
        """When to call `handle_timer`."""
        return self._deadlines.next()

    def _drain(self, link: Link, now: int) -> None:
        while link.frames and link.name in self._links:
            if not self._take_first(link, now):
                self._deadlines.set(link.name, now + self._settings.key_timeout_ms * 1000)
                return
            self._hold(link, -len(link.frames.popleft()))
            link.decoded = None
        self._deadlines.set(link.name, None)

    def _hold(self, link: Link, size: int) -> None:
        link.held_bytes += size
        self._held_bytes += size

    def _take_first(self, link: Link, now: int) -> bool:
        """Handle the first frame; False if it must wait for keys, which `link.waiting` then holds."""
        data = link.frames[0]
        try:
            bundle = link.decoded or decode_bundle(data, self._settings.limits)
            link.decoded = bundle
            for message in bundle.messages:
                check_address(message)
            if link.kind is LinkKind.NODE:
                link.waiting = self._request_keys(bundle, link, now)
                if link.waiting:
                    return False
            self._take(bundle, link, now)
        except RemoteProtocolError as error:
            self._output.reject_frame(data, link.counterpart, error, now)
        return True

    def _request_keys(self, bundle: Bundle, link: Link, now: int) -> set[str]:
        """The signers whose keys are missing; raises RemoteProtocolError for own atoms: the node has all their keys."""
        missing: dict[str, None] = {}
        for message in bundle.messages:
            signer = expected_signer(message)
            if self._keys.find(signer, now) is not None or signer in missing:
                continue
            if self._keys.is_pinned(v.node_of_atom(signer)):
                raise RemoteProtocolError(Reason.UNKNOWN_ATOM, f"{signer} does not exist here")
            missing[signer] = None
        for signer in missing:
            self._wanted.setdefault(signer, {})[link.name] = None
            self._output.emit(KeyWanted(signer, link.name))
        return set(missing)

    def _reject_unverifiable(self, link: Link, uri: str, now: int) -> None:
        """Refuse the frame without a response because the key was not found, and close the link.

        The sender opens a new link after a pause and sends everything again, in order: continuing with the next frame
        would let a message overtake the Connect before it.
        """
        error = RemoteProtocolError(Reason.UNKNOWN_KEY, f"no key of {uri} was found")
        self._output.reject_frame(link.frames[0], link.counterpart, error, now)
        self._close(link, now)

    def _close(self, link: Link, now: int) -> None:
        self._output.send(CloseLink(link.name, CLOSE_TRY_AGAIN))
        self._closed(link.name, now)
