"""Contexts: named defaults for commands and calls: server, identity, keys, journals, tables.

A context is a TOML file NAME.toml in the user's configuration directory ($XDG_CONFIG_HOME/dovetail/contexts, or
$DOVETAIL_CONFIG_DIR/contexts). The file `current` there names the default context; DOVETAIL_CONTEXT takes precedence.
No private key is copied: contexts name files.
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dovetail.journal.durable_file import replace_file
from dovetail.model.errors import ConfigError, UsageError

VARIABLE = "DOVETAIL_CONTEXT"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CURRENT = "current"
_MAX_BYTES = 65_536


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The defaults that commands and `connect` take from a context."""

    url: str | None = None
    """The broker's URL."""
    identity: str | None = None
    """The identity at the broker: pcp://NAME/TYPE."""
    certificate: str | None = None
    tls_key: str | None = None
    authority: str | None = None
    home: str | None = None
    """The directory of a won owner."""
    directory: str | None = None
    """The directory of a running swarm peer."""
    journals: tuple[str, ...] = ()
    lake: str | None = None
    tables: str | None = None
    trust: tuple[str, ...] = ()


_FILES = {"certificate", "tls_key", "authority", "home", "directory", "journals", "trust"}


def contexts_directory() -> Path:
    """Where contexts are stored."""
    own = os.environ.get("DOVETAIL_CONFIG_DIR")
    if own:
        return Path(own) / "contexts"
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "dovetail" / "contexts"


def list_contexts() -> list[str]:
    """The names of all contexts."""
    return sorted(path.stem for path in contexts_directory().glob("*.toml"))


def current_context() -> str | None:
    """The name of the default context."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    try:
        return (contexts_directory() / _CURRENT).read_text().strip() or None
    except OSError:
        return None


def load_context(name: str | None = None) -> Context:
    """The context of this name, or the current one; an empty one if no name is given and none is current."""
    path = context_file(name)
    if path is None:
        return Context()
    try:
        with path.open("rb") as file:
            table = tomllib.loads(file.read(_MAX_BYTES).decode())
        return msgspec.convert(table, Context)
    except FileNotFoundError:
        known = ", ".join(list_contexts()) or "none yet"
        raise ConfigError(f"there is no context {path.stem!r}; there are: {known}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {str(error)[:1].lower()}{str(error)[1:]}") from None


def context_file(name: str | None = None) -> Path | None:
    """The file of the context of this name, or of the current one; None if there is none."""
    chosen = name or current_context()
    return None if chosen is None else _path(chosen)


def save_context(name: str, context: Context) -> Path:
    """Write a context, readable only by its user; paths become absolute."""
    path = _path(name)
    make_contexts_directory()
    given: dict[str, Any] = msgspec.to_builtins(context)
    lines = [f"{key} = {_toml(_absolute(key, value))}" for key, value in given.items()]
    _write(path, "\n".join(lines) + "\n")
    return path


def make_contexts_directory() -> None:
    """Create the directory for contexts if it is missing; raises ConfigError if that is not possible."""
    from dovetail.keys.files import make_private_directory  # loads what reading a context does not need

    with _naming(contexts_directory()):
        make_private_directory(contexts_directory())


def use_context(name: str) -> None:
    """Make a context the current one."""
    load_context(name)
    _write(contexts_directory() / _CURRENT, name + "\n")


def missing_files(context: Context) -> list[str]:
    """The files and directories that a context names and that do not exist."""
    found: list[str] = []
    for key, value in msgspec.to_builtins(context).items():
        if key in _FILES:
            found += [
                f"{key}: {path}" for path in ([value] if isinstance(value, str) else value) if not Path(path).exists()
            ]
    return found


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(f"context {name[:80]!r}, expected letters, digits, dots, dashes and underscores")
    return contexts_directory() / f"{name}.toml"


def _write(path: Path, text: str) -> None:
    with _naming(path):
        replace_file(path, text.encode(), mode=0o600)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file cannot be written, and how to choose another place for it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{path} cannot be written: {why}; $DOVETAIL_CONFIG_DIR can name another place") from None


def _absolute(key: str, value: Any) -> Any:
    if key not in {*_FILES, "lake", "tables"}:
        return value
    if isinstance(value, str):
        return value if "://" in value else str(Path(value).absolute())
    return [_absolute(key, each) for each in value]


def _toml(value: Any) -> str:
    # JSON text without control characters is valid TOML, and so is a list of it
    return msgspec.json.encode(value).decode()
