"""PCP URIs: `pcp://<common name>/<client type>`, their wildcards, and the characters a broker accepts.

A wildcard is `*` as the whole name or the whole type; there is no globbing. The broker answers to `pcp:///server` (used
by all implementations) and to `pcp:///broker` (used by the delivery specification) and sends as the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

SCHEME = "pcp://"
BROKER_URI = "pcp:///server"
BROKER_URIS = frozenset({BROKER_URI, "pcp:///broker"})
SERVER_TYPE = "server"
WILDCARD = "*"
MAX_URI_CHARS = 1024

_GRAMMAR = re.compile(r"pcp://([^/]*)/([^/]+)")
_MESSAGE_TYPE_CHARACTERS = re.compile(r"[\w\-.:/]*", re.ASCII)
_TARGET_CHARACTERS = re.compile(r"[\w\-.:/*]*", re.ASCII)


class Uri(NamedTuple):
    """A PCP URI or pattern in its two parts."""

    name: str
    client_type: str

    @property
    def is_wildcard(self) -> bool:
        """True if it can match more than one client."""
        return self.name == WILDCARD or self.client_type == WILDCARD

    def __str__(self) -> str:
        return f"{SCHEME}{self.name}/{self.client_type}"


def parse_uri(text: str) -> Uri:
    """Parse a URI or pattern; ValueError says what is wrong."""
    if len(text) > MAX_URI_CHARS:
        raise ValueError(f"URI of {len(text)} characters, expected at most {MAX_URI_CHARS}")
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a PCP URI, expected pcp://<name>/<type>")
    return Uri(match[1], match[2])


def client_uri(name: str, client_type: str) -> str:
    """The URI of a client."""
    return f"{SCHEME}{name}/{client_type}"


def is_uri(text: str) -> bool:
    """True if the text follows the grammar and the length limit."""
    return len(text) <= MAX_URI_CHARS and _GRAMMAR.fullmatch(text) is not None


def has_message_type_characters(text: str) -> bool:
    """True if a message type has only the characters that rules can contain (whole string, ASCII)."""
    return _MESSAGE_TYPE_CHARACTERS.fullmatch(text) is not None


def has_target_characters(text: str) -> bool:
    """True if a target has only the characters that rules can contain (whole string, ASCII)."""
    return _TARGET_CHARACTERS.fullmatch(text) is not None


class PatternSet:
    """A set of URI patterns that checks in four lookups whether any matches a URI."""

    __slots__ = ("_all", "_exact", "_names", "_types", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(dict.fromkeys(patterns))
        self._all = False
        self._exact: set[str] = set()
        self._names: set[str] = set()
        self._types: set[str] = set()
        for text in self.patterns:
            uri = parse_uri(text)
            if not uri.is_wildcard:
                self._exact.add(text)
            elif uri.name != WILDCARD:
                self._names.add(uri.name)
            elif uri.client_type != WILDCARD:
                self._types.add(uri.client_type)
            else:
                self._all = True

    def matches(self, uri: str) -> bool:
        """True if any pattern matches the URI of one client."""
        if self._all or uri in self._exact:
            return True
        if not self._names and not self._types:
            return False
        name, client_type = parse_uri(uri)
        return name in self._names or client_type in self._types
