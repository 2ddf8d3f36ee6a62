"""The output shown on a page: its blocks of ```text, compared with what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

_OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_VARYING = re.compile(r"\\\.\\\.\\\.|[0-9a-f]{6,}|\d+")


def shown(page: Path) -> list[str]:
    """The lines of all outputs on a page."""
    return [line for output in _OUTPUT.findall(page.read_text()) for line in output.splitlines()]


def pattern_of(line: str) -> str:
    """A line as a pattern: hex digits and numbers differ between runs, and `...` matches anything."""

    def varying(match: re.Match[str]) -> str:
        if match[0].startswith("\\"):
            return ".*"
        return r"\d+" if match[0].isdigit() else "[0-9a-f]+"

    return _VARYING.sub(varying, re.escape(line))


def assert_printed(lines: list[str], printed: str) -> None:
    """Check that each of these lines, as a pattern, matches a printed line."""
    assert lines
    for line in lines:
        assert re.search(f"^{pattern_of(line)}$", printed, re.MULTILINE), f"{line}\nis not in:\n{printed}"
