"""Output of commands: data to stdout, messages to stderr, and nothing that could control the terminal.

Text from peers may contain escape sequences, line breaks or bidirectional controls; everything printed here is escaped.
Tables are aligned columns; on a terminal, cells that do not fit its width are shortened in the middle.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dovetail.cli.table_options import Form

TABLE = Form()
# C0, DEL, C1, line and paragraph separators, bidirectional marks and overrides, surrogates, the byte order mark.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COLUMN_GAP = "  "
_CUT = "..."
_MIN_CELL = 8


def escape(text: str) -> str:
    """Text on one line, with control characters made visible."""
    return _UNSAFE.sub(lambda match: _SHORT.get(match[0]) or _code(match[0]), text)


def say(text: str) -> None:
    """Print one line for the user to stderr."""
    print(escape(text), file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: object) -> None:
    """One value as one line of JSON."""
    line = msgspec.json.encode(value, enc_hook=str).decode()
    # In JSON these occur only inside strings, where a \\u escape means the same.
    sys.stdout.write(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line) + "\n")


def print_text(text: str) -> None:
    """Print text that needs no escaping, such as a file that this program generated."""
    sys.stdout.write(text)


def print_rows(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str],
    form: Form = TABLE,
) -> None:
    """Print records as a table of `columns`, as CSV or Markdown, or as JSON lines with all fields.

    A table on a terminal fits its width: the longest cells are shortened in the middle, unless it is wide.
    """
    if form.as_json:
        for row in rows:
            print_json(row)
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if form.as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *cells])
    elif form.as_markdown:
        for line in [columns, ["---"] * len(columns), *cells]:
            sys.stdout.write("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n")
    else:
        is_seen = sys.stdout.isatty()
        _print_table(cells, columns, shutil.get_terminal_size().columns if is_seen and not form.wide else None)


def print_record(record: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print one record: a line per field, or one JSON object."""
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


def _print_table(cells: list[list[str]], columns: Sequence[str], room: int | None) -> None:
    widths = [max(len(column), *(len(row[index]) for row in cells), 0) for index, column in enumerate(columns)]
    if room is not None:
        room -= len(_COLUMN_GAP) * (len(columns) - 1)
        widths = fit_widths(widths, room)
        if sum(widths) > room:  # too narrow for a table: one line per value
            for number, row in enumerate(cells):
                sys.stdout.write("\n" if number else "")
                print_record(dict(zip(columns, row, strict=True)))
            return
    for row in [list(columns), *cells]:
        shown = [f"{shorten(cell, width):{width}}" for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write(_COLUMN_GAP.join(shown).rstrip() + "\n")


def fit_widths(widths: Sequence[int], room: int) -> list[int]:
    """Column widths that fit into `room`: the widest shrink first, and none below a recognisable width."""
    fitted = list(widths)
    while sum(fitted) > room and (widest := max(fitted)) > _MIN_CELL:
        fitted[fitted.index(widest)] -= 1
    return fitted


def shorten(text: str, width: int) -> str:
    """Text of at most this width, shortened in the middle, since the ends of an address or URI identify it."""
    if len(text) <= width:
        return text
    kept = max(width - len(_CUT), 1)
    tail = kept // 2
    return text[: kept - tail] + _CUT + (text[-tail:] if tail else "")
