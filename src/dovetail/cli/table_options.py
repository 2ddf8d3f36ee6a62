"""The output options of commands that print a table."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from dovetail.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Form:
    """The format of a table; by default aligned columns that fit the terminal."""

    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False
    wide: Annotated[bool, typer.Option("--wide", help="Whole values, wider than the terminal if need be.")] = False

    @property
    def is_whole(self) -> bool:
        """True if no value is to be shortened."""
        return self.as_json or self.as_csv or self.as_markdown or self.wide


def prints_table(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the last parameter of a command, `form`, by the options of `Form`."""
    hints = inspect.signature(command, eval_str=True).parameters
    options = inspect.signature(Form, eval_str=True).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:
        form = Form(**{each.name: given.pop(each.name) for each in fields(Form)})
        if form.as_json + form.as_csv + form.as_markdown > 1:
            raise UsageError("--json, --csv and --markdown are three forms of one table; give one of them")
        command(**given, form=form)

    parameters = [*(each for name, each in hints.items() if name != "form"), *options.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
