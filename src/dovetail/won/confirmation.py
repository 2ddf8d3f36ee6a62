"""Which earlier responses a new SuccessResponse references (`msg:previousMessage`).

Atom container: a list of unconfirmed responses. A new response references all of it and takes its place.
Connection container: each side keeps a list C of the other side's responses. When a response s of the other side is
appended, then for each p in s.previousMessage that is one of ours, p's own previousMessage set leaves C: the other
side has seen that we saw them. Then s enters C. A new response of ours references all of C and never enters it.
"""

from __future__ import annotations

from collections.abc import Iterable


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
        """A SuccessResponse entered the container."""
        for uri in previous:
            self._unconfirmed.pop(uri, None)
        self._unconfirmed[response] = None


class ConnectionConfirmations:
    """One side's list C of the other side's responses; each step costs only what is still unconfirmed."""

    __slots__ = ("_others", "_own_previous", "own")

    def __init__(self) -> None:
        self._others: dict[str, None] = {}
        self._own_previous: dict[str, tuple[str, ...]] = {}
        self.own: set[str] = set()

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """C: what the next SuccessResponse of this side must reference."""
        return tuple(self._others)

    def preview_other(self, response: str, previous: Iterable[str]) -> tuple[str, ...]:
        """C as it will be after `append_other` with the same arguments."""
        gone = {confirmed for uri in previous for confirmed in self._own_previous.get(uri, ())}
        return (*(uri for uri in self._others if uri not in gone), response)

    def append_own(self, response: str, previous: Iterable[str]) -> None:
        """This side made a SuccessResponse; it never enters its own C."""
        self.own.add(response)
        self._own_previous[response] = tuple(previous)

    def append_other(self, response: str, previous: Iterable[str]) -> None:
        """A SuccessResponse of the other side entered this container."""
        for uri in previous:
            # Once confirmed, p's set can never matter again: each response enters C only once.
            for confirmed in self._own_previous.pop(uri, ()):
                self._others.pop(confirmed, None)
        self._others[response] = None
