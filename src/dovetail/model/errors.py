"""Every error this project raises on purpose, in one tree.

    DovetailError
      LocalProtocolError     we asked a core for something illegal now; raised to the caller
      RemoteProtocolError    the peer broke the rules; caught inside the core, surfaces as a `rejected` hop
      JournalError           the journal cannot do what was asked
        JournalFull          no room on the disk, nothing of this append was acknowledged; retriable
        JournalBusy          the append queue is at its bound; retriable
        JournalLocked        another process writes this journal
        JournalDamaged       bytes on disk cannot be read or believed; names the range
      CheckpointError        a checkpoint or proof cannot be parsed or does not verify
      ConfigError            the configuration file, a key or a value is not usable
      KeyFileError           a key or certificate file cannot be read, written or used
      PipelineError          the audit cannot go on
      ReceiptError           a receipt is not valid
      ConnectError           the other side cannot be reached, or refuses the connection; retriable
      ResourceBusy           a port or journal is in use by another process; retriable
      UsageError             the command line was misused (exit code 2)

Texts are in lower case, without a full stop, with the value and the limit.
"""

from __future__ import annotations

from dovetail.model.hop import Reason


class DovetailError(Exception):
    """Base of all errors raised on purpose."""

    retriable = False


class LocalProtocolError(DovetailError):
    """We asked a core for something that is illegal in its present state."""


class RemoteProtocolError(DovetailError):
    """The peer broke the rules; `reason` is what goes into the journal."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class JournalError(DovetailError):
    """The journal cannot do what was asked."""


class JournalFull(JournalError):
    """No room on the disk: nothing of this append was acknowledged; try again when there is room."""

    retriable = True


class JournalBusy(JournalError):
    """The append queue is at its bound: the disk is slower than the callers; try again."""

    retriable = True


class JournalLocked(JournalError):
    """Another process has this journal open for writing."""


class JournalDamaged(JournalError):
    """Bytes on disk cannot be read or believed; the text names the range of `seq`."""


class CheckpointError(DovetailError):
    """A checkpoint, a note or a proof cannot be parsed or does not verify."""


class ConfigError(DovetailError):
    """The configuration cannot be used; the text names file, key, value and what is allowed."""


class KeyFileError(DovetailError):
    """A key or certificate file cannot be read, written or used."""


class PipelineError(DovetailError):
    """The audit cannot go on."""


class ReceiptError(DovetailError):
    """A receipt is not valid; the text names the first broken step."""


class ConnectError(DovetailError):
    """The other side cannot be reached, or refuses the connection."""

    retriable = True


class ResourceBusy(DovetailError):
    """A port or journal is in use by another process, which may be about to exit."""

    retriable = True


class UsageError(DovetailError):
    """The command line was misused."""
