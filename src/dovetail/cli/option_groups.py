"""Options that several commands share: a parameter that is a dataclass stands for its fields."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by the fields of that, as options behind the others."""
    own, added, groups = [], [], {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            added += _options(hints[name])
        else:
            own.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group) if each.name in given})
        command(**given)

    run.__signature__ = Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _options(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(group)
    ]
