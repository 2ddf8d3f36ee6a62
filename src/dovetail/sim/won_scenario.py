"""Nodes and owners in the simulated world: every acknowledged message is present everywhere, once.

`places` is the number of nodes, 2 to 5; each has two owners, and every owner talks to two others throughout. Some atoms
are created late: others request a connection with them before, are refused by their node, and ask again. In half of the
worlds owners also close connections, deactivate their atoms for a while, replace their documents and delete them, so
messages meet connections and atoms that no longer take them. Streams are links, and the label of a stream names its
opener. Fetching a document takes time, and fails if the node is down or cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dovetail.model.hop import Hop, Reason, Stage
from dovetail.model.wire import LinkId
from dovetail.sim.core import Boot, CoreFactory
from dovetail.sim.invariants import Finding, Owed, check_journals, check_one_outcome, check_taken_once
from dovetail.sim.process import ProcessOptions
from dovetail.sim.randomness import draw_between
from dovetail.sim.scenario import Setting
from dovetail.sim.world import World
from dovetail.won import events as e
from dovetail.won.chain import ChainState, is_undeliverable_notice
from dovetail.won.connection import ConnectionState
from dovetail.won.conversation import Delivery
from dovetail.won.integrity import check_conversation
from dovetail.won.links import LinkKind
from dovetail.won.message import Message, decode_message
from dovetail.won.node import Node
from dovetail.won.owner import Owner
from dovetail.won.resources import encode_resource
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import CONNECTION_TYPES, MessageType, node_of_atom

SETTINGS = WonSettings(retry_ms=200, max_retry_ms=4000, response_timeout_ms=8000, key_timeout_ms=3000, catch_up_page=8)
HOSTILE = {
    "max_message_quads": (24, 30),
    "max_references": (2, 4),
    "window": (1, 3),
    "catch_up_page": (1, 3),
    "max_held_frames": (1, 3),
    "max_queue": (3, 40),
    "max_dials": (1, 2),
    "max_retries_per_s": (1, 20),
    "recent_messages": (64, 64),
    "max_deferred": (1, 4),
}
"""Limits of a hostile world; each is drawn from this range by the seed."""
IMPATIENT = {"response_timeout_ms": (100, 1_000), "message_lifetime_ms": (200, 8_000)}
IMPATIENT_SHARE = 0.3
"""Of hostile worlds: nodes give up what others do not answer soon."""
OWNERS_PER_NODE = 2
MIN_NODES, MAX_NODES = 2, 5
PAUSE_US = (20_000, 120_000)
"""How long until the next message is sent."""
GHOST = "ghost"
GHOST_EVERY = 10
LATE_SHARE = 0.3
"""The share of atoms that are created late, by up to half of the duration."""
CHANGING_SHARE = 0.5
"""The share of worlds in which owners change atoms and close connections."""
CHANGE_EVERY = 3
INACTIVE_US = (50_000, 600_000)
"""For how long an atom is deactivated."""
REFUSALS_OF_CHANGES = (Reason.WRONG_STATE, Reason.ATOM_INACTIVE, Reason.ATOM_DELETED)
GET_US = 40_000
"""One-way delay of fetching a document."""


class WonScenario:
    """Nodes, owners and their messages."""

    def __init__(self, world: World, setting: Setting) -> None:
        self.world = world
        self._chance = world.randomness.stream("traffic")
        count = max(MIN_NODES, min(setting.places, MAX_NODES))
        self.nodes = {f"node-{i}": f"https://node-{i}.example/won/resource" for i in range(count)}
        self.places = {uri: name for name, uri in self.nodes.items()}
        self.atoms = {
            f"owner-{i}-{j}": f"{uri}/atom/owner-{j}"
            for i, uri in enumerate(self.nodes.values())
            for j in range(OWNERS_PER_NODE)
        }
        self._created_at = {
            atom: world.now + draw_between(self._chance, 1, setting.duration_us // 2)
            for atom in self.atoms.values()
            if self._chance.random() < LATE_SHARE
        }
        limits = world.randomness.stream("limits")
        bounds = HOSTILE if setting.is_hostile else {}
        if setting.is_hostile and world.randomness.stream("patience").random() < IMPATIENT_SHARE:
            bounds = HOSTILE | IMPATIENT
        small = {name: draw_between(limits, *ends) for name, ends in bounds.items()}
        self.settings = msgspec.structs.replace(SETTINGS, **small)
        self._may_fail = setting.is_hostile
        self._changes = world.randomness.stream("changes")
        self._is_changing = self._changes.random() < CHANGING_SHARE
        durability = setting.durability or "full"  # `relaxed` nodes may lose in a crash what they have signed
        for name, uri in self.nodes.items():
            options = ProcessOptions(durability=durability, observer=self._observe, on_accepted=_accept)
            world.add_process(name, self._make_node(uri), server=uri, options=options)
        for name, atom in self.atoms.items():
            world.add_process(name, self._make_owner(atom), server=atom, options=ProcessOptions(observer=self._observe))
            if atom in self._created_at:
                world.command(name, self._make_creation(atom), after_us=self._created_at[atom] - world.now)
        self._plan_traffic(self._draw_pairs(), setting.duration_us)

    def node(self, name: str) -> Node:
        """The core of a node's process, which must be up."""
        core = self.world.processes[name].core
        assert isinstance(core, Node), f"{name} is down"
        return core

    def owners(self) -> dict[str, Owner]:
        """The cores of all owners' processes, which must be up."""
        found = {}
        for name in self.atoms:
            core = self.world.processes[name].core
            assert isinstance(core, Owner), f"{name} is down"
            found[name] = core
        return found

    # -- the processes

    def _key(self, uri: str) -> SigningKey:
        return SigningKey(self.world.randomness.derive_key(uri))

    def _make_node(self, uri: str) -> CoreFactory:
        def factory(boot: Boot) -> Node:
            node = Node(uri, self._key(uri), boot.random, settings=self.settings)
            node.restore(boot.journal.hops(), boot.now)
            return node

        return factory

    def _make_owner(self, atom: str) -> CoreFactory:
        def factory(boot: Boot) -> Owner:
            owner = Owner(atom, self._key(atom), boot.random, settings=self.settings)
            owner.restore(boot.journal.hops(), boot.now)
            if self.world.now >= self._created_at.get(atom, 0):
                self._make_creation(atom)(owner, boot.now)
            owner.start(boot.now)
            return owner

        return factory

    @staticmethod
    def _make_creation(atom: str) -> Callable[[Owner, int], None]:
        def act(owner: Owner, now: int) -> None:
            if not _exists(owner):
                owner.create([f"{atom}#chat"], now)

        return act

    # -- the traffic

    def _draw_pairs(self) -> list[tuple[str, str]]:
        """Pair each owner with the next one and one more."""
        names = list(self.atoms)
        pairs = []
        for number, name in enumerate(names):
            others = [other for other in names if other != name]
            pairs.append((name, names[(number + 1) % len(names)]))
            pairs.append((name, others[draw_between(self._chance, 0, len(others) - 1)]))
        return pairs

    def _plan_traffic(self, pairs: list[tuple[str, str]], duration_us: int) -> None:
        moment = 0
        while moment < duration_us:
            moment += draw_between(self._chance, *PAUSE_US)
            one, other = pairs[draw_between(self._chance, 0, len(pairs) - 1)]
            if draw_between(self._chance, 0, 1):
                one, other = other, one
            self.world.command(one, self._make_speech(one, other), after_us=moment)
            if not draw_between(self._chance, 0, GHOST_EVERY - 1):
                self.world.command(one, self._make_ghost_speech(one, other), after_us=moment)
            if self._is_changing and not draw_between(self._changes, 0, CHANGE_EVERY - 1):
                self._plan_change(one, other, moment)

    def _plan_change(self, one: str, other: str, moment: int) -> None:
        """An owner closes a connection, replaces its document, deletes its atom, or deactivates it for a while."""
        socket, target = f"{self.atoms[one]}#chat", f"{self.atoms[other]}#chat"
        more = [socket, f"{self.atoms[one]}#more"]

        def plan(change: Callable[[Owner, int], object], after_us: int = 0) -> None:
            def act(owner: Owner, now: int) -> None:
                if _exists(owner):
                    change(owner, now)

            self.world.command(one, act, after_us=moment + after_us)

        which = draw_between(self._changes, 0, 9)
        if which < 3:
            plan(lambda owner, now: owner.send_message(MessageType.CLOSE, socket, target, now))
        elif which < 6:
            plan(lambda owner, now: owner.replace(more, now))
        elif which == 6:
            plan(lambda owner, now: owner.change(MessageType.DELETE, now))
        else:
            plan(lambda owner, now: owner.change(MessageType.DEACTIVATE, now))
            plan(lambda owner, now: owner.change(MessageType.ACTIVATE, now), draw_between(self._changes, *INACTIVE_US))

    def _make_ghost_speech(self, one: str, other: str) -> Callable[[Owner, int], None]:
        """Request a connection with an atom that does not exist at the other's node: the node refuses it."""
        target = f"{node_of_atom(self.atoms[other])}/atom/{GHOST}#chat"
        socket = f"{self.atoms[one]}#chat"

        def speak(owner: Owner, now: int) -> None:
            if _exists(owner):
                owner.send_message(MessageType.CONNECT, socket, target, now)

        return speak

    def _make_speech(self, one: str, other: str) -> Callable[[Owner, int], None]:
        socket, target = f"{self.atoms[one]}#chat", f"{self.atoms[other]}#chat"

        def speak(owner: Owner, now: int) -> None:
            if not _exists(owner):
                return
            conversation = owner.conversations.by_sockets.get((socket, target))
            is_connected = conversation is not None and conversation.state is ConnectionState.CONNECTED
            # if the other node refused the last message it may have no connection: request one again
            kind = MessageType.CONNECTION if is_connected and not _is_refused(owner, target) else MessageType.CONNECT
            owner.send_message(kind, socket, target, now, "words")

        return speak

    def _observe(self, place: str, event: object, now: int) -> None:
        del now
        if isinstance(event, e.KeyWanted):
            self._fetch(place, event.uri)

    def _fetch(self, place: str, uri: str) -> None:
        server = self.places[node_of_atom(uri)]

        def answer() -> None:
            data = None
            if self.world.processes[server].is_up and not self.world.network.is_cut(place, server):
                path = "/" + uri.partition("://")[2].partition("/")[2]
                data = encode_resource(self.node(server), path, "", "application/trig")

            self.world.command(place, lambda core, now: core.receive_document(uri, data, now), GET_US)

        self.world.schedule(GET_US, answer)

    # -- results

    def is_settled(self) -> bool:
        """True if nothing is queued, and every owner has read all that its node has for it."""
        if any(self.node(name).ledger.sent for name in self.nodes):
            return False
        for owner in self.owners().values():
            if owner.unanswered or owner.deferred or owner.left_with_node or not owner.is_created:
                return False
            if owner.position != len(self.node(self.places[owner.node]).ledger.atoms[owner.atom].log):
                return False
        return True

    def findings(self, hops: Mapping[str, Sequence[Hop]]) -> list[Finding]:
        """Incomplete chains, copies that differ, logs that do not verify, unexpected refusals."""
        found = check_journals(hops, [check_taken_once])
        copies = {name: _read_messages(journal) for name, journal in hops.items()}
        given_up = _find_given_up(copies)
        early = self._find_early(copies)
        keys = {uri: self._key(uri).public for uri in (*self.nodes.values(), *self.atoms.values())}
        for name, owner in self.owners().items():
            for uri, delivery in owner.conversations.deliveries.items():
                if uri not in given_up:
                    found += self._check_delivery(name, uri, delivery, copies, early)
            found += [
                Finding(rule="integrity", server=name, seq=None, detail=f"{f.kind} {f.uri}: {f.detail}")
                for f in check_conversation([message.raw for message in copies[name].values()], keys)
                if f.uri not in copies[name] or copies[name][f.uri].responding_to not in given_up
            ]
        found += self._check_outcomes(hops, copies, given_up)
        for name in self.nodes:
            found += _check_times(name, copies[name])
        # A key cannot be fetched while its node is away; the sender of the frame sends it again.
        allowed = {Reason.UNKNOWN_KEY, Reason.UNKNOWN_ATOM, *((Reason.QUEUE_FULL,) if self._may_fail else ())}
        allowed |= set(REFUSALS_OF_CHANGES if self._is_changing else ())
        allowed |= {Reason.BAD_REFERENCE} if given_up else set()
        known = {message.address: message.uri for part in copies.values() for message in part.values()}
        for name, journal in hops.items():
            found += [
                Finding(rule="no_refusals", server=name, seq=hop.seq, detail=str(hop.reason))
                for hop in journal
                if hop.stage is Stage.REJECTED and hop.reason not in allowed and known.get(hop.message) not in early
            ]
        return found

    def _find_early(self, copies: Mapping[str, Mapping[str, Message]]) -> set[str]:
        """Messages that a node refused because its atom, or the connection with that atom, did not exist yet."""
        early: set[str] = set()
        for name, uri in self.nodes.items():
            atoms: set[str] = set()
            asked: set[tuple[str | None, str | None]] = set()
            for message in copies[name].values():
                sockets = (message.sender_socket, message.recipient_socket)
                is_connect = message.responding_to_type is MessageType.CONNECT
                if message.type is MessageType.CREATE:
                    atoms.add(message.sender or "")
                elif message.type is MessageType.SUCCESS and is_connect:
                    asked.add(sockets)
                elif message.type is MessageType.FAILURE and message.signer == uri and sockets not in asked:
                    early |= {message.responding_to or ""} if not is_connect or message.sender not in atoms else set()
        return early

    def _check_delivery(
        self,
        name: str,
        uri: str,
        delivery: Delivery,
        copies: Mapping[str, Mapping[str, Message]],
        early: set[str],
    ) -> list[Finding]:
        """Check that m, s1 and s2 are the same at both owners and both nodes."""
        chain = delivery.chain
        if chain.state is ChainState.ATOM:
            return []
        if f"/atom/{GHOST}#" in (copies[name][uri].recipient_socket or ""):
            if chain.failure is not None:
                return []
            return [Finding(rule="refused", server=name, seq=None, detail=f"{uri} to nobody is {chain.state}")]
        if chain.failure is not None and (self._may_fail or self._is_changing or uri in early):
            return []  # refused because of a limit or a change, or before the atom existed: a final outcome
        if chain.state is not ChainState.COMPLETE or chain.first is None or chain.second is None:
            detail = f"{uri} is {chain.state}: {delivery.detail}"
            return [Finding(rule="complete", server=name, seq=None, detail=detail)]
        own = copies[name]
        by_atom = {atom: place for place, atom in self.atoms.items()}
        parts = (uri, chain.first, chain.second)
        holders = [by_atom[atom] for atom in (own[uri].sender, own[uri].recipient) if atom is not None]
        holders += [self.places[own[response].signer] for response in parts[1:]]
        return [
            Finding(rule="same_copies", server=holder, seq=None, detail=f"{part} is missing or different")
            for holder in holders
            for part in parts
            if copies[holder].get(part) != own[part]
        ]

    def _check_outcomes(
        self,
        hops: Mapping[str, Sequence[Hop]],
        copies: Mapping[str, Mapping[str, Message]],
        given_up: set[str | None],
    ) -> list[Finding]:
        """Check that what a node accepted was either handed to the recipient's owner or refused to its sender, once.

        A node that gives a message up cannot know whether the other one has it: then that is an outcome only if there
        is no other.
        """
        outcomes: Counter[Owed] = Counter()
        owed: dict[Owed, str] = {}
        for name, uri in self.nodes.items():
            known = {message.address: message for message in copies[name].values()}
            failures = [m for m in known.values() if m.type is MessageType.FAILURE]
            refused = {m.responding_to for m in failures if not is_undeliverable_notice(m)}
            for hop in hops[name]:
                message = known.get(hop.message)
                if message is None or message.type not in CONNECTION_TYPES:
                    continue
                key = (message.uri, message.recipient or "")
                is_taken = hop.stage in (Stage.ACCEPTED, Stage.CREATED)  # the node itself closes and notifies
                if is_taken and node_of_atom(message.sender or "") == uri:
                    owed[key] = uri
                    outcomes[key] += message.uri in refused
                outcomes[key] += hop.stage is Stage.DELIVERED and hop.counterpart == message.recipient
        outcomes.update(key for key in owed if key[0] in given_up and not outcomes[key])
        return check_one_outcome(owed, outcomes)

    def facts(self) -> dict[str, int]:
        """Number of messages by how far they got, as seen by their owners."""
        return dict(
            Counter(
                delivery.chain.state.value
                for owner in self.owners().values()
                for delivery in owner.conversations.deliveries.values()
            )
        )


