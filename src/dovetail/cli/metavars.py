"""The names of values in help texts: words for users, not Python types."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from typer.core import TyperArgument, TyperGroup, TyperOption

if TYPE_CHECKING:
    from typer._click import Command, Context

_WORDS = {Path: "PATH", int: "N", float: "NUMBER", dt.datetime: "TIME", str: "TEXT"}


def name_values(command: Command) -> None:
    """Name the values of all parameters of a command, and of the commands below it, that have no metavar."""
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.display_type_rich = _no_type  # type: ignore[method-assign]  # its name says enough
        elif isinstance(parameter, TyperOption) and not parameter.is_flag:
            parameter.metavar = parameter.metavar or _word(parameter)
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            name_values(below)


def _no_type(ctx: Context) -> None:  # noqa: ARG001
    return None


def _word(option: TyperOption) -> str:
    kind = option.type_descriptor
    if kind.choices is not None:
        return "|".join(map(str, kind.choices))
    return _WORDS[(get_args(kind.annotation) or (kind.annotation,))[0]]
