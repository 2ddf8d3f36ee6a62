"""Reads a configuration: one TOML file, overridden by environment variables, checked key by key.

Every problem names the source of the value, the key, the value and what is allowed; all problems of a file are reported
together. Overrides are variables `DOVETAIL_SECTION__KEY`: two underscores between the parts of the key, upper case.
Text is taken literally, everything else is written as in TOML (`DOVETAIL_LAKE__SEAL_INTERVAL_S=30`). A relative path is
relative to the directory of the file or, in a variable, to the current directory.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from dovetail.lake.location import is_url
from dovetail.model.errors import ConfigError
from dovetail.site.config.fields import LOCATION, PATH_TEXT, PRIVATE
from dovetail.site.config.schema import (
    ENV_PREFIX,
    ENV_SEPARATOR,
    allowed_text,
    bare_type,
    default_of,
    extra_of,
    is_text,
    join_key,
    keys_of,
    section_in,
    section_in_list,
    section_in_map,
    show_value,
    variable_of,
)
from dovetail.site.config.sections import Config
from dovetail.site.config.toml import parse_toml, read_toml

FORMER_NAMES = {
    "audit.patience_s": "loss_timeout_s",
    "pcp.total_queue_bytes": "memory_bytes",
    "won.limits.key_patience_ms": "partner_key_timeout_ms",
}
"""Keys that were renamed; the old name works for one release, with a warning."""

WITHOUT_EFFECT = ("journal.evidence_max_bytes",)
"""Keys that are ignored for one release, with a warning: they never had an effect."""

MAX_PROBLEMS = 200
NOT_SHOWN = "(not shown)"
log = logging.getLogger("dovetail.config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One effective value and its source: `default`, `file`, or the name of a variable."""

    key: str
    value: object
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration that passed all checks."""

    config: Config
    path: Path | None
    settings: tuple[Setting, ...]


class ConfigProblems(ConfigError):
    """All problems of a configuration; as text, the first one and the number of others."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = f" (and {len(problems) - 1} more: dovetail config check lists them)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)
        self.problems = tuple(problems)


def load_config(path: Path | None = None, environ: Mapping[str, str] | None = None) -> LoadedConfig:
    """The configuration in `path` (or all defaults) with the overrides of `environ`; raises ConfigProblems."""
    reader = _Reader(path=path, root=Config)
    table = read_toml(path) if path is not None else {}
    reader.override(table, os.environ if environ is None else environ)
    config = reader.read_section(Config, table, "")
    if reader.problems or not isinstance(config, Config):
        raise ConfigProblems(reader.problems)
    return LoadedConfig(config=config, path=path, settings=tuple(reader.settings))


