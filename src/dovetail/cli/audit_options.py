"""Options shared by the commands of `dovetail audit`: which tables, and how an audit runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.client_options import TablesOption, deprecated, given_or_known, key_values

if TYPE_CHECKING:
    import datetime as dt

    from dovetail.audit.tables import Tables

Lake = Annotated[
    str | None,
    typer.Argument(
        help="The lake that journals are sealed to: a directory, or s3://bucket/prefix; from the context by default.",
        metavar="LAKE",
        show_default=False,
    ),
]
OldOut = Annotated[str | None, typer.Option("--out", hidden=True, callback=deprecated("--out", "--tables"))]
RunNumber = Annotated[int | None, typer.Option("--run", help="Open the tables as this run left them.", min=1)]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master, such as spark://host:7077; local by default.")
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; repeatable.")]
Memory = Annotated[
    str | None, typer.Option("--driver-memory", metavar="SIZE", help="Memory of the driver, such as 4g.")
]
Swarms = Annotated[
    list[Path] | None, typer.Option("--swarm", metavar="FILE", help="Settings file of a swarm (TOML); repeatable.")
]
CompactionKey = Annotated[
    Path | None,
    typer.Option(
        "--signing-key",
        help="Sign the fields that are retained of removed messages with this key (`.skey`); not a server's.",
        metavar="FILE",
        show_default=False,
    ),
]
Trust = Annotated[
    list[Path] | None,
    typer.Option("--trust", metavar="KEYS", help="Trusted keys: a file, or a directory of `.vkey` files; repeatable."),
]
ProvenOnly = Annotated[
    bool,
    typer.Option(
        "--proven-only",
        help="Take rows only from files that lead to a signed root; the others count as missing.",
    ),
]
LossTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="Seconds after which an undelivered message counts as lost.", min=0)
]
OldPatience = Annotated[
    float | None, typer.Option("--patience", hidden=True, min=0, callback=deprecated("--patience", "--loss-timeout"))
]


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """Which tables."""

    tables: TablesOption = None
    out: OldOut = None

    @property
    def root(self) -> str:
        """The absolute directory of the tables, or their URL; `--out` is the option's former name."""
        from dovetail.lake.location import is_url

        root = given_or_known(self.tables or self.out, "tables", "no audit tables: name them with --tables")
        return root if is_url(root) else str(Path(root).absolute())


@dataclass(frozen=True, kw_only=True)
class RunSource(TableSource):
    """The tables of which run."""

    run: RunNumber = None

    def open(self) -> Tables:
        """Open them."""
        from dovetail.audit.tables import open_tables

        return open_tables(self.root, self.run)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(TableSource):
    """Which lake is audited into which tables, and how."""

    lake: Lake = None
    master: Master = None
    conf: Conf = None
    driver_memory: Memory = None
    swarm: Swarms = None
    trust: Trust = None
    proven_only: ProvenOnly = False
    loss_timeout: LossTimeout = 30
    patience: OldPatience = None

    @property
    def place(self) -> str:
        """The lake."""
        return given_or_known(self.lake, "lake", "no lake: name it")

    @property
    def loss_timeout_s(self) -> float:
        """The loss timeout, by either name of its option."""
        return self.loss_timeout if self.patience is None else self.patience

    def open(self, as_of: dt.datetime | None = None, *, is_once: bool = False) -> Any:
        """The audit, with its Spark session."""
        from dovetail.audit.run import Audit
        from dovetail.audit.settings import load_settings
        from dovetail.audit.tables import check_room, refuse_old_format
        from dovetail.lake.location import open_store
        from dovetail.lake.snapshot import check_lake, snapshot

        place = check_lake(self.place)
        refuse_old_format(self.root)
        check_room(self.root)
        settings = load_settings(
            self.swarm or [], self.trust or [], loss_timeout_s=self.loss_timeout_s, proven_only=self.proven_only
        )
        rows = snapshot(open_store(place)).hops if is_once else None
        spark = open_spark(self.master, self.conf, self.driver_memory, self.place, self.root, rows=rows)
        return Audit(spark=spark, lake=place, tables=self.root, settings=settings, as_of=as_of)


def open_spark(
    master: str | None, conf: list[str] | None, driver_memory: str | None, *places: str, rows: int | None = None
) -> Any:
    """A Spark session with these options, for a lake and tables at these places."""
    from dovetail.audit.session import SessionOptions, open_session
    from dovetail.lake.location import is_url

    options = SessionOptions(
        master=master,
        driver_memory=driver_memory,
        conf=key_values(conf or [], "--conf"),
        rows=rows,
        has_s3=any(map(is_url, places)),
    )
    return open_session(options)
