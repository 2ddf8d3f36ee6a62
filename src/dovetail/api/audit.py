"""Lakes and audit tables for Python: the same rows as Arrow, pandas, Spark or plain dictionaries."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dovetail.model.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from dovetail.audit.summary import Summary
    from dovetail.lake.manifest import Manifest

P = ParamSpec("P")
T = TypeVar("T")
Conditions = Mapping[str, Any]
"""Columns and the values they must have; an address as bytes, hex or a prefix of it."""


def _explained(function: Callable[P, T]) -> Callable[P, T]:
    """A package that only an extra installs is MissingExtra, which says what to install."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ImportError as error:
            raise MissingExtra.explain(error) or error from None

    return run


@dataclass(frozen=True, slots=True)
class Table:
    """One table, read when it is asked for."""

    name: str
    _read: Callable[[Conditions | None], pa.Table]
    _spark: Callable[[Any], Any]

    @_explained
    def arrow(self, where: Conditions | None = None) -> pa.Table:
        """As an Arrow table, of the rows whose columns have these values."""
        return self._read(where)

    @_explained
    def pandas(self, where: Conditions | None = None) -> Any:
        """As a pandas frame; needs `dovetail[audit]`."""
        import pandas  # noqa: F401 - what is missing is told by its name

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
class Story:
    """What the tables say about one message; its text is what `dovetail audit why` prints."""

    address: str
    record: dict[str, Any]

    def __str__(self) -> str:
        from dovetail.audit.message_trace import story_text

        return "\n".join(story_text(self.record))


class Tables(Mapping[str, Table]):
    """The tables of an audit as one run left them, by name."""

    def __init__(self, path: Path | str, run: int | None = None) -> None:
        from dovetail.audit.tables import open_tables

        self.path = path
        self._opened = open_tables(path, run)
        self._names = self._opened.names

    @property
    def run(self) -> int:
        """The number of the run."""
        return self._opened.run.number

    def names(self) -> list[str]:
        """The tables that are there."""
        return list(self._names)

    def __getitem__(self, name: str) -> Table:
        from dovetail.audit.engines import spark_frame

        if name not in self._names:
            raise KeyError(f"there is no table {name!r}; there are {', '.join(self._names)}")

        def read(where: Conditions | None) -> pa.Table:
            return self._opened.read(name, where=_filter(where))

        def spark(session: Any) -> Any:
            return spark_frame(session, self._opened, name)

        return Table(name, read, spark)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @_explained
    def why(self, message: str | bytes) -> Story:
        """The story of one message: every hop, and where and why it stopped."""
        from dovetail.audit.message_trace import tell_story
        from dovetail.model.address import parse_prefix

        try:
            prefix = parse_prefix(message.hex() if isinstance(message, bytes) else message)
        except ValueError as error:
            raise UsageError(str(error)) from None
        record = tell_story(self._opened, prefix)
        return Story(record["address"], record)


@dataclass(frozen=True, slots=True)
class Audit:
    """What a run of the audit found."""

    summary: Summary
    tables: Tables

    @property
    def ok(self) -> bool:
        """True if no finding is an error."""
        return self.summary.errors == 0


@dataclass(frozen=True, slots=True)
class Lake:
    """Sealed journals of any number of servers."""

    path: Path

    def seal(self, journals: Path | str | Iterable[Path | str]) -> list[Manifest]:
        """Write what is signed and not sealed yet; one manifest for each journal that had something new."""
        from dovetail.journal.folder import find_journals
        from dovetail.lake.seal import seal_journal
        from dovetail.lake.store import LocalStore

        given = [journals] if isinstance(journals, Path | str) else list(journals)
        found = [each for path in given for each in find_journals(Path(path))]
        sealed = [seal_journal(path, LocalStore(self.path)) for path in found]
        return [manifest for manifest in sealed if manifest is not None]

    def hops(self) -> Table:
        """Every sealed hop."""
        import pyarrow.dataset as ds

        from dovetail.lake.snapshot import snapshot
        from dovetail.lake.store import LocalStore

        files = [
            str(self.path / file.path) for each in snapshot(LocalStore(self.path)).manifests() for file in each.files
        ]

        def read(where: Conditions | None) -> pa.Table:
            return ds.dataset(files, format="parquet").to_table(filter=_filter(where))

        return Table("hops", read, lambda session: session.read.parquet(*files))

    @_explained
    def audit(
        self,
        tables: Path | str,
        *,
        trust: Path | str | Sequence[Path | str] = (),
        swarms: Sequence[Path | str] = (),
        patience: float = 30,
        spark: Any = None,
    ) -> Audit:
        """Audit what is new; needs `dovetail[audit]`. Without a session, one is started on this machine."""
        from dovetail.audit.run import Audit as Job
        from dovetail.audit.session import SessionOptions, open_session
        from dovetail.audit.settings import load_settings
        from dovetail.lake.location import open_store
        from dovetail.lake.snapshot import check_lake, snapshot

        lake = check_lake(self.path)
        trusted = [trust] if isinstance(trust, Path | str) else trust
        settings = load_settings([Path(each) for each in swarms], [Path(each) for each in trusted], patience_s=patience)
        with contextlib.ExitStack() as stack:
            if spark is None:
                spark = open_session(SessionOptions(rows=snapshot(open_store(lake)).hops))
                stack.callback(spark.stop)
            summary = Job(spark=spark, lake=lake, tables=Path(tables).absolute(), settings=settings).run()
        return Audit(summary, Tables(tables))


def open_lake(path: Path | str) -> Lake:
    """A lake; sealing into an empty or absent directory begins one."""
    return Lake(Path(path))


@_explained
def open_tables(path: Path | str, run: int | None = None) -> Tables:
    """The tables as the newest run left them, or run number `run`, without Spark; AuditError where there are none."""
    return Tables(path, run)


def _filter(where: Conditions | None) -> Any:
    import pyarrow.compute as pc

    from dovetail.audit.tables import has_prefix

    expression = None
    for column, value in (where or {}).items():
        if column == "message":
            one = has_prefix(column, bytes.fromhex(value) if isinstance(value, str) else value)
        else:
            one = pc.field(column) == value
        expression = one if expression is None else expression & one
    return expression
