"""Reads the audit's tables, which are directories of Parquet files, with the columns that the report needs.

    OUT/<table>/*.parquet                 gold
    OUT/<table>/batch=<n>/, current/      silver; a batch counts once OUT/_state/batches/<n>.json is there
    OUT/_state/run.json                   what the tables were made from

Columns are checked and cast to the types written here, so that everything behind this module may rely on them. A table
that is not there is empty: an audit of a lake without a swarm has nothing to say about coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from dovetail.audit.reading import readable
from dovetail.model.errors import PipelineError

STRING, BINARY, LONG, BOOLEAN = pa.string(), pa.binary(), pa.int64(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")

BREAK = pa.struct([("check", STRING), ("file", STRING), ("seq", LONG), ("detail", STRING)])

SCHEMAS: dict[str, pa.Schema] = {
    "hops": pa.schema(
        [
            ("fabric", STRING),
            ("server", STRING),
            ("seq", LONG),
            ("at", TIME),
            ("stage", STRING),
            ("message", BINARY),
            ("counterpart", STRING),
            ("reason", STRING),
            ("size", LONG),
        ]
    ),
    "messages": pa.schema(
        [
            ("fabric", STRING),
            ("message", BINARY),
            ("key", BINARY),
            ("id", STRING),
            ("type", STRING),
            ("sender", STRING),
            ("recipients", pa.list_(STRING)),
            ("created", TIME),
            ("expires", TIME),
            ("size", LONG),
            ("signer", STRING),
            ("signature", STRING),
            ("work_valid", BOOLEAN),
        ]
    ),
    "links": pa.schema([("fabric", STRING), ("child", BINARY), ("parent", BINARY), ("relation", STRING)]),
    "deliveries": pa.schema(
        [
            ("fabric", STRING),
            ("message", BINARY),
            ("type", STRING),
            ("sender", STRING),
            ("recipient", STRING),
            ("outcome", STRING),
            ("failed_stage", STRING),
            ("failed_at", STRING),
            ("reason", STRING),
            ("accepted", TIME),
            ("finished", TIME),
            ("latency_us", LONG),
            ("attempts", LONG),
            ("skew_known", BOOLEAN),
        ]
    ),
    "chains": pa.schema(
        [
            ("fabric", STRING),
            ("message", BINARY),
            ("kind", STRING),
            ("type", STRING),
            ("sender", STRING),
            ("recipient", STRING),
            ("conversation", STRING),
            ("state", STRING),
            ("first_response", BINARY),
            ("second_response", BINARY),
            ("failure", BINARY),
            ("begun", TIME),
            ("first_leg_us", LONG),
            ("second_leg_us", LONG),
            ("only_at", pa.list_(STRING)),
        ]
    ),
    "gaps": pa.schema(
        [
            ("fabric", STRING),
            ("child", BINARY),
            ("parent", BINARY),
            ("relation", STRING),
            ("server", STRING),
            ("scope", STRING),
            ("holders", LONG),
            ("since", TIME),
            ("expires", TIME),
            ("unexpired", BOOLEAN),
        ]
    ),
    "forks": pa.schema(
        [
            ("fabric", STRING),
            ("kind", STRING),
            ("author", STRING),
            ("subject", BINARY),
            ("evidence", pa.list_(BINARY)),
            ("first_seen", TIME),
        ]
    ),
    "coverage": pa.schema(
        [
            ("swarm", STRING),
            ("scope", STRING),
            ("message", BINARY),
            ("peer", STRING),
            ("peers", LONG),
            ("holders", LONG),
            ("lacking", LONG),
            ("expires", TIME),
            ("first_seen", TIME),
            ("half_us", LONG),
            ("most_us", LONG),
            ("all_us", LONG),
        ]
    ),
    "integrity": pa.schema(
        [
            ("fabric", STRING),
            ("server", STRING),
            ("verdict", STRING),
            ("hops", LONG),
            ("signed_hops", LONG),
            ("proven_hops", LONG),
            ("missing_hops", LONG),
            ("repeated_hops", LONG),
            ("backwards", LONG),
            ("checkpoints", LONG),
            ("proven_checkpoints", LONG),
            ("key_source", STRING),
            ("breaks", pa.list_(BREAK)),
        ]
    ),
    "traffic": pa.schema(
        [
            ("minute", TIME),
            ("fabric", STRING),
            ("server", STRING),
            ("type", STRING),
            ("stage", STRING),
            ("reason", STRING),
            ("hops", LONG),
            ("messages", LONG),
            ("bytes", LONG),
        ]
    ),
    "latency": pa.schema([("fabric", STRING), ("type", STRING), ("up_to_ms", LONG), ("deliveries", LONG)]),
    "skew": pa.schema(
        [
            ("server", STRING),
            ("other", STRING),
            ("offset_us", LONG),
            ("error_us", LONG),
            ("there", LONG),
            ("back", LONG),
        ]
    ),
    "findings": pa.schema(
        [
            ("check", STRING),
            ("severity", STRING),
            ("fabric", STRING),
            ("server", STRING),
            ("message", BINARY),
            ("seq", LONG),
            ("at", TIME),
            ("detail", STRING),
        ]
    ),
}
SILVER = frozenset({"hops", "messages", "links"})


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables were made from."""

    lake: str = ""
    as_of_us: int | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """The output directory of an audit."""

    root: Path
    run: Run

    @classmethod
    def open(cls, root: Path) -> Tables:
        """The tables of a finished audit; PipelineError where there are none."""
        if not root.is_dir():
            raise PipelineError(f"{root} is not a directory")
        record = root / "_state" / "run.json"
        if not (root / "findings").is_dir():
            raise PipelineError(f"{root} holds no audit: run `dovetail audit run LAKE --out {root}` first")
        if not record.is_file():
            return cls(root, Run())
        try:
            return cls(root, msgspec.json.decode(record.read_bytes(), type=Run))
        except msgspec.DecodeError as error:
            raise PipelineError(f"{record}: {error}") from None

    def read(self, name: str, columns: Sequence[str] | None = None, where: ds.Expression | None = None) -> pa.Table:
        """Some columns of a table, of the rows for which `where` holds."""
        schema = SCHEMAS[name]
        wanted = pa.schema([schema.field(column) for column in columns]) if columns is not None else schema
        files = self._files(name)
        if not files:
            return wanted.empty_table()
        with readable(self.root / name):
            source = ds.dataset([str(path) for path in files], format="parquet")
            missing = [column for column in wanted.names if column not in source.schema.names]
            if missing:
                raise PipelineError(f"{self.root / name} lacks the column {missing[0]!r}: written by another version")
            return source.to_table(columns=wanted.names, filter=where).cast(wanted)

    def count(self, name: str) -> int:
        """How many rows a table has, from the files' own footers."""
        files = self._files(name)
        with readable(self.root / name):
            return int(ds.dataset([str(path) for path in files], format="parquet").count_rows()) if files else 0

    def _files(self, name: str) -> list[Path]:
        folder = self.root / name
        batches = self.root / "_state" / "batches"
        found = sorted(folder.rglob("*.parquet"))
        if name not in SILVER or not batches.is_dir():
            return found
        complete = {f"batch={path.stem}" for path in batches.glob("[0-9]*.json")} | {"current"}
        return [path for path in found if path.relative_to(folder).parts[0] in complete]
