"""The reference pages of tables and checks, generated from the schemas and the list of checks.

`python -m dovetail.audit.reference DOCS` writes them into DOCS/reference; a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.types import ArrayType, DataType, StructType

from dovetail.audit.checks import every_check
from dovetail.audit.schemas import TABLES
from dovetail.audit.steps import graph
from dovetail.audit.table import Table

_MADE = "<!-- made from the code by `python -m dovetail.audit.reference docs`; do not edit -->"


def tables_page() -> str:
    """`docs/reference/tables.md`."""
    made_from = graph()
    lines = [
        "# Tables of the audit",
        "",
        _MADE,
        "",
        "`dovetail audit run LAKE --tables DIR` keeps each table as a Delta table in `DIR/<table>/`. A row of `runs`",
        "names the versions of all tables that belong together; `dovetail audit tables --sql` prints how to open",
        "exactly those. Times are UTC. Addresses are binary: 32 bytes, SHA-256. The directory also has internal tables",
        "of the audit (`decoded`, `verdicts`, `servers`, `holdings`, `one_way_delays`, `peer_counts`).",
        "",
        "| table | layer | made from | meaning |",
        "|---|---|---|---|",
        *(f"| [{t.name}](#{t.name}) | {t.layer} | {', '.join(made_from[t.name])} | {t.sentence} |" for t in TABLES),
    ]
    for table in TABLES:
        lines += [
            "",
            f"## {table.name}",
            "",
            f"{table.sentence} Key: {', '.join(f'`{name}`' for name in table.key)}.{_sums(table)}",
            "",
        ]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        for field in table.schema:
            lines.append(f"| {field.name} | {_type(field.dataType)} | {field.metadata['comment']} |")
    return "\n".join(lines) + "\n"


def checks_page() -> str:
    """`docs/reference/checks.md`."""
    lines = [
        "# Checks of the audit",
        "",
        _MADE,
        "",
        "A check applies to one table. Every row that meets its condition is a finding, listed in `findings`.",
        "`error`: something is wrong. `warning`: should be looked at. `note`: for information, normal in itself.",
        "",
        "| check | severity | meaning | table | condition |",
        "|---|---|---|---|---|",
    ]
    for check in every_check().values():
        where = "one of its breaks" if check.table == "integrity" else f"`{check.where}`"
        lines.append(f"| `{check.id}` | {check.severity} | {check.sentence} | {check.table} | {where} |")
    return "\n".join(lines) + "\n"


def _sums(table: Table) -> str:
    if not table.sums:
        return ""
    sums = ", ".join(f"sum({name})" for name in table.sums)
    return f" Rows are partial sums, some negative: read {sums} grouped by the key, where it is above 0."


def _type(kind: DataType) -> str:
    if isinstance(kind, ArrayType):
        return f"array of {_type(kind.elementType)}"
    if isinstance(kind, StructType):
        return f"({', '.join(f'{field.name} {_type(field.dataType)}' for field in kind)})"
    return kind.simpleString()


def main(argv: Sequence[str] | None = None) -> int:
    """Write both pages."""
    (docs,) = sys.argv[1:] if argv is None else argv
    reference = Path(docs) / "reference"
    reference.mkdir(parents=True, exist_ok=True)
    (reference / "tables.md").write_text(tables_page())
    (reference / "checks.md").write_text(checks_page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
