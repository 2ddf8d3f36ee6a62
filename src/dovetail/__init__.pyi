"""The public API, for type checkers."""

from dovetail import sync as sync
from dovetail.api.audit import (
    Audit as Audit,
)
from dovetail.api.audit import (
    Lake as Lake,
)
from dovetail.api.audit import (
    MessageTrace as MessageTrace,
)
from dovetail.api.audit import (
    Table as Table,
)
from dovetail.api.audit import (
    Tables as Tables,
)
from dovetail.api.audit import (
    open_lake as open_lake,
)
from dovetail.api.audit import (
    open_tables as open_tables,
)
from dovetail.api.connect import Client as Client
from dovetail.api.connect import connect as connect
from dovetail.api.local import Site as Site
from dovetail.api.local import local as local
from dovetail.api.pcp import PcpClient as PcpClient
from dovetail.api.receipts import Receipt as Receipt
from dovetail.api.receipts import verify_journal as verify_journal
from dovetail.api.swarm import Evidence as Evidence
from dovetail.api.swarm import Gap as Gap
from dovetail.api.swarm import SwarmPeer as SwarmPeer
from dovetail.api.values import TLS as TLS
from dovetail.api.values import Message as Message
from dovetail.api.values import Outcome as Outcome
from dovetail.api.values import Presence as Presence
from dovetail.api.values import Sent as Sent
from dovetail.api.won import ConversationLog as ConversationLog
from dovetail.api.won import WonClient as WonClient
from dovetail.journal.verify import Verdict as Verdict
from dovetail.model.errors import (
    AuditError as AuditError,
)
from dovetail.model.errors import (
    Closed as Closed,
)
from dovetail.model.errors import (
    ConfigError as ConfigError,
)
from dovetail.model.errors import (
    ConnectFailed as ConnectFailed,
)
from dovetail.model.errors import (
    DovetailError as DovetailError,
)
from dovetail.model.errors import (
    JournalError as JournalError,
)
from dovetail.model.errors import (
    KeyFileError as KeyFileError,
)
from dovetail.model.errors import (
    Missed as Missed,
)
from dovetail.model.errors import (
    MissingExtra as MissingExtra,
)
from dovetail.model.errors import (
    NotAllowed as NotAllowed,
)
from dovetail.model.errors import (
    NotDelivered as NotDelivered,
)
from dovetail.model.errors import (
    ReceiptError as ReceiptError,
)
from dovetail.model.errors import (
    ResourceBusy as ResourceBusy,
)
from dovetail.model.errors import (
    TimedOut as TimedOut,
)
from dovetail.model.errors import (
    UsageError as UsageError,
)
from dovetail.receipt.proof import Proof as Proof
from dovetail.won.integrity import LogFinding as LogFinding

__version__: str
