"""The slow, separate implementation: answers the audit's questions from hops in plain Python, one message at a time.

It shares only the codecs and the vocabulary with the pipeline, and is written to be read, not to be fast.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, field

from msgspec import UNSET

from dovetail.model.errors import DovetailError
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.times import parse_time
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.codec_v2 import decode_message as decode_v2
from dovetail.swarm.content import decode_content, expiration_ms, latest_referee_expiration_ms
from dovetail.won.message import decode_message as decode_won
from dovetail.won.message import uri_address
from dovetail.won.signing import extract_keys, verify_signature
from dovetail.won.vocabulary import ATOM_TYPES, RESPONSE_TYPES, MessageType

TAKEN = (Stage.ACCEPTED, Stage.CREATED)
HANDED = (Stage.DELIVERED, Stage.REDELIVERED)
WEEK_US = 7 * 86_400_000_000
PCP_ERRORS = ("error_message", "unauthorized", "ttl_expired", "version_error")


@dataclass
class Known:
    """A message that could be decoded."""

    fabric: str
    address: bytes
    key: bytes
    type: str
    sender: str | None = None
    recipients: list[str] = field(default_factory=list)
    created_us: int | None = None
    expires_us: int | None = None
    links: list[tuple[bytes, str, int | None]] = field(default_factory=list)
    won: object = None


class Oracle:
    """Answers from the hops of all servers."""

    def __init__(self, hops: list[Hop], *, epoch_ms: int, loss_timeout_us: int, node_keys: dict[str, object]):
        self.hops = hops
        self.epoch_ms = epoch_ms
        self.loss_timeout_us = loss_timeout_us
        self.as_of_us = max(hop.at_us for hop in hops)
        self.known: dict[tuple[str, bytes], Known] = {}
        self.of: dict[tuple[str, bytes], list[Hop]] = defaultdict(list)
        for hop in sorted(hops, key=lambda h: (h.at_us, h.server, h.seq)):
            self.of[hop.fabric, bytes(hop.message)].append(hop)
            if hop.raw is not None:
                self._read(hop)
        self.keys = dict(node_keys)
        for message in self.known.values():
            if message.won is not None:
                self.keys.update(extract_keys(message.won))

    def _read(self, hop: Hop) -> None:
        try:
            message = {"pcp": self._pcp, "swarm": self._swarm, "won": self._won}[hop.fabric](hop)
        except DovetailError:
            return
        self.known[message.fabric, message.address] = message

    def _pcp(self, hop: Hop) -> Known:
        if hop.raw[:1] == b"\x01":
            frame = decode_frame(hop.raw)
            e = frame.envelope
            ident, kind, sender, targets, reply, expires = (
                e.id,
                e.message_type,
                e.sender,
                e.targets,
                e.in_reply_to,
                frame.expires_us,
            )
        else:
            e = decode_v2(hop.raw)
            ident, kind, sender, reply, expires = e.id, e.message_type, e.sender, e.in_reply_to, None
            targets = [e.target]
        links = [] if reply is UNSET else [(uuid.UUID(reply).bytes, "in_reply_to", None)]
        return Known(
            "pcp", bytes(hop.message), uuid.UUID(ident).bytes, kind, sender, list(targets), None, expires, links
        )

    def _swarm(self, hop: Hop) -> Known:
        content = decode_content(hop.raw)
        expires = expiration_ms(content.timestamp_ms, content.ttl_epochs, self.epoch_ms)
        links = []
        for edge in content.references:
            latest = latest_referee_expiration_ms(expires, edge.epoch_diff, self.epoch_ms)
            links.append((bytes(edge.msg_hash), "refers", None if latest is None else latest * 1000))
        return Known(
            "swarm",
            bytes(hop.message),
            bytes(hop.message[:8]),
            "content",
            None,
            [],
            content.timestamp_ms * 1000,
            expires * 1000,
            links,
        )

    def _won(self, hop: Hop) -> Known:
        m = decode_won(hop.raw)
        links = [(uri_address(m.responding_to), "responding_to", None)] if m.responding_to else []
        links += [(uri_address(uri), "previous", None) for uri in m.previous]
        return Known(
            "won",
            bytes(m.address),
            bytes(m.address),
            m.type.value,
            m.sender,
            [m.recipient],
            m.timestamp_ms * 1000,
            None,
            links,
            m,
        )

    def holders(self, fabric: str, address: bytes) -> dict[str, int]:
        """Server -> when it first had the message."""
        held: dict[str, int] = {}
        for hop in self.of[fabric, address]:
            if hop.stage in TAKEN:
                held.setdefault(hop.server, hop.at_us)
        return held

    def first(self, fabric: str, address: bytes) -> int | None:
        held = self.holders(fabric, address)
        return min(held.values()) if held else None

    # messages

    def signatures(self) -> set[tuple]:
        return {(m.address, self._signature(m.won)) for m in self.known.values() if m.won is not None}

    def _signature(self, message) -> str:
        key = self.keys.get(message.signer)
        if key is None:
            return "unknown_key"
        return "valid" if verify_signature(message, key) else "invalid"

    # deliveries

    def deliveries(self) -> set[tuple]:
        rows: set[tuple] = set()
        for fabric, address in list(self.of):
            rows |= {"pcp": self._pcp_rows, "won": self._won_rows, "swarm": self._swarm_rows}[fabric](address)
        return rows

    def reach(self, server: str) -> int:
        """How far the journal of a server goes."""
        return max(hop.at_us for hop in self.hops if hop.server == server)

    def owed(self, end_us: int | None, server: str) -> str | None:
        """The outcome of a delivery without a recorded one when its lifetime is over."""
        if end_us is None or self.as_of_us <= end_us + self.loss_timeout_us:
            return None
        return "no_outcome" if self.reach(server) > end_us + self.loss_timeout_us else "unreported"

    def answerers(
        self, fabric: str, message: Known | None, relation: str, kind: str | None = None, server: str | None = None
    ) -> set[str | None]:
        """Who answered a message with something that a server, or this one, accepted."""
        if message is None:
            return set()
        answers = [
            m
            for m in self._responses(fabric, message.key, relation)
            if kind in (None, m.type) and (fabric != "pcp" or message.sender in m.recipients)
        ]
        holders = ((m.sender, self.holders(fabric, m.address)) for m in answers)
        return {sender for sender, held in holders if (held if server is None else server in held)}

    def _pcp_rows(self, address: bytes) -> set[tuple]:
        servers = {hop.server for hop in self.of["pcp", address]}
        return {row for server in servers for row in self._broker_rows(address, server)}

    def _broker_rows(self, address: bytes, server: str) -> set[tuple]:
        """What one broker states, whatever others do."""
        hops = [hop for hop in self.of["pcp", address] if hop.server == server]
        message = self.known.get(("pcp", address))
        begun = min((hop.at_us for hop in hops if hop.stage in TAKEN), default=None)
        outcomes: dict[str | None, list[Hop]] = defaultdict(list)
        for hop in hops:
            if hop.stage in (*HANDED, Stage.EXPIRED, Stage.UNDELIVERABLE, Stage.REJECTED):
                is_arrival = hop.stage is Stage.REJECTED and hop.counterpart not in ("pcp:///server", "pcp:///broker")
                if not is_arrival or begun is None:
                    outcomes[None if is_arrival else hop.counterpart].append(hop)
        times = sum(hop.stage in TAKEN for hop in hops)
        for whom in message.recipients if message else ():  # failed, then accepted again
            if len(outcomes.get(whom, ())) < times and not any(hop.stage in HANDED for hop in outcomes[whom]):
                del outcomes[whom]
        rows = set()
        answerers = self.answerers("pcp", message, "in_reply_to", server=server)
        order = {Stage.EXPIRED: 0, Stage.UNDELIVERABLE: 1, Stage.REJECTED: 2}
        for whom, stated in outcomes.items():
            handed = [hop for hop in stated if hop.stage in HANDED]
            if handed:
                is_sure = whom in answerers or whom in ("pcp:///server", "pcp:///broker")
                outcome, took = "delivered" if is_sure else "handed_over", handed[0].at_us - begun
                second = (None, None)
                if len(stated) > times:
                    last = min(stated, key=lambda h: (-order.get(h.stage, -1), h.stage.value, h.server))
                    second = (last.stage.value, last.server)
                rows.add(("pcp", address, whom, outcome, *second, None, took if took >= 0 else None, len(handed)))
                continue
            hop = min(stated, key=lambda h: order[h.stage])
            outcome = hop.stage.value
            if hop.reason == "unauthorized":
                outcome = "unauthorized"
            rows.add(("pcp", address, whom, outcome, hop.stage.value, hop.server, hop.reason.value, None, 0))
        if begun is not None:
            meant = {target for target in (message.recipients if message else ()) if "*" not in target}
            meant |= {hop.counterpart for hop in hops if hop.stage is Stage.ROUTED}
            for target in meant - set(outcomes):
                stated = message.expires_us if message else None
                owed = self.owed(begun + WEEK_US if stated is None else stated, server)
                if owed:
                    rows.add(("pcp", address, target, owed, "accepted", server, None, None, 0))
                else:
                    rows.add(("pcp", address, target, "in_flight", None, None, None, None, 0))
        return rows

    def _won_rows(self, address: bytes) -> set[tuple]:
        hops, message = self.of["won", address], self.known.get(("won", address))
        recipient = message.recipients[0] if message else None
        journals = {hop.server for hop in self.hops}
        taken = next((hop for hop in hops if hop.stage in TAKEN), None)
        refused = next((hop for hop in hops if hop.stage is Stage.REJECTED), None)
        if message is not None and message.won.type in (*ATOM_TYPES, MessageType.REGISTER):
            server = (taken or refused).server
            if taken:
                return {("won", address, server, "delivered", None, None, None, None, 0)}
            return {("won", address, server, "rejected", "rejected", server, refused.reason.value, None, 0)}
        node = (recipient or "").partition("/atom/")[0]
        sender = (message.sender if message else None) or ""
        handed = [
            hop for hop in hops if hop.stage is Stage.DELIVERED and hop.counterpart == recipient and hop.server == node
        ]
        if handed:
            took = self.took(taken, handed[0].server, handed[0].at_us)
            return {("won", address, recipient, "delivered", None, None, None, took, len(handed))}
        if refused and not taken:
            return {("won", address, recipient, "rejected", "rejected", refused.server, refused.reason.value, None, 0)}
        gone = next((hop for hop in hops if hop.stage is Stage.UNDELIVERABLE), None)
        others = {hop.server for hop in hops if hop.stage is not Stage.FORWARDED}
        lost = [
            hop
            for hop in hops
            if hop.stage is Stage.FORWARDED
            and (hop.server, hop.counterpart) == (sender.partition("/atom/")[0], node)
            and hop.counterpart in journals - others
            and self.reach(hop.counterpart) > hop.at_us + self.loss_timeout_us
        ]
        if lost and not gone and self.as_of_us - lost[0].at_us > self.loss_timeout_us:
            return {("won", address, recipient, "lost", "forwarded", lost[0].server, None, None, 0)}
        home = sender.partition("/atom/")[0]
        is_response = message is not None and message.won.is_response
        is_sent = home == node or any(
            (hop.stage, hop.server, hop.counterpart) == (Stage.FORWARDED, home, node) for hop in hops
        )
        is_kept = is_response and (node in self.holders("won", address) or (is_sent and node not in journals))
        if is_kept or recipient in self.answerers("won", message, "responding_to", MessageType.SUCCESS.value):
            return {("won", address, recipient, "handed_over", None, None, None, None, 0)}
        if gone:
            return {("won", address, recipient, "undeliverable", gone.stage, gone.server, gone.reason.value, None, 0)}
        if refused:
            return {("won", address, recipient, "rejected", "rejected", refused.server, refused.reason.value, None, 0)}
        if recipient in self.answerers("won", message, "responding_to", MessageType.FAILURE.value, home):
            return {("won", address, recipient, "rejected", "rejected", node, None, None, 0)}
        owed = self.owed(taken.at_us + 7 * 86_400_000_000, taken.server) if taken else None
        if owed:
            return {("won", address, recipient, owed, "accepted", taken.server, None, None, 0)}
        if any(hop.stage is Stage.ECHOED for hop in hops):
            return {("won", address, recipient, "echoed", None, None, None, None, 0)}
        return {("won", address, recipient, "in_flight", None, None, None, None, 0)}

    def took(self, begun: Hop, server: str, at_us: int) -> int | None:
        """How long it took from one server to another, or None if their clocks cannot be compared."""
        offset = 0 if server == begun.server else self.offset(begun.server, server)
        took = None if offset is None else at_us - begun.at_us - offset
        return None if took is None or took < 0 else took

    def offset(self, one: str, other: str) -> int | None:
        """By how much the other's clock is ahead, from the fastest legs both ways."""
        there, back = self._legs(one, other), self._legs(other, one)
        if not there or not back:
            return None
        low, high = min(one, other), max(one, other)
        offset = (min(self._legs(low, high)) - min(self._legs(high, low))) // 2
        return offset if one == low else -offset

    def _legs(self, source: str, target: str) -> list[int]:
        times = []
        for hops in self.of.values():
            left = [
                h.at_us
                for h in hops
                if h.server == source and h.stage in (Stage.FORWARDED, Stage.SERVED) and h.counterpart == target
            ]
            came = [
                h.at_us for h in hops if h.server == target and h.stage is Stage.ACCEPTED and h.counterpart == source
            ]
            if left and came:
                times.append(min(came) - min(left))
        return times

    def _swarm_rows(self, address: bytes) -> set[tuple]:
        held, message = self.holders("swarm", address), self.known.get(("swarm", address))
        rows = set()
        refused = {h.server: h for h in reversed(self.of["swarm", address]) if h.stage is Stage.REJECTED}
        makers = {h.server for h in self.of["swarm", address] if h.stage is Stage.CREATED}
        first = next((h for h in self.of["swarm", address] if h.stage in TAKEN), None)
        for peer in self.peers():
            if peer in held and peer == min(makers, default=None):
                rows.add(("swarm", address, peer, "delivered", None, None, None, None, 0))
            elif peer in held:
                took = self.took(first, peer, held[peer])
                rows.add(("swarm", address, peer, "delivered", None, None, None, took, 1))
            elif peer in refused:
                hop = refused[peer]
                rows.add(("swarm", address, peer, "rejected", "rejected", peer, hop.reason.value, None, 0))
            elif held:
                owed = self.owed(message.expires_us, peer)
                if owed and self.is_excused(peer, first.at_us, message.expires_us):
                    rows.add(("swarm", address, peer, "expired", None, peer, "lifetime_over", None, 0))
                else:
                    rows.add(("swarm", address, peer, owed or "in_flight", None, owed and peer, None, None, 0))
        return rows

    def is_excused(self, peer: str, begin_us: int, end_us: int) -> bool:
        """Whether a peer was not running while a message could have reached it."""
        own = [hop for hop in self.hops if hop.server == peer]
        stops = [(0, min(hop.at_us for hop in own))]
        stops += [(parse_time(hop.counterpart), hop.at_us) for hop in own if hop.reason is Reason.RESTARTED]
        soon, late = begin_us + self.loss_timeout_us, end_us - self.loss_timeout_us
        return any(since <= soon and since < end_us and until >= late for since, until in stops)

    def peers(self) -> list[str]:
        return sorted({hop.server for hop in self.hops if hop.fabric == "swarm"})

    # chains

    def chains(self) -> set[tuple]:
        rows = set()
        for message in self.known.values():
            if message.fabric == "won":
                rows |= self._won_chain(message)
            elif message.fabric == "pcp":
                rows |= self._pcp_chain(message)
        return rows

    def _responses(self, fabric: str, key: bytes, relation: str) -> list[Known]:
        found = [
            m
            for m in self.known.values()
            if m.fabric == fabric and any(link[:2] == (key, relation) for link in m.links)
        ]
        return sorted(found, key=lambda m: (self.first(fabric, m.address) or 0, m.address))

    def _won_chain(self, message: Known) -> set[tuple]:
        if message.won.type in RESPONSE_TYPES:
            if ("won", message.links[0][0]) in self.known:
                return set()
            return {("won", message.address, "orphan", "orphan_response", None, None, None, ())}
        if message.won.type is MessageType.REGISTER:
            return set()
        first = second = failure = None
        for response in self._responses("won", message.key, "responding_to"):
            won = response.won
            if won.type is MessageType.FAILURE:
                failure = failure or response
            elif won.sender_socket == won.recipient_socket:
                first = first or response
            else:
                second = second or response
        is_atom = message.won.type in ATOM_TYPES
        state = (
            "failed" if failure
            else "awaiting_sender" if first is None
            else "complete" if is_atom or second
            else "awaiting_recipient"
        )  # fmt: skip
        copies = [
            set(self.holders("won", m.address))
            for m in (message, first, second)
            if m and self.holders("won", m.address)
        ]
        everyone = set().union(*copies) if copies else set()
        only = set().union(*([held for held in copies if held != everyone] or [set()]))
        return {
            (
                "won",
                message.address,
                "atom" if is_atom else "connection",
                state,
                first and first.address,
                second and second.address,
                failure and failure.address,
                () if is_atom else tuple(sorted(only)),
            )
        }

    def _pcp_chain(self, message: Known) -> set[tuple]:
        rows = set()
        for parent, relation, _ in message.links:
            if relation == "in_reply_to" and not any(
                m.fabric == "pcp" and m.key == parent for m in self.known.values()
            ):
                rows.add(("pcp", message.address, "orphan", "orphan_response", None, None, None, ()))
        answers = self._responses("pcp", message.key, "in_reply_to")
        errors = [m for m in answers if m.type.rpartition("/")[2] in PCP_ERRORS]
        good = [m for m in answers if m not in errors]
        if answers:
            state = "complete" if good else "failed"
            failure = errors[0].address if errors else None
            rows.add(("pcp", message.address, "request", state, good[0].address if good else None, None, failure, ()))
        return rows

    # gaps, forks, coverage

    def gaps(self) -> set[tuple]:
        rows = set()
        for child in self.known.values():
            holding = self.holders(child.fabric, child.address)
            for parent, relation, parent_expires in child.links if holding else ():
                owners = [m for m in self.known.values() if (m.fabric, m.key) == (child.fabric, parent)]
                if not owners:
                    unexpired = None if parent_expires is None else parent_expires > self.as_of_us
                    rows.add((child.fabric, child.address, parent, relation, None, 0, unexpired))
                    continue
                if child.fabric == "pcp":
                    continue
                having = self.holders(child.fabric, owners[0].address)
                refusing = {
                    hop.server for hop in self.of[child.fabric, owners[0].address] if hop.stage is Stage.REJECTED
                }
                for server in holding if having else ():
                    if server not in having and server not in refusing:
                        expires = owners[0].expires_us if owners[0].expires_us is not None else parent_expires
                        unexpired = None if expires is None else expires > self.as_of_us
                        rows.add((child.fabric, child.address, parent, relation, server, len(having), unexpired))
        return rows

    def forks(self) -> set[tuple]:
        rows, by_key, roles = set(), defaultdict(set), defaultdict(set)
        taken = [m for m in self.known.values() if self.holders(m.fabric, m.address)]
        for m in taken:
            if m.fabric == "won" and m.won.is_response:
                roles[m.won.signer, m.links[0][0], m.won.sender_socket, m.won.recipient_socket].add(m.address)
            elif m.fabric != "won":
                by_key[m.fabric, m.key].add(m.address)
            for p in (p for p in taken for parent, _, _ in m.links if (p.fabric, p.key) == (m.fabric, parent)):
                if self._is_against_time(m, p):
                    rows.add((m.fabric, "against_time", m.address, (m.address, p.address)))
        replies = {m.address: (m.key, parent) for m in taken if m.fabric == "pcp" for parent, _, _ in m.links}
        for one, (key, parent) in replies.items():
            for other in (other for other, ends in replies.items() if ends == (parent, key) and one <= other):
                kind, evidence = ("self_reference", (one,)) if key == parent else ("cycle", (one, other))
                rows.add(("pcp", kind, one, evidence))
        for (fabric, key), addresses in by_key.items():
            if len(addresses) > 1:
                rows.add((fabric, "shared_id" if fabric == "pcp" else "collision", key, tuple(sorted(addresses))))
        for (_, parent, *_), addresses in roles.items():
            if len(addresses) > 1:
                rows.add(("won", "conflicting_response", parent, tuple(sorted(addresses))))
        return rows

    @staticmethod
    def _is_against_time(child: Known, parent: Known) -> bool:
        match child.fabric:
            case "swarm":
                return parent.created_us >= child.created_us
            case "won":  # the clocks of two nodes differ; one that was set back contradicts itself
                return parent.won.signer == child.won.signer and parent.created_us > child.created_us
        return False

    def coverage(self) -> set[tuple]:
        peers, rows, total = self.peers(), set(), 0
        having = dict.fromkeys(peers, 0)
        for fabric, address in list(self.of):
            held = self.holders(fabric, address) if fabric == "swarm" else {}
            if held:
                total += 1
                times = sorted(held.values())
                spread = times[-1] - times[0] if len(times) == len(peers) else None
                rows.add(("message", address, None, len(held), len(peers) - len(held), spread))
                for peer in held:
                    having[peer] += 1
        return rows | {("peer", None, peer, count, total - count, None) for peer, count in having.items()}
