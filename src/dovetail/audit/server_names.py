"""What people call a server: the name of its journal where that is known, else its URI.

Report, dashboard, `audit show` and `audit why` all use this module, so a server has the same name wherever it is shown.
`named_by` sets the names for the calling thread or task.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from dovetail.fabrics import fabric_of
from dovetail.journal.folder import PEER_JOURNAL, find_journals
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import DovetailError

_URI = re.compile(r"\b[a-z]{1,12}://[^\s,;()]*[^\s,;().:]")
_LONG_HEX = re.compile(r"[0-9a-f]{16,}")
_names: ContextVar[Mapping[str, str]] = ContextVar("names", default=MappingProxyType({}))


@contextlib.contextmanager
def named_by(names: Mapping[str, str]) -> Iterator[None]:
    """Name servers by these names in this block."""
    token = _names.set(names)
    try:
        yield
    finally:
        _names.reset(token)


def read_names(journals: Iterable[Path]) -> dict[str, str]:
    """The names of the servers of these journals, or directories of them; unreadable journals are skipped."""
    found: dict[str, Path] = {}
    for path in journals:
        with contextlib.suppress(DovetailError, OSError):
            for file in find_journals(path):
                with contextlib.suppress(DovetailError, OSError), JournalReader.open(file) as reader:
                    found[reader.identity.server] = file
    return names_of(found)


def names_of(journals: Mapping[str, Path]) -> dict[str, str]:
    """Servers by the names of their journals' files; a name of several servers names none of them."""
    names = {server: path.parent.name if path.name == PEER_JOURNAL else path.stem for server, path in journals.items()}
    taken = Counter(names.values())
    return {server: name for server, name in names.items() if taken[name] == 1}


def name_server(uri: str) -> str:
    """The server's name, else its URI: for terminals, where the URI cannot be shown beside it."""
    return _names.get().get(uri, uri)


def name_server_briefly(uri: str) -> str:
    """The server's name, else its URI without what all have in common: for pages, with the URI as a tooltip."""
    return _names.get().get(uri) or shorten_uri(uri)


def name_servers_in(text: str) -> str:
    """A sentence in which each known server has its name; a URI that only begins like a server's stays."""
    names = _names.get()
    return _URI.sub(lambda found: names.get(found[0], found[0]), text) if names else text


def shorten_uri(uri: str) -> str:
    """A URI without its scheme and what all servers of a kind share, long keys shortened in the middle."""
    return _LONG_HEX.sub(lambda match: f"{match[0][:4]}…{match[0][-4:]}", strip_uri(uri))


def strip_uri(uri: str) -> str:
    """A URI without its scheme and what all servers of a kind share."""
    try:
        return fabric_of(uri).show_uri(uri) or uri
    except ValueError:
        return uri.partition("://")[2] or uri
