"""What sessions may send, looked up once per session and message type, and forgotten when the rules change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.pcp.association import find_refusal
from dovetail.pcp.authorization import Authorization, matches_type
from dovetail.pcp.routing import find_forbidden
from dovetail.pcp.session import Grant, Session
from dovetail.pcp.settings import BodyRule, Rule
from dovetail.pcp.uri import BROKER_URI
from dovetail.pcp.vocabulary import INVENTORY_REQUEST

MAX_GRANTS = 256


class Grants:
    """The rules of a broker as its sessions meet them."""

    def __init__(self, rules: Sequence[Rule], bodies: Sequence[BodyRule]) -> None:
        self.authorization = Authorization(rules)
        self._bodies = bodies

    def grant(self, session: Session, message_type: str) -> Grant | None:
        """What is known about a message type of a session; None where it has characters that are not allowed."""
        if find_forbidden(message_type, []) is not None:
            return None
        if len(session.grants) >= MAX_GRANTS:
            session.grants.clear()
        assert session.uri is not None
        policy = self.authorization.policy(session.uri, message_type)
        grant = session.grants[message_type] = Grant(policy, self.keeps_body(message_type))
        return grant

    def keeps_body(self, message_type: str) -> bool:
        """Whether the journal keeps the bytes of this message type."""
        for rule in self._bodies:
            if matches_type(rule.message_type, message_type):
                return rule.bodies == "keep"
        return True

    def lets_associate(self, session: Session) -> bool:
        """Whether the rules would let an associated session associate now."""
        assert session.uri is not None
        return find_refusal(session, session.uri, self.authorization) is None

    def lets_subscribe(self, session: Session) -> bool:
        """Whether the rules would let an associated session ask for the inventory now."""
        assert session.uri is not None
        return self.authorization.policy(session.uri, INVENTORY_REQUEST).judge(BROKER_URI).is_allowed

    def change_rules(self, rules: Sequence[Rule], sessions: Iterable[Session]) -> None:
        """From now on these rules decide; what the sessions remember of the earlier ones is forgotten."""
        self.authorization = Authorization(rules)
        for session in sessions:
            session.grants.clear()
            session.template = None
