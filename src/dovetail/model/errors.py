"""Every error this project raises on purpose, in one tree.

    DovetailError
      LocalProtocolError     we asked a core for something illegal in its state; raised to the caller
      RemoteProtocolError    the peer broke the rules; caught inside the core, surfaces as a `rejected` hop
      JournalError           the journal cannot do what was asked
        JournalFull          the disk is full, nothing of this append was acknowledged; retriable
        JournalLocked        another process writes this journal
        JournalDamaged       bytes on disk are unreadable or fail verification; names the range
        JournalRolledBack    it is shorter than, or differs from, what it is known to have held
      CheckpointError        a checkpoint or proof cannot be parsed or does not verify
      ConfigError            the configuration file, a key or a value is invalid
      KeyFileError           a key or certificate file cannot be read, written or used
      AuditError             the audit cannot continue, or its tables cannot be read
        NoSuchTable          the run has no table of this name; also a KeyError
      ReceiptError           a receipt cannot be built or is not valid
      ConnectFailed          the other side cannot be reached, or is not what was expected; retriable
      NotAllowed             the server refuses this client
      NotDelivered           a message was not delivered; `sent` says why
      TimedOut               nothing arrived in time; retriable, also a TimeoutError
      Missed                 messages arrived faster than they were read, and the oldest were dropped
      Closed                 the client was closed during a call
      MissingExtra           a package is missing that only an extra installs; the text says which to install
      ResourceBusy           a port or journal is in use by another process; retriable
      UsageError             the command line was misused (exit code 2)

Texts are in lower case, without a full stop, with the value and the limit.
"""

from __future__ import annotations

from typing import Any

from dovetail.model.hop import Reason


class DovetailError(Exception):
    """Base of all errors raised on purpose."""

    retriable = False


class LocalProtocolError(DovetailError):
    """We asked a core for something that is illegal in its current state."""


class RemoteProtocolError(DovetailError):
    """The peer broke the rules; the journal records `reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class JournalError(DovetailError):
    """The journal cannot do what was asked."""


class JournalFull(JournalError):
    """The disk is full: nothing of this append was acknowledged; retry when there is space."""

    retriable = True


class JournalLocked(JournalError):
    """Another process has this journal open for writing."""


class JournalDamaged(JournalError):
    """Bytes on disk are unreadable or fail verification; the text names the range of `seq`."""


class JournalRolledBack(JournalError):
    """It is shorter than, or differs from, what it is known to have held; continuing would sign a second history."""


class CheckpointError(DovetailError):
    """A checkpoint, a note or a proof cannot be parsed or does not verify."""


class ConfigError(DovetailError):
    """The configuration is invalid; the text names file, key, value and what is allowed."""


class KeyFileError(DovetailError):
    """A key or certificate file cannot be read, written or used."""


class AuditError(DovetailError):
    """The audit cannot continue, or its tables cannot be read."""


class NoSuchTable(AuditError, KeyError):
    """The run has no table of this name."""

    __str__ = Exception.__str__


PipelineError = AuditError  # its name inside the audit


class ReceiptError(DovetailError):
    """A receipt cannot be built or is not valid; the text names the first broken step."""


class ConnectFailed(DovetailError):
    """The other side cannot be reached, or is not what was expected; see `url` and `reason`."""

    retriable = True

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url} {reason}")
        self.url = url
        self.reason = reason


class NotAllowed(DovetailError):
    """The server refuses this client."""


class NotDelivered(DovetailError):
    """A message was not delivered; `sent` says why. Retriable if nobody was connected, or if the result is unknown."""

    def __init__(self, text: str, sent: Any, *, retriable: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.retriable = retriable


class TimedOut(DovetailError, TimeoutError):
    """Nothing arrived in time."""

    retriable = True


class Missed(DovetailError):
    """Messages arrived faster than they were read: the `count` oldest were dropped, later ones can be read."""

    retriable = True

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} messages came faster than they were read, and are gone")
        self.count = count


class Closed(DovetailError):
    """The client was closed during a call."""


EXTRAS = {
    **dict.fromkeys(("pyspark", "deltalake", "pandas", "numpy", "jinja2", "vl_convert"), "audit"),
    "obstore": "s3",
    "llvmlite": "fast",
    "uvloop": "fast",
}
"""Packages that only an extra installs, with the extra."""


class MissingExtra(DovetailError):
    """A package is missing that only an extra of Dovetail installs."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.extra = EXTRAS[package]
        super().__init__(f"{package} is not installed; get it with: pip install 'dovetail[{self.extra}]'")

    @classmethod
    def explain(cls, error: ImportError) -> MissingExtra | None:
        """Return the error for a failed import that installing an extra would fix."""
        package = (error.name or "").partition(".")[0]
        return cls(package) if package in EXTRAS else None


class ResourceBusy(DovetailError):
    """A port or journal is in use by another process, which may be about to exit."""

    retriable = True


class UsageError(DovetailError):
    """The command line was misused."""
