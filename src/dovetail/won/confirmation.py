"""Which earlier responses a new SuccessResponse references (`msg:previousMessage`).

Atom container: a list of unconfirmed responses. A new response references all of them and replaces them.

Connection container: each side keeps a list C of the other side's responses. When a response s of the other side is
appended, the previousMessage set of each p in s.previousMessage that is one of ours is removed from C: the other side
has seen that we saw them. Then s is added to C. A new response of ours references all of C and is never added to it.

After an outage thousands of responses may be unconfirmed at once, so the number of references is bounded. At the bound
a second response s2 references s1, the additions to C, and the last s2 of its own side, which commits to the rest; the
other side's list then needs only the newest of these s2. The other side knows that s2, because a node sends its
responses in order on the link that brought the messages. A first response s1 travels on a different link from its
side's s2, so it references only the oldest of C, starting with those that no own s2 commits to; the next responses
reference the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice


class AtomConfirmations:
    """The unconfirmed responses of an atom's message container."""

    __slots__ = ("_unconfirmed",)

    def __init__(self) -> None:
        self._unconfirmed: dict[str, None] = {}

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """What the next SuccessResponse must reference."""
        return tuple(self._unconfirmed)

    def append(self, response: str, previous: Iterable[str]) -> None:
        """Add a SuccessResponse to the container."""
        for uri in previous:
            self._unconfirmed.pop(uri, None)
        self._unconfirmed[response] = None


class ConnectionConfirmations:
    """One side's list C of the other side's responses; each step takes constant time whatever the length of C.

    `known` holds all SuccessResponses of the container: those that may be referenced.
    """

    __slots__ = ("_last_second", "_others", "_own_previous", "_uncommitted", "known")

    def __init__(self) -> None:
        self.known: set[str] = set()
        self._others: dict[str, None] = {}
        # the part of C not committed to by the last own s2
        self._uncommitted: dict[str, None] = {}
        self._own_previous: dict[str, tuple[str, ...]] = {}
        self._last_second: str | None = None

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """C."""
        return tuple(self._others)

    def references_of_first(self, limit: int) -> tuple[str, ...]:
        """What the next s1 of this side references."""
        if len(self._others) <= limit:
            return tuple(self._others)
        rest = (uri for uri in self._others if uri not in self._uncommitted)
        return tuple(islice(chain(self._uncommitted, rest), limit))

    def references_of_second(self, first: str, first_previous: Iterable[str], limit: int) -> tuple[str, ...]:
        """What the next s2 of this side references when it answers the message with this s1."""
        gone = self._find_confirmed(first_previous)[1]
        if len(self._others) - len(gone) < limit:
            return (*(uri for uri in self._others if uri not in gone), first)
        rest = (uri for uri in self._uncommitted if uri not in gone)
        own = () if self._last_second is None else (self._last_second,)
        return (*own, *islice(rest, limit - 1 - len(own)), first)

    def append_own(self, response: str, previous: Iterable[str], *, is_second: bool) -> None:
        """Record a SuccessResponse made by this side; it never enters its own C."""
        self.known.add(response)
        named = self._own_previous[response] = tuple(previous)
        if not is_second:
            return
        if self._last_second not in named:
            self._uncommitted = dict(self._others)
        for uri in named:
            self._uncommitted.pop(uri, None)
        self._last_second = response

    def append_other(self, response: str, previous: Iterable[str]) -> None:
        """Add a SuccessResponse of the other side."""
        confirming, gone = self._find_confirmed(previous)
        for uri in confirming:
            # Once confirmed, p's set is never needed again: each response enters C only once.
            del self._own_previous[uri]
        for uri in gone:
            del self._others[uri]
            self._uncommitted.pop(uri, None)
        self.known.add(response)
        self._others[response] = self._uncommitted[response] = None

    def _find_confirmed(self, previous: Iterable[str]) -> tuple[set[str], set[str]]:
        """Our responses that these references confirm, directly or through other own s2; and what is removed from C."""
        confirming: set[str] = set()
        gone: set[str] = set()
        open_ends = list(previous)
        while open_ends:
            uri = open_ends.pop()
            if uri in self._others:
                gone.add(uri)
            elif uri in self._own_previous and uri not in confirming:
                confirming.add(uri)
                open_ends.extend(self._own_previous[uri])
        return confirming, gone