def _exists(owner: Owner) -> bool:
    """Whether the owner's atom exists, or has been requested."""
    return owner.is_created or bool(owner.unanswered)


def _is_refused(owner: Owner, target: str) -> bool:
    """Whether the last answer to this owner's messages to a socket was a refusal."""
    for delivery in reversed(owner.conversations.deliveries.values()):
        if (
            delivery.is_own
            and delivery.recipient_socket == target
            and (delivery.chain.failure or delivery.chain.second)
        ):
            return delivery.chain.failure is not None
    return False


def _accept(node: Node, link: LinkId, label: str, now: int) -> None:
    node.receive_accepted(link, LinkKind(label), now)


def _check_times(name: str, messages: Mapping[str, Message]) -> list[Finding]:
    """Check that no message refers to a newer one of the same signer, whatever the clocks do."""
    references = (
        (message, messages[uri])
        for message in messages.values()
        for uri in (message.responding_to or "", *message.previous)
        if uri in messages
    )
    return [
        Finding(rule="against_time", server=name, seq=None, detail=f"{message.uri} refers to the newer {parent.uri}")
        for message, parent in references
        if parent.signer == message.signer and parent.timestamp_ms > message.timestamp_ms
    ]


def _find_given_up(copies: Mapping[str, Mapping[str, Message]]) -> set[str | None]:
    """Messages that a node gave up. The other node may have one, if only its response was lost: see won.md."""
    return {m.responding_to for part in copies.values() for m in part.values() if is_undeliverable_notice(m)}


def _read_messages(journal: Sequence[Hop]) -> dict[str, Message]:
    return {
        (message := decode_message(hop.raw)).uri: message
        for hop in journal
        if hop.raw is not None and hop.stage in (Stage.CREATED, Stage.ACCEPTED)
    }
