"""The output options of commands that print records or a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from dovetail.model.errors import UsageError

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@dataclass(frozen=True, slots=True)
class Form:
    """The format of a table; by default aligned columns that fit the terminal."""

    as_json: AsJson = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False
    wide: Annotated[bool, typer.Option("--wide", help="Whole values, wider than the terminal if need be.")] = False

    def __post_init__(self) -> None:
        if self.as_json + self.as_csv + self.as_markdown > 1:
            raise UsageError("--json, --csv and --markdown are three forms of one table; give one of them")

    @property
    def is_whole(self) -> bool:
        """True if no value is to be shortened."""
        return self.as_json or self.as_csv or self.as_markdown or self.wide
