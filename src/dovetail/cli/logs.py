"""Logging for the command line: text or JSON lines on stderr.

The library itself only calls `logging.getLogger("dovetail.<room>")`. Keys, tokens and payloads are never logged; as a
last safeguard, anything that looks like a private key is removed here. Control characters are escaped, so that a peer
cannot forge log lines or control the terminal.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
from typing import Literal, TextIO

_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(
    *, level: str = "info", form: Literal["text", "json"] = "text", stream: TextIO | None = None
) -> logging.Handler:
    """Send what `dovetail` logs at `level` or above to `stream` (stderr); a second call replaces the first."""
    logger = logging.getLogger("dovetail")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


class TextFormatter(logging.Formatter):
    """`2026-03-01 12:00:00.123 INFO  dovetail.pcp session opened`; tracebacks follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_at(record).strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]} {record.levelname:7} {record.name} "
        line += _CONTROL.sub(_escape, _redact(record.getMessage()))
        if record.exc_info:
            trace = _redact(self.formatException(record.exc_info))
            line += "".join(f"\n    {_CONTROL.sub(_escape, each)}" for each in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One object per line: at, level, logger, text, the fields of `extra`, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": _at(record).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": _redact(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in entry:
                entry[name] = value if isinstance(value, bool | int | float) or value is None else _redact(str(value))
        if record.exc_info:
            entry["traceback"] = _redact(self.formatException(record.exc_info))
        return json.dumps(entry)


def _at(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC)


def _redact(text: str) -> str:
    return _PRIVATE_KEY.sub("[private key]", text)


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
