"""Certificate names as used in rules: one name, a pattern with `*` in it, or `@group`, a list of these.

    boss                    this name
    *.ops.example.com       names with this end; `web-*` this start, `web-*.example.com` both
    *                       every name
    @operators              the names and patterns of a group

A group contains names and patterns, no other groups. Matching is linear in the lengths of name and pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from dovetail.pcp.uri import WILDCARD

GROUP = "@"
NAME_PATTERN = r"^(@[A-Za-z0-9_.-]+|[\w.:*-]+)$"
Groups = Mapping[str, Sequence[str]]

_NAME = re.compile(NAME_PATTERN, re.ASCII)


class Names:
    """A set of names, by name and by pattern."""

    __slots__ = ("_exact", "_patterns", "is_all")

    def __init__(self, patterns: Iterable[str], groups: Groups) -> None:
        self._exact: set[str] = set()
        self._patterns: list[list[str]] = []
        self.is_all = False
        for pattern in _expand(patterns, groups):
            if pattern == WILDCARD:
                self.is_all = True
            elif WILDCARD in pattern:
                self._patterns.append(pattern.split(WILDCARD))
            else:
                self._exact.add(pattern)

    @property
    def only(self) -> str | None:
        """The single name that it consists of, if it is one."""
        if self.is_all or self._patterns or len(self._exact) != 1:
            return None
        return next(iter(self._exact))

    def match(self, name: str) -> bool:
        """True if a name is in the set."""
        return self.is_all or name in self._exact or any(_matches(name, parts) for parts in self._patterns)


def check_names(patterns: Iterable[str], groups: Groups, *, where: str, allows_groups: bool = True) -> None:
    """Raise ValueError naming an invalid name or unknown group."""
    for pattern in patterns:
        if _NAME.fullmatch(pattern) is None:
            raise ValueError(f"{where}: {pattern[:80]!r} is neither a name, a pattern with * nor @group")
        if pattern.startswith(GROUP) and not allows_groups:
            raise ValueError(f"{where}: {pattern!r} is a group; groups hold names and patterns")
        if pattern.startswith(GROUP) and pattern[1:] not in groups:
            raise ValueError(f"{where}: there is no group {pattern[1:]!r}")


def _expand(patterns: Iterable[str], groups: Groups) -> Iterable[str]:
    for pattern in patterns:
        if pattern.startswith(GROUP):
            yield from groups[pattern[1:]]
        else:
            yield pattern


def _matches(name: str, parts: list[str]) -> bool:
    """True if a name has these parts in order, the first at its start and the last at its end."""
    first, *middle, last = parts
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    position, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True
