"""What commands print: data to stdout, talk to stderr, nothing that could drive the terminal.

Text that came from peers may hold escape sequences, line breaks or bidirectional controls; everything printed here is
escaped. Tables are aligned columns; on a terminal, what does not fit its width is shortened in the middle.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

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


def print_rows(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str],
    *,
    as_json: bool = False,
    as_csv: bool = False,
    as_markdown: bool = False,
    wide: bool = False,
) -> None:
    """Records as a table of `columns`, as CSV or Markdown, or as JSON lines with everything they hold.

    A table on a terminal fits its width: the longest cells are shortened in the middle, unless it is `wide`.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *cells])
    elif as_markdown:
        for line in [columns, ["---"] * len(columns), *cells]:
            sys.stdout.write("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n")
    else:
        is_seen = sys.stdout.isatty()
        _print_table(cells, columns, shutil.get_terminal_size().columns if is_seen and not wide else None)


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


def _print_table(cells: list[list[str]], columns: Sequence[str], room: int | None) -> None:
    widths = [max(len(column), *(len(row[index]) for row in cells), 0) for index, column in enumerate(columns)]
    if room is not None:
        widths = fit_widths(widths, room - len(_COLUMN_GAP) * (len(columns) - 1))
    for row in [list(columns), *cells]:
        shown = [f"{shorten(cell, width):{width}}" for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write(_COLUMN_GAP.join(shown).rstrip() + "\n")


def fit_widths(widths: Sequence[int], room: int) -> list[int]:
    """Widths that fit together into `room`: the widest give way first, none below what can be recognised."""
    fitted = list(widths)
    while sum(fitted) > room and (widest := max(fitted)) > _MIN_CELL:
        fitted[fitted.index(widest)] -= 1
    return fitted


def shorten(text: str, width: int) -> str:
    """Text of at most this width, its middle left out: both ends of an address or URI tell it apart."""
    if len(text) <= width:
        return text
    kept = max(width - len(_CUT), 1)
    tail = kept // 2
    return text[: kept - tail] + _CUT + (text[-tail:] if tail else "")
