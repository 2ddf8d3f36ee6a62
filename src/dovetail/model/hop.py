"""The vocabulary that all packages share: Stage, Reason, Relation, Hop and Observation.

A core reports what it saw as an `Observation`; the journal numbers it and turns it into one `Hop` per counterpart.
Times are whole microseconds since 1970-01-01 UTC, everywhere.
"""

from __future__ import annotations

import enum
from typing import Self

import msgspec

from dovetail.model.address import Address


class _Word(enum.StrEnum):
    """A word with a sentence for people. Journals store its `code`; never reuse one."""

    code: int
    sentence: str

    def __new__(cls, text: str, code: int, sentence: str) -> Self:
        member = str.__new__(cls, text)
        member._value_ = text
        member.code = code
        member.sentence = sentence
        return member


class Stage(_Word):
    """What a server saw happen to a message."""

    CREATED = "created", 1, "created by this server: a response, a report or a message of its own"
    ACCEPTED = "accepted", 2, "accepted from outside"
    REJECTED = "rejected", 3, "rejected, with a reason; bytes are kept up to a limit, as evidence"
    DELIVERED = "delivered", 4, "written to the connection of a client or owner, or passed to an application"
    ECHOED = "echoed", 5, "returned to the sender's own clients"
    FORWARDED = "forwarded", 6, "sent to another server"
    UNDELIVERABLE = "undeliverable", 7, "not delivered to this recipient; the reason says why"
    EXPIRED = "expired", 8, "expired before delivery"
    REDELIVERED = "redelivered", 9, "delivered after an earlier attempt failed"
    PULLED = "pulled", 10, "requested because it was missing"
    SERVED = "served", 11, "sent because somebody requested it"
    PURGED = "purged", 12, "bytes deleted after expiry; the address stays"
    ROUTED = "routed", 13, "matched to this recipient, by a wildcard or where its bytes are not kept"
    NOTED = "noted", 14, "something about the server itself, not about a message; the reason says what"


