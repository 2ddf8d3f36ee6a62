"""Delta tables in a directory or an object store: naming, opening and committing.

The scheme of an object store is `s3:` everywhere except in Spark, where it is `s3a:`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dovetail.lake.location import Location, is_url
from dovetail.model.errors import ConfigError

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_UNUSABLE = frozenset("[]%")
"""Characters in a path that make `deltalake` panic or use a different path."""

WRITER = "dovetail"
"""The application ID of all commits to the tables. A commit names the version that it creates; a writer that missed
another commit with that version is rejected instead of being appended after it, as appends normally are. So a process
that lost its lease without noticing, or a request repeated because its answer was lost, adds nothing twice."""


def table_uri(root: Location, name: str) -> str:
    """The location of a table; ConfigError if `deltalake` cannot handle the name of the directory."""
    if not is_url(root) and (odd := sorted(_UNUSABLE.intersection(os.path.abspath(root)))):  # noqa: PTH100
        raise ConfigError(f"{root}: tables cannot be kept in a directory with {' '.join(odd)} in its path")
    uri = f"{os.fspath(root).rstrip('/')}/{name}"
    return f"s3{uri[3:]}" if uri.startswith("s3a:") else uri


def spark_uri(uri: str) -> str:
    """The same location for Spark."""
    return f"s3a{uri[2:]}" if uri.startswith("s3:") else uri


def store_options(root: Location) -> dict[str, str]:
    """Options of a store for `deltalake` beyond those in the environment."""
    if not is_url(root):
        return {}
    from dovetail.lake.object_store import endpoint

    return {"allow_http": "true"} if endpoint().startswith("http://") else {}


def open_delta(root: Location, name: str, version: int | None = None) -> DeltaTable:
    """A table at its current version, or at the given one."""
    from deltalake import DeltaTable

    return DeltaTable(table_uri(root, name), version=version, storage_options=store_options(root))


def claim(table: DeltaTable) -> CommitProperties:
    """Commit properties for the next version, and no other, with `deltalake`."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(WRITER, table.version() + 1)])


def spark_claim(table: DeltaTable) -> dict[str, str]:
    """The same for Spark, as write options."""
    return {"txnAppId": WRITER, "txnVersion": str(table.version() + 1)}