@dataclass(slots=True)
class _Reader:
    """One read: walks the table alongside the Structs and collects values, sources and problems."""

    path: Path | None
    root: type[Struct]
    problems: list[str] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """Key -> the variable that set its value."""

    def override(self, table: dict[str, Any], environ: Mapping[str, str]) -> None:
        """Put the values of environment variables into the table."""
        names = {name: value for name, value in environ.items() if name.startswith(ENV_PREFIX)}
        if not names:  # listing all keys takes longer than reading the file
            return
        keys = {
            variable_of(key.name): (key.name, key.kind)
            for key in keys_of(self.root)
            if section_in_list(bare_type(key.kind)) is None  # a variable cannot name one table of a list
        }
        for former, name in FORMER_NAMES.items():
            now = variable_of(f"{former.rpartition('.')[0]}.{name}")
            if variable_of(former) in names and now in keys and now not in names:
                names[now] = names.pop(variable_of(former))
                log.warning(
                    "%s is now called %s; the old name will be removed in the next release", variable_of(former), now
                )
        for variable in {variable_of(key) for key in WITHOUT_EFFECT} & names.keys():
            del names[variable]
            log.warning("%s has no effect; it will be refused in the next release", variable)
        for variable, text in sorted(names.items()):
            if variable in keys:
                key, kind = keys[variable]
                if _insert(table, key.split("."), _parse_override(kind, text)):
                    self.variables[key] = variable
                else:
                    self.problems.append(f"environment variable {variable}: the file has no table for {key}")
            elif ENV_SEPARATOR in variable or _names_a_section(variable, self.root):
                near = _nearest(variable, keys)
                self.problems.append(
                    f"environment variable {variable} = {show_value(text)}: no such key"
                    + (f"; did you mean {near}?" if near else "; the form is DOVETAIL_SECTION__KEY")
                )

    def read_section(self, cls: type[Struct], table: Mapping[str, Any], key: str) -> Struct | None:
        """A Struct from a table; None if there were problems, which are recorded."""
        fields = {each.encode_name: each for each in structs.fields(cls)}
        before = len(self.problems)
        table = {
            self._present_name(key, name, table): value
            for name, value in table.items()
            if not self._is_without_effect(join_key(key, name))
        }
        for name in table:
            if name not in fields and len(self.problems) < MAX_PROBLEMS:
                self._unknown(join_key(key, name), table[name], [join_key(key, known) for known in fields])
        values: dict[str, Any] = {}
        for name, each in fields.items():
            dotted = join_key(key, name)
            if name in table:
                values[each.name] = self._read_value(each.type, table[name], dotted)
            elif each.required:
                self.problems.append(f"{self._where(dotted)}: {dotted} is missing, must be {allowed_text(each.type)}")
            else:
                values[each.name] = self._read_default(each.type, default_of(each), dotted)
        if len(self.problems) > before:
            return None
        try:
            return cls(**values)
        except (ValueError, ConfigError) as error:
            self.problems.append(f"{self._where(key)}: [{key}] {error}")
            return None

    def _is_without_effect(self, key: str) -> bool:
        if key in WITHOUT_EFFECT:
            log.warning("%s: %s has no effect; it will be refused in the next release", self._where(key), key)
        return key in WITHOUT_EFFECT

    def _present_name(self, section: str, name: str, table: Mapping[str, Any]) -> str:
        """The name of a key today, if `name` is its former one and the file does not have both."""
        present = FORMER_NAMES.get(join_key(re.sub(r"\[\d+\]", "", section), name))
        if present is None or present in table:
            return name
        former = join_key(section, name)
        log.warning(
            "%s: %s is now called %s; the old name will be removed in the next release",
            self._where(former),
            former,
            present,
        )
        return present

    def _read_value(self, kind: object, value: object, key: str) -> object:
        info = bare_type(kind)
        section = section_in(info)
        if section is not None:
            if isinstance(value, dict):
                return self.read_section(section, value, key)
            self._wrong(key, value, "a table")
            return None
        item = section_in_list(info)
        if item is not None and isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return tuple(self.read_section(item, each, f"{key}[{number}]") for number, each in enumerate(value))
        named = section_in_map(info)
        if named is not None and isinstance(value, dict) and all(isinstance(each, dict) for each in value.values()):
            return {name: self.read_section(named, each, f"{key}.{name}") for name, each in value.items()}
        return self._read_leaf(kind, value, key)

    def _read_leaf(self, kind: object, value: object, key: str) -> object:
        try:
            if isinstance(value, float) and not math.isfinite(value):
                raise msgspec.ValidationError
            converted = msgspec.convert(value, kind, dec_hook=self._decode_path)
        except msgspec.ValidationError:
            self._wrong(key, NOT_SHOWN if extra_of(kind).get("role") == PRIVATE else value, allowed_text(kind))
            return None
        converted = self._resolve(kind, converted, Path.cwd() if key in self.variables else self._base())
        shown = NOT_SHOWN if extra_of(kind).get("role") == PRIVATE else converted
        self.settings.append(Setting(key=key, value=shown, source=self.variables.get(key, "file")))
        return converted

    @staticmethod
    def _resolve(kind: object, value: object, base: Path) -> object:
        """Make relative paths absolute; other values are unchanged."""
        match value:
            case str() if extra_of(kind).get("role") == PATH_TEXT:
                return str(base / Path(value).expanduser())
            case str() if extra_of(kind).get("role") == LOCATION and not is_url(value):
                return str(base / Path(value).expanduser())
            case Path():
                return base / value
            case tuple():
                return tuple(base / each if isinstance(each, Path) else each for each in value)
            case _:
                return value

    def _read_default(self, kind: object, value: object, key: str) -> object:
        if isinstance(value, Struct):
            return self.read_section(type(value), {}, key)
        value = self._resolve(kind, value, self._base())
        self.settings.append(Setting(key=key, value=value, source="default"))
        return value

    def _base(self) -> Path:
        return self.path.absolute().parent if self.path is not None else Path.cwd()

    @staticmethod
    def _decode_path(kind: type, value: object) -> object:
        if kind is Path and isinstance(value, str) and value and "\0" not in value:
            return Path(value).expanduser()
        raise ValueError("not a path")

    def _where(self, key: str) -> str:
        variable = self.variables.get(key)
        return f"environment variable {variable}" if variable else str(self.path or "environment")

    def _wrong(self, key: str, value: object, allowed: str) -> None:
        self.problems.append(f"{self._where(key)}: {key} = {show_value(value)}: must be {allowed}")

    def _unknown(self, key: str, value: object, known: list[str]) -> None:
        is_table = isinstance(value, dict)
        what = f"[{key}]" if is_table else f"{key} = {show_value(value)}"
        near = _nearest(key, known)
        hint = f"did you mean {near}? " if near else ""
        names = ", ".join(name.rpartition(".")[2] for name in known)
        self.problems.append(
            f"{self._where(key)}: {what}: no such {'section' if is_table else 'key'}; {hint}allowed: {names}"
        )


def _insert(table: dict[str, Any], parts: Sequence[str], value: object) -> bool:
    """Set a nested key; False if the file has something other than a table on the way."""
    for part in parts[:-1]:
        inner: object = table.setdefault(part, {})
        if not isinstance(inner, dict):
            return False
        table = inner
    table[parts[-1]] = value
    return True


def _parse_override(kind: object, text: str) -> object:
    if is_text(bare_type(kind)):
        return text
    try:
        # Exactly one value: `1\nlake.directory = "x"` must not smuggle in another key.
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _names_a_section(variable: str, root: type[Struct]) -> bool:
    """True for `DOVETAIL_LAKE_DIRECTORY`, with one underscore, which is meant for us; `DOVETAIL_DEBUG` is not a key."""
    rest = variable.removeprefix(ENV_PREFIX).lower()
    return any(rest.startswith(each.encode_name + "_") for each in structs.fields(root))


def _nearest(name: str, known: Iterable[str]) -> str | None:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return matches[0] if matches else None