class Reason(_Word):
    """Why a message was refused or did not arrive: one closed list for all fabrics.

    Codes are permanent: 1-31 any fabric, 32-95 pcp, 96-159 won, 160-223 swarm.
    """

    # any fabric
    MALFORMED = "malformed", 1, "the bytes cannot be decoded"
    INVALID_SCHEMA = "invalid_schema", 2, "it decodes, but a field is missing, unknown or of the wrong type"
    TOO_LARGE = "too_large", 3, "it is larger than the configured limit"
    UNSUPPORTED_VERSION = "unsupported_version", 4, "its protocol version is not supported"
    LIFETIME_OVER = "lifetime_over", 5, "it had expired when it arrived, or expired before it could be delivered"
    FROM_FUTURE = "from_future", 6, "its timestamp is further ahead than the tolerated clock skew"
    RATE_LIMITED = "rate_limited", 7, "its source exceeded its rate limit"
    BAD_SIGNATURE = "bad_signature", 8, "its signature does not verify"
    NO_RECIPIENT = "no_recipient", 9, "none of its recipients is known or connected"
    QUEUE_FULL = "queue_full", 10, "a bounded queue was full"
    SHUTTING_DOWN = "shutting_down", 11, "the server was stopping"
    CLOCK_STEPPED = "clock_stepped", 12, "the server's clock was set or drifted, by the amount given in the hop"
    HOPS_LOST = "hops_lost", 13, "hops of this journal were lost, and the operator let it continue without them"
    RESTARTED = "restarted", 14, "the server was started again; the hop names when it was last known to run"
    STOPPED = "stopped", 15, "the server was stopped"

    # pcp
    NOT_ASSOCIATED = "not_associated", 32, "the client sent it before its session was associated"
    SENDER_MISMATCH = "sender_mismatch", 33, "its sender is not the session's own URI"
    UNAUTHORIZED = "unauthorized", 34, "no rule allows it for every target"
    BAD_URI = "bad_uri", 35, "a sender or target is not a PCP URI"
    FORBIDDEN_CHARACTERS = "forbidden_characters", 36, "a message type or target has characters outside the allowed set"
    NOT_TRANSLATABLE = "not_translatable", 37, "it cannot be expressed in the other client's protocol version"
    UNKNOWN_REQUEST = "unknown_request", 38, "the broker has no task for this message type"
    WRONG_FRAME = "wrong_frame", 39, "a text frame where a binary one is expected, or vice versa"
    SLOW_CONSUMER = "slow_consumer", 40, "the recipient's connection exceeded its queue limit and was closed"
    CONNECTION_LOST = "connection_lost", 41, "the recipient's connection broke before the frame was written"
    REDELIVERY_OVERFLOW = (
        "redelivery_overflow",
        42,
        "too many messages were waiting for this client; the oldest was dropped",
    )
    SUPERSEDED = "superseded", 43, "a newer connection took over this URI"
    ASSOCIATION_TIMEOUT = "association_timeout", 44, "the client did not associate in time"
    SENDER_QUOTA = "sender_quota", 46, "too many messages of this sender were waiting; its oldest was dropped"
    HELD_TOO_LONG = "held_too_long", 47, "it waited for its recipient for as long as the broker keeps messages"
    INTERRUPTED = "interrupted", 45, "the broker stopped before the outcome was journaled; it may have arrived"

    # won
    POISON_GRAPH = "poison_graph", 96, "its blank nodes would make canonicalization too expensive"
    WRONG_ADDRESS = "wrong_address", 97, "its URI is not the address of its content"
    UNSIGNED = "unsigned", 98, "it has no signature over its envelope and contents"
    WRONG_SIGNER = "wrong_signer", 99, "its signer may not sign for its sender"
    UNKNOWN_KEY = "unknown_key", 100, "the signer's public key could not be found"
    UNKNOWN_ATOM = "unknown_atom", 101, "the atom it names does not exist here"
    ATOM_EXISTS = "atom_exists", 102, "an atom with this URI already exists"
    ATOM_INACTIVE = "atom_inactive", 103, "the atom is not active"
    ATOM_DELETED = "atom_deleted", 104, "the atom was deleted"
    UNKNOWN_SOCKET = "unknown_socket", 105, "the atom has no such socket"
    WRONG_STATE = "wrong_state", 106, "the connection's state does not allow this message"
    SELF_CONNECTION = "self_connection", 107, "an atom cannot be connected to itself"
    WRONG_NODE = "wrong_node", 108, "its sender or recipient is an atom of another node"
    ORPHAN_RESPONSE = "orphan_response", 109, "it responds to an unknown message"
    CONFLICTING_RESPONSE = "conflicting_response", 110, "a different response to the same message was received earlier"
    BAD_REFERENCE = "bad_reference", 111, "previousMessage names something that may not be referenced"
    RESERVED_NAMESPACE = "reserved_namespace", 112, "its content uses the vocabulary of the envelope"
    UNREACHABLE_NODE = "unreachable_node", 113, "the other node could not be reached"
    CLOCK_SKEW = "clock_skew", 114, "its timestamp is too far from this server's clock"

    # swarm
    BAD_INDICATOR = "bad_indicator", 160, "the first byte names an unsupported protocol"
    UNKNOWN_OPCODE = "unknown_opcode", 161, "the opcode is not defined"
    BAD_REFERENCE_COUNT = "bad_reference_count", 162, "it claims more than four references"
    TRAILING_BYTES = "trailing_bytes", 163, "there are bytes after the end of the message"
    BAD_TIME_RANGE = "bad_time_range", 164, "the range ends before it starts"
    BAD_PROOF_OF_WORK = "bad_proof_of_work", 165, "its proof of work does not meet the swarm's target"
    TTL_TOO_LONG = "ttl_too_long", 166, "its lifetime exceeds the swarm's maximum"
    UNKNOWN_SWARM = "unknown_swarm", 167, "the swarm signature is not one of ours at this time"
    BAD_FRAGMENT = "bad_fragment", 168, "a fragment has the wrong size, index or count"
    UNKNOWN_TICKET = "unknown_ticket", 169, "a list answers a request that was not made"
    TRUNCATED = "truncated", 171, "it is shorter than its fixed part or its declared parts"
    SELF_REFERENCE = "self_reference", 172, "it refers to itself"
    GIVEN_UP = "given_up", 173, "it was requested as often as allowed but never arrived"
    DUPLICATE_IDENTITY = "duplicate_identity", 174, "its sender uses the address of the peer that received it"


STAGES = {str(stage): stage for stage in Stage}
REASONS = {str(reason): reason for reason in Reason}
"""Stages and reasons by their names in files."""


class Relation(enum.StrEnum):
    """How a child names its parent."""

    RESPONDING_TO = "responding_to"
    PREVIOUS = "previous"
    REFERS = "refers"
    IN_REPLY_TO = "in_reply_to"


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a core saw happen to one message at one moment, for any number of counterparts.

    It becomes one hop per counterpart, or a single hop if it has none. `raw` is the bytes to store; pass them whenever
    they are available, the journal stores them once. `size` is the size on the wire if `raw` is truncated or left out.
    `expires_us` is when the bytes may be purged; None is never. `digest` is the digest of bytes that no longer exist,
    for rebuilding a journal.
    """

    at_us: int
    stage: Stage
    message: Address
    counterparts: tuple[str, ...] = ()
    reason: Reason | None = None
    raw: bytes | None = None
    size: int | None = None
    expires_us: int | None = None
    digest: bytes | None = None


class Hop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of a journal: one server's observation of one message and at most one counterpart.

    `raw` and `size` are set only on the hop that first saw the message.
    """

    server: str
    seq: int
    at_us: int
    fabric: str
    stage: Stage
    message: Address
    counterpart: str | None = None
    reason: Reason | None = None
    raw: bytes | None = None
    size: int | None = None
