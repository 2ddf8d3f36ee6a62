"""What the Structs of a configuration declare: keys, allowed values, variables, and an example file."""

from __future__ import annotations

import json
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, inspect, structs

ENV_PREFIX = "DOVETAIL_"
ENV_SEPARATOR = "__"
EXAMPLE_COMMANDS = (
    "dovetail keys ca",
    "dovetail keys issue broker --dns localhost --ip 127.0.0.1",
    "dovetail keys issue localhost --kind peer --ip 127.0.0.1 --dns localhost",
    "dovetail keys issue pcp://broker/server --kind signing",
    "dovetail keys issue https://localhost:8443/won/resource --kind signing",
)
"""The commands that create the keys used in the example."""
_SHOWN_CHARS = 80
_MAX_SHOWN_BITS = 1024  # Python refuses to convert very long integers to decimal
_EXAMPLE_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key that holds a value."""

    name: str
    kind: object
    default: object
    description: str


def keys_of(cls: type[Struct], prefix: str = "") -> Iterator[Key]:
    """Every key below a Struct, in field order, including those of nested tables."""
    for each in structs.fields(cls):
        name = join_key(prefix, each.encode_name)
        section = section_in(bare_type(each.type))
        if section is None:
            yield Key(name=name, kind=each.type, default=default_of(each), description=description_of(each.type))
        else:
            yield from keys_of(section, name)


def sections_of(cls: type[Struct]) -> Iterator[tuple[str, type[Struct]]]:
    """Every direct section of a configuration, by its heading: `[lake]`, or `[[pcp]]` if there may be several."""
    for each in structs.fields(cls):
        info = bare_type(each.type)
        section = section_in(info)
        if section is not None:
            yield f"[{each.encode_name}]", section
        elif (item := section_in_list(info)) is not None:
            yield f"[[{each.encode_name}]]", item


def default_of(each: structs.FieldInfo) -> object:
    """A field's default; NODEFAULT if it is required."""
    if each.default_factory is not msgspec.NODEFAULT:
        return each.default_factory()
    return each.default


def join_key(prefix: str, name: str) -> str:
    """A dotted key."""
    return f"{prefix}.{name}" if prefix else name


def variable_of(key: str) -> str:
    """The environment variable that overrides a key."""
    return ENV_PREFIX + ENV_SEPARATOR.join(part.upper() for part in key.split("."))


def bare_type(kind: object) -> inspect.Type:
    """A type's description without its metadata."""
    return _strip(inspect.type_info(kind))


def section_in(info: inspect.Type) -> type[Struct] | None:
    """The Struct that a table becomes; None for other types."""
    if isinstance(info, inspect.UnionType):
        return next((found for each in info.types if (found := section_in(_strip(each)))), None)
    if isinstance(info, inspect.StructType):
        return info.cls
    return None


def section_in_list(info: inspect.Type) -> type[Struct] | None:
    """The Struct in `tuple[Struct, ...]`, written as an array of tables."""
    return section_in(_strip(info.item_type)) if isinstance(info, inspect.VarTupleType) else None


def section_in_map(info: inspect.Type) -> type[Struct] | None:
    """The Struct in `dict[str, Struct]`, written as tables with free names."""
    return section_in(_strip(info.value_type)) if isinstance(info, inspect.DictType) else None


def is_text(info: inspect.Type) -> bool:
    """True if values are written as text, so that a variable needs no quotes."""
    match info:
        case inspect.StrType():
            return True
        case inspect.CustomType(cls=cls):
            return issubclass(cls, Path)
        case inspect.LiteralType(values=values):
            return all(isinstance(value, str) for value in values)
        case inspect.UnionType(types=types):
            return all(is_text(_strip(each)) or isinstance(each, inspect.NoneType) for each in types)
        case _:
            return False


def description_of(kind: object) -> str:
    """The sentence in a field's metadata."""
    info = inspect.type_info(kind)
    texts: list[str] = []
    while isinstance(info, inspect.Metadata):
        texts.append(str((info.extra_json_schema or {}).get("description", "")))
        info = info.type
    text = next((text for text in texts if text), "")
    return _capitalised(text) + ("." if text and not text.endswith(".") else "")


def extra_of(kind: object) -> dict[str, Any]:
    """The metadata of a type other than descriptions and limits."""
    info = inspect.type_info(kind)
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra = {**(info.extra or {}), **extra}
        info = info.type
    return extra


