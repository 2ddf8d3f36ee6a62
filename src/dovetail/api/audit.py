"""Lakes and audit tables for Python: the same rows as Arrow, pandas, Spark or plain dictionaries."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dovetail.api.failures import files_as
from dovetail.api.values import check_text
from dovetail.lake.location import Location, is_url, open_store
from dovetail.model.errors import AuditError, MissingExtra, NoSuchTable, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from dovetail.audit.summary import Summary
    from dovetail.lake.manifest import Manifest
    from dovetail.lake.store import Store

P = ParamSpec("P")
T = TypeVar("T")
Conditions = Mapping[str, Any]
"""Columns and the values they must have; a message as bytes, hex, `wm:/...`, its id, or a prefix."""


def _explained(function: Callable[P, T]) -> Callable[P, T]:
    """Raise MissingExtra, which says what to install, if a package of an extra is missing."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ImportError as error:
            raise MissingExtra.explain(error) or error from None

    return run


def _checked(where: Conditions | None) -> Conditions:
    if not isinstance(where, Mapping | None):
        raise UsageError(f"conditions of type {type(where).__name__}, expected columns and their values")
    return where or {}


@dataclass(frozen=True, slots=True)
class Table:
    """One table, read on demand."""

    name: str
    _read: Callable[[Conditions | None], pa.Table]
    _spark: Callable[[Any], Any]

    @_explained
    def arrow(self, where: Conditions | None = None) -> pa.Table:
        """As an Arrow table of the rows with these column values."""
        return self._read(where)

    @_explained
    def pandas(self, where: Conditions | None = None) -> Any:
        """As a pandas frame; needs `dovetail[audit]`."""
        import pandas  # noqa: F401 - so that a missing one is reported by name

        return self._read(where).to_pandas()

    @_explained
    def spark(self, session: Any) -> Any:
        """As a Spark frame of this session; needs `dovetail[audit]`."""
        return self._spark(session)

    def rows(self, where: Conditions | None = None) -> Iterator[dict[str, Any]]:
        """As plain values: bytes in hex, times in ISO 8601."""
        from dovetail.audit.tables import to_plain

        for batch in self.arrow(where).to_batches():
            for row in batch.to_pylist():
                yield {name: to_plain(value) for name, value in row.items()}


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """What the tables say about one message; its text is what `dovetail audit why` prints."""

    address: str
    record: dict[str, Any]

    def __str__(self) -> str:
        from dovetail.audit.message_trace import trace_text

        return "\n".join(trace_text(self.record))


class Tables(Mapping[str, Table]):
    """The tables of one audit run, by name."""

    def __init__(self, path: Location, run: int | None = None) -> None:
        from dovetail.audit.tables import open_tables

        self.path = path
        self._opened = open_tables(path, run)
        self._names = self._opened.names

    @property
    def run(self) -> int:
        """The number of the run."""
        return self._opened.run.number

    def names(self) -> list[str]:
        """The available tables."""
        return list(self._names)

    def __getitem__(self, name: str) -> Table:
        from dovetail.audit.engines import spark_frame

        if name not in self._names:
            raise NoSuchTable(f"there is no table {name!r}; there are {', '.join(self._names)}")

        def read(where: Conditions | None) -> pa.Table:
            return self._opened.read(name, where=self._opened.equals(name, _checked(where)))

        def spark(session: Any) -> Any:
            return spark_frame(session, self._opened, name)

        return Table(name, read, spark)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @_explained
    def why(self, message: str | bytes) -> MessageTrace:
        """The trace of one message: every hop, and where and why it stopped."""
        from dovetail.audit.message_trace import trace_message

        record = trace_message(
            self._opened, message.hex() if isinstance(message, bytes) else check_text(message, "message")
        )
        return MessageTrace(record["address"], record)


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit run."""

    summary: Summary
    tables: Tables

    @property
    def ok(self) -> bool:
        """True if no finding is an error."""
        return self.summary.errors == 0


@dataclass(frozen=True, slots=True)
class Lake:
    """Sealed journals of any number of servers."""

    path: Location

    @property
    def _store(self) -> Store:
        return open_store(self.path)

    @files_as(AuditError)
    def seal(self, journals: Path | str | Iterable[Path | str]) -> list[Manifest]:
        """Seal what is signed and not sealed yet; returns one manifest for each journal with something new."""
        from dovetail.journal.folder import find_journals
        from dovetail.lake.seal import seal_journal

        given = [journals] if isinstance(journals, Path | str) else list(journals)
        found = [each for path in given for each in find_journals(Path(path))]
        sealed = [seal_journal(path, self._store) for path in found]
        return [manifest for manifest in sealed if manifest is not None]

    def hops(self) -> Table:
        """Every sealed hop; AuditError where there is no lake."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from dovetail.audit.tables import rows_with
        from dovetail.lake.rows import LAKE_SCHEMA
        from dovetail.lake.snapshot import check_lake, snapshot

        store = open_store(check_lake(self.path))
        files = [file.path for each in snapshot(store).manifests() for file in each.files]

        def read(where: Conditions | None) -> pa.Table:
            wanted = rows_with(LAKE_SCHEMA, _checked(where))
            parts = [pq.read_table(store.open(file), schema=LAKE_SCHEMA, filters=wanted) for file in files]
            return pa.concat_tables([LAKE_SCHEMA.empty_table(), *parts])

        return Table("hops", read, lambda session: session.read.parquet(*map(store.url, files)))

    @_explained
    @files_as(AuditError)
    def audit(
        self,
        tables: Location,
        *,
        trust: Path | str | Sequence[Path | str] = (),
        swarms: Sequence[Path | str] = (),
        proven_only: bool = False,
        loss_timeout: float = 30,
        spark: Any = None,
    ) -> Audit:
        """Audit what is new; needs `dovetail[audit]`. Without a session, one is started on this machine."""
        from dovetail.audit.run import Audit as Job
        from dovetail.audit.session import SessionOptions, open_session
        from dovetail.audit.settings import load_settings
        from dovetail.lake.snapshot import check_lake, snapshot

        if not loss_timeout >= 0:
            raise UsageError(f"a loss timeout of {loss_timeout} s, expected 0 or more")
        lake = check_lake(self.path)
        trusted = [trust] if isinstance(trust, Path | str) else trust
        settings = load_settings(
            [Path(each) for each in swarms],
            [Path(each) for each in trusted],
            loss_timeout_s=loss_timeout,
            proven_only=proven_only,
        )
        place = tables if is_url(tables) else Path(tables).absolute()
        with contextlib.ExitStack() as stack:
            if spark is None:
                options = SessionOptions(rows=snapshot(open_store(lake)).hops, has_s3=is_url(lake) or is_url(tables))
                spark = open_session(options)
                stack.callback(spark.stop)
            summary = Job(spark=spark, lake=lake, tables=place, settings=settings).run()
        return Audit(summary, Tables(tables))


def open_lake(path: Location) -> Lake:
    """A lake in a directory or at `s3://bucket/prefix`; sealing creates it if it is empty or absent."""
    return Lake(path)


@_explained
def open_tables(path: Location, run: int | None = None) -> Tables:
    """The tables of the newest run, or of run number `run`, without Spark; raises AuditError if there are none."""
    return Tables(path, run)
