"""Named deadlines, earliest first; setting, moving and finding one is cheap however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

_SPARE = 64


class Timers:
    """One deadline per name; setting it again replaces it."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        # Entries of moved or cancelled deadlines stay until they reach the front.
        self._heap: list[tuple[int, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._due

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._due))

    def __len__(self) -> int:
        return len(self._due)

    def set(self, name: str, due: int | None) -> None:
        """Set the deadline of a name; None cancels it."""
        if due is None:
            self._due.pop(name, None)
        elif self._due.get(name) != due:
            self._due[name] = due
            heappush(self._heap, (due, name))
        if len(self._heap) > 2 * len(self._due) + _SPARE:
            self._heap = [(when, each) for each, when in self._due.items()]
            heapify(self._heap)

    def next(self) -> int | None:
        """The earliest deadline."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> list[str]:
        """Cancel and return all names whose deadline has passed, earliest first."""
        names = []
        while (due := self.next()) is not None and due <= now:
            names.append(heappop(self._heap)[1])
            del self._due[names[-1]]
        return names
