"""TOML from a file or a variable, within limits: input that would exhaust the parser is refused in one line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from dovetail.keys.files import read_bounded
from dovetail.model.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024
MAX_KEY_PARTS = 64
_POSITION = re.compile(r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
# Parsing time is quadratic in the number of parts of a key.
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text; ValueError says what is wrong, with the position if it is known."""
    long_key = _LONG_KEY.search(text)
    if long_key is not None:
        line = text.count("\n", 0, long_key.start()) + 1
        raise ValueError(f"a key of more than {MAX_KEY_PARTS} parts (at line {line}, column 1)")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("arrays or tables are nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises ConfigError with the file's name, and line and column if they are known."""
    data = read_bounded(path, MAX_FILE_BYTES, ConfigError)
    try:
        return parse_toml(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text") from None
    except ValueError as error:
        match = _POSITION.match(str(error))
        what = (match["what"] if match else str(error)).rstrip(".")
        what = what[:1].lower() + what[1:]
        if match and match["line"]:
            raise ConfigError(f"{path}:{match['line']}:{match['column']}: {what}") from None
        end = " at the end of the file" if match else ""
        raise ConfigError(f"{path}: {what}{end}") from None
