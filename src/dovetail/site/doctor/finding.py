"""The result of a check."""

from __future__ import annotations

import enum

import msgspec


class Status(enum.StrEnum):
    """The status of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the doctor: what was checked, the result, and what to do if it is not ok."""

    check: str
    status: Status
    detail: str
    advice: str | None = None


def ok(check: str, detail: str) -> Finding:
    """The check passed."""
    return Finding(check=check, status=Status.OK, detail=detail)


def warn(check: str, detail: str, advice: str) -> Finding:
    """It works now, but will fail soon or in some cases."""
    return Finding(check=check, status=Status.WARN, detail=detail, advice=advice)


def fail(check: str, detail: str, advice: str) -> Finding:
    """It will not work."""
    return Finding(check=check, status=Status.FAIL, detail=detail, advice=advice)
