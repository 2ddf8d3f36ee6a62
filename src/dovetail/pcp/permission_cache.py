"""What sessions may send, looked up once per session and message type, and dropped when the rules change."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.pcp.association import find_refusal
from dovetail.pcp.authorization import Authorization, matches_type
from dovetail.pcp.session import Permission, Session
from dovetail.pcp.settings import PcpSettings
from dovetail.pcp.uri import BROKER_URI
from dovetail.pcp.vocabulary import INVENTORY_REQUEST

MAX_PERMISSIONS = 256


class PermissionCache:
    """The rules of a broker as they apply to its sessions."""

    def __init__(self, settings: PcpSettings) -> None:
        self.authorization = Authorization(settings)
        self._bodies = settings.bodies

    def look_up(self, session: Session, message_type: str) -> Permission:
        """The permission of a session for a message type; the session caches it."""
        if len(session.permissions) >= MAX_PERMISSIONS:
            session.permissions.clear()
        assert session.uri is not None
        policy = self.authorization.policy(session.uri, message_type)
        permission = session.permissions[message_type] = Permission(policy, self.keeps_body(message_type))
        return permission

    def keeps_body(self, message_type: str) -> bool:
        """True if the journal stores the bytes of this message type."""
        for rule in self._bodies:
            if matches_type(rule.message_type, message_type):
                return rule.bodies == "keep"
        return True

    def may_associate(self, session: Session) -> bool:
        """True if the rules would let an associated session associate now."""
        assert session.uri is not None
        return find_refusal(session, session.uri, self.authorization) is None

    def may_subscribe(self, session: Session) -> bool:
        """True if the rules would let an associated session request the inventory now."""
        assert session.uri is not None
        return self.authorization.policy(session.uri, INVENTORY_REQUEST).judge(BROKER_URI).is_allowed

    def change_rules(self, settings: PcpSettings, sessions: Iterable[Session]) -> None:
        """Replace the rules, and drop what the sessions cached under the old ones."""
        self.authorization = Authorization(settings)
        for session in sessions:
            session.permissions.clear()
            session.drop_template()