def allowed_text(kind: object) -> str:
    """The allowed values of a type, in words."""
    bare = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    if typing.get_origin(bare) is typing.Literal:
        # In declaration order, which msgspec's description has lost.
        return " or ".join(toml_value(value) for value in typing.get_args(bare))
    return str(extra_of(kind).get("allowed") or _allowed(bare_type(kind)))


def _allowed(info: inspect.Type) -> str:
    while isinstance(info, inspect.Metadata):
        if info.extra and "allowed" in info.extra:
            return str(info.extra["allowed"])
        info = info.type
    match info:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _limits(info)
        case inspect.FloatType():
            return "a number" + _limits(info)
        case inspect.StrType():
            longest = f" of at most {info.max_length} characters" if info.max_length is not None else ""
            return f"text{longest}" + (f" that matches {info.pattern}" if info.pattern else "")
        case inspect.CustomType(cls=cls) if issubclass(cls, Path):
            return "a path"
        case inspect.LiteralType(values=values):
            return " or ".join(toml_value(value) for value in values)
        case inspect.UnionType(types=types):
            return " or ".join(_allowed(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return "a list of tables" if section_in(_strip(item)) else f"a list, each {_allowed(item)}"
        case inspect.DictType(value_type=value):
            return f"a table of named values, each {_allowed(value)}"
        case inspect.StructType():
            return "a table"
        case _:
            raise TypeError(f"no words for {info}")


def _limits(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return (
            f" from {info.ge:g} to {info.le:g}"
            if isinstance(info, inspect.FloatType)
            else f" from {info.ge} to {info.le}"
        )
    parts = [("at least", info.ge), ("above", info.gt), ("at most", info.le), ("below", info.lt)]
    words = ", ".join(f"{word} {limit}" for word, limit in parts if limit is not None)
    return f" {words}" if words else ""


def _strip(info: inspect.Type) -> inspect.Type:
    while isinstance(info, inspect.Metadata):
        info = info.type
    return info


def show_value(value: object) -> str:
    """A value as in a TOML file, truncated if it is long."""
    text = toml_value(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def toml_value(value: object) -> str:
    """A value in TOML syntax."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(toml_value(item) for item in value)}]"
        case dict():
            return "{" + ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items()) + "}"
        case Struct():
            return toml_value(structs.asdict(value))
        case int() if value.bit_length() > _MAX_SHOWN_BITS:
            return f"a number of {value.bit_length()} bits"
        case _:
            return str(value)


def example_of(kind: object) -> object:
    """The first example in a type's metadata; NODEFAULT if there is none."""
    info = inspect.type_info(kind)
    while isinstance(info, inspect.Metadata):
        examples = (info.extra_json_schema or {}).get("examples")
        if examples:
            return examples[0]
        info = info.type
    return msgspec.NODEFAULT


def example_text(root: type[Struct]) -> str:
    """A complete configuration file with explanations: every key with its default, or an example if it has one."""
    lines = [
        "# Dovetail configuration. Every key is shown with its default; leave out what you do not change.",
        f"# The variable {ENV_PREFIX}SECTION{ENV_SEPARATOR}KEY overrides the key of that [section].",
        "#",
        "# `dovetail up FILE` runs it. These make the keys that it needs, in the directory of the file:",
        "#",
        *(f"#     {command}" for command in EXAMPLE_COMMANDS),
    ]
    for heading, section in sections_of(root):
        lines += ["", *_wrap(_first_line(section)), heading]
        keys = sorted(keys_of(section), key=lambda key: example_of(key.kind) is msgspec.NODEFAULT)
        for key in keys:
            lines += _wrap(f"{key.description} {_capitalised(allowed_text(key.kind))}.")
            example = example_of(key.kind)
            value = key.default if example is msgspec.NODEFAULT else example
            unset = value is None or value is msgspec.NODEFAULT
            lines.append(f"# {key.name} = " if unset else f"{key.name} = {_write_long(value)}")
    return "\n".join(lines) + "\n"


def _write_long(value: object) -> str:
    """A value; tables in a list each on their own line."""
    if isinstance(value, list | tuple) and value and all(isinstance(each, dict) for each in value):
        return "[\n" + "".join(f"  {toml_value(each)},\n" for each in value) + "]"
    return toml_value(value)


def _first_line(cls: type[Struct]) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _EXAMPLE_WIDTH, initial_indent="# ", subsequent_indent="# ")
