"""Whether a client may use a URI: checks its certificate, its path, reserved names, and the rules."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.model.hop import Reason
from dovetail.pcp.authorization import Authorization
from dovetail.pcp.session import Session
from dovetail.pcp.uri import BROKER_URI, SERVER_TYPE, has_target_characters, is_uri, parse_uri
from dovetail.pcp.vocabulary import ASSOCIATE_REQUEST


class Refusal(NamedTuple):
    """Why an association is refused."""

    reason: Reason
    detail: str


def find_refusal(session: Session, uri: str, authorization: Authorization) -> Refusal | None:
    """Why this session may not use this URI, or None if it may."""
    if not is_uri(uri):
        return Refusal(Reason.BAD_URI, f"{uri[:80]!r} is not a PCP URI")
    parts = parse_uri(uri)
    if not has_target_characters(uri):
        return Refusal(Reason.FORBIDDEN_CHARACTERS, f"{uri[:80]!r} has characters that are not allowed")
    if parts.is_wildcard:
        return Refusal(Reason.BAD_URI, f"{uri!r} is a wildcard")
    if session.common_name is not None and parts.name != session.common_name:
        return Refusal(
            Reason.SENDER_MISMATCH, f"the name in the certificate is {session.common_name!r}, not {parts.name!r}"
        )
    if parts.client_type == SERVER_TYPE:
        return Refusal(Reason.BAD_URI, f"client type {SERVER_TYPE!r} is reserved for brokers")
    if session.mount.client_type not in (None, parts.client_type):
        return Refusal(Reason.SENDER_MISMATCH, f"{uri!r} does not have the client type of the path")
    if session.uri not in (None, uri):
        return Refusal(Reason.SENDER_MISMATCH, f"this connection is associated as {session.uri}")
    if not authorization.may_claim(uri):
        return Refusal(Reason.UNAUTHORIZED, f"{parts.name!r} may not claim the client type {parts.client_type!r}")
    if not may_associate(uri, authorization):
        return Refusal(Reason.UNAUTHORIZED, f"{uri!r} is not authorised to associate")
    return None


def may_associate(uri: str, authorization: Authorization) -> bool:
    """True if types and rules let a client use a URI."""
    return authorization.may_claim(uri) and authorization.policy(uri, ASSOCIATE_REQUEST).judge(BROKER_URI).is_allowed
