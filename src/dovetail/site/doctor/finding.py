"""What a check found."""

from __future__ import annotations

import enum

import msgspec


class Status(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the doctor: what was looked at, how it is, and what to do where it is not well."""

    check: str
    status: Status
    detail: str
    advice: str | None = None


def ok(check: str, detail: str) -> Finding:
    """All is well."""
    return Finding(check=check, status=Status.OK, detail=detail)


def warn(check: str, detail: str, advice: str) -> Finding:
    """It will work, but not for long or not for everything."""
    return Finding(check=check, status=Status.WARN, detail=detail, advice=advice)


def fail(check: str, detail: str, advice: str) -> Finding:
    """It will not work."""
    return Finding(check=check, status=Status.FAIL, detail=detail, advice=advice)
