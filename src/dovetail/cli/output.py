"""What commands print: data to stdout, talk to stderr, nothing that could drive the terminal.

Text that came from peers may hold escape sequences, line breaks or bidirectional controls; everything printed here is
escaped. Tables are drawn by rich on a terminal and are plain aligned columns elsewhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

# C0, DEL, C1, line and paragraph separators, bidirectional marks and overrides, surrogates, the byte order mark.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COLUMN_GAP = "  "


def escape(text: str) -> str:
    """Text on one line, with control characters made visible."""
    return _UNSAFE.sub(lambda match: _SHORT.get(match[0]) or _code(match[0]), text)


def say(text: str) -> None:
    """One line of talk to a person."""
    print(escape(text), file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: object) -> None:
    """One value as one line of JSON."""
    line = msgspec.json.encode(value, enc_hook=str).decode()
    # Inside JSON only strings can hold these, and there a \\u escape means the same.
    sys.stdout.write(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line) + "\n")


def print_text(text: str) -> None:
    """Text that is safe as it stands, such as a file's contents that this program made."""
    sys.stdout.write(text)


def print_rows(rows: Iterable[Mapping[str, object]], columns: Sequence[str], *, as_json: bool = False) -> None:
    """Records as a table of `columns`, or as JSON lines with everything they hold."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if sys.stdout.isatty():
        _print_rich(cells, columns)
    else:
        _print_plain(cells, columns)


def print_record(record: Mapping[str, object], *, as_json: bool = False) -> None:
    """One record: a line per field, or one JSON object."""
    if as_json:
        print_json(record)
        return
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        values = value if isinstance(value, list | tuple) else [value]
        for number, each in enumerate(values):
            sys.stdout.write(f"{name if number == 0 else '':{width}}{_COLUMN_GAP}{_cell(each)}\n")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(each) for each in value)
    return escape(str(value))


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _print_plain(cells: list[list[str]], columns: Sequence[str]) -> None:
    widths = [max(len(column), *(len(row[index]) for row in cells), 0) for index, column in enumerate(columns)]
    for row in [list(columns), *cells]:
        sys.stdout.write(_COLUMN_GAP.join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        sys.stdout.write("\n")


def _print_rich(cells: list[list[str]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        # Text, not str: a peer's `[red]` is no markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
