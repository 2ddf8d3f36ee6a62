"""An attacker with access to the lake: a changed byte, a removed row, a removed file, after everything was sealed.

The manifests are not changed, and the files keep their names, their column `leaf` and, if possible, their appearance.
Of the previous content only what the comparison needs is recorded: there is no copy.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail.demo.faults import Fault, Kind
from dovetail.lake.manifest import SealedFile
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import LocalStore
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Stage
from dovetail.runtime.clock import now_us

_DELIVERED = Stage.DELIVERED.value


class Tamperer:
    """Changes a lake without the audit's knowledge. Messages in `spared` must not be changed."""

    def __init__(self, lake: Path, chance: random.Random, spared: frozenset[str]) -> None:
        self._lake = lake
        self._chance = chance
        self._spared = spared

    def change_byte(self, server: str) -> Fault:
        """Make one delivery look as if it had gone to another client, by changing one byte."""
        file, table, row = self._choose(server)
        before = table.column("counterpart")[row].as_py()
        after = before[:-1] + ("x" if before[-1] != "x" else "y")
        values = table.column("counterpart").to_pylist()
        values[row] = after
        position = table.schema.get_field_index("counterpart")
        self._write(file, table.set_column(position, table.schema.field(position), [pa.array(values, pa.string())]))
        what = f"one byte of one row: delivered to {after} instead of {before}"
        return self._fault(Kind.CHANGED_BYTE, what, server, file, table, [row])

    def remove_row(self, server: str) -> Fault:
        """Remove one delivery."""
        file, table, row = self._choose(server)
        self._write(file, pa.concat_tables([table.slice(0, row), table.slice(row + 1)]))
        return self._fault(Kind.REMOVED_ROW, "one row removed from a file", server, file, table, [row])

    def remove_file(self, server: str) -> Fault:
        """Remove a whole file: the largest one."""
        file = max(self._files(server), key=lambda each: each.rows)
        table = self._read(file)
        (self._lake / file.path).unlink()
        rows = list(range(table.num_rows))
        return self._fault(Kind.REMOVED_FILE, f"a file with {file.rows} rows removed", server, file, table, rows)

    def _choose(self, server: str) -> tuple[SealedFile, pa.Table, int]:
        """A row with a delivery in the middle of a larger file."""
        for file in sorted(self._files(server), key=lambda each: -each.rows):
            table = self._read(file)
            is_delivery = pc.and_(pc.equal(table.column("stage"), _DELIVERED), pc.is_valid(table.column("counterpart")))
            is_bare = pc.is_null(table.column("raw"))
            rows = pc.indices_nonzero(pc.and_(is_delivery, is_bare)).to_pylist()
            inside = [row for row in rows if 0 < row < table.num_rows - 1]
            fit = [row for row in inside if table.column("message")[row].as_py().hex() not in self._spared]
            if fit:
                return file, table, self._chance.choice(fit)
        raise DovetailError(f"{server} delivered nothing that could be tampered with")

    def _files(self, server: str) -> list[SealedFile]:
        manifests = snapshot(LocalStore(self._lake), server).check().manifests()
        return [file for manifest in manifests for file in manifest.files]

    def _read(self, file: SealedFile) -> pa.Table:
        # as a file, not as a dataset: the columns in the path are not columns of the file
        return pq.ParquetFile(self._lake / file.path).read()

    def _write(self, file: SealedFile, table: pa.Table) -> None:
        pq.write_table(table, self._lake / file.path, compression="zstd")

    def _fault(self, kind: Kind, what: str, server: str, file: SealedFile, table: pa.Table, rows: list[int]) -> Fault:
        tampered = sorted({table.column("message")[row].as_py().hex() for row in rows})
        return Fault(
            kind=kind,
            fabric=Path(file.path).parts[0].removeprefix("fabric="),
            what=what,
            at_us=now_us(),
            server=server,
            file=file.path,
            seq=table.column("seq")[rows[0]].as_py(),
            tampered=tuple(tampered),
        )
