"""Output of a supervisor: its own lines, and those of its processes prefixed with their names."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from typing import TextIO

import msgspec

from dovetail.cli.output import escape
from dovetail.site.supervisor import Listener, State


class Transcript(Listener):
    """Writes text, or one JSON object per line. Data of processes goes to `out`, everything else to `err`."""

    def __init__(self, *, is_json: bool, out: TextIO, err: TextIO) -> None:
        self._is_json = is_json
        self._out = out
        self._err = err

    def changed(self, name: str, state: State, detail: str) -> None:
        """Write one line for each change of state."""
        if self._is_json:
            at = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
            self._write(self._err, json.dumps({"at": at, "process": name, "state": state, "detail": detail}))
        else:
            self._write(self._err, f"{_now()} {name}: {state}" + (f": {escape(detail)}" if detail else ""))

    def became_healthy(self, count: int) -> None:
        """Write one line in text mode; a reader of JSON can count for itself."""
        if not self._is_json:
            self._write(self._err, f"{_now()} all {count} processes run; Ctrl-C or SIGTERM stops them")

    def wrote(self, name: str, line: str, *, is_error: bool) -> None:
        """Pass on a line of a process; a JSON line stays JSON and gets one more key."""
        stream = self._err if is_error else self._out
        if self._is_json:
            self._write(stream, json.dumps({"process": name, **_decode(line)}))
        else:
            self._write(stream, f"{name} | {escape(line)}")

    @staticmethod
    def _write(stream: TextIO, line: str) -> None:
        with contextlib.suppress(OSError):  # the reader has gone; the servers continue
            stream.write(line + "\n")
            stream.flush()


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _decode(line: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {"text": line}
