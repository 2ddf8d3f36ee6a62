"""Nodes and owners as places of a simulated world, with traffic, and what must hold when it has settled."""

from __future__ import annotations

from collections import Counter

from dovetail.hop import Stage
from dovetail.sim import CloseStream, Frame, OpenStream
from dovetail.sim.invariants import Finding, check_journals, check_taken_once
from dovetail.won import events as e
from dovetail.won.chain import ChainState
from dovetail.won.connection import ConnectionState
from dovetail.won.integrity import check_conversation
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_message
from dovetail.won.node import Node
from dovetail.won.owner import Owner
from dovetail.won.resources import encode_resource
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import MessageType

SETTINGS = WonSettings(retry_ms=200, max_retry_ms=4000, response_timeout_ms=8000, key_timeout_ms=3000, catch_up_page=8)
OWNERS_PER_NODE = 2


class Adapter:
    """A won core as the world drives it: streams are links."""

    def __init__(self, core, places):
        self.core = core
        self._places = places
        self._label = "owner" if isinstance(core, Owner) else "node"

    def receive_accepted(self, stream, peer, label, now):
        self.core.receive_accepted(stream, LinkKind(label), now)

    def receive_opened(self, stream, peer, now):
        self.core.receive_opened(stream, now)

    def receive_frame(self, data, stream, now):
        self.core.receive_frame(data, stream, now)

    def receive_closed(self, stream, code, now):
        self.core.receive_closed(stream, now)

    def handle_timer(self, now):
        self.core.handle_timer(now)

    def next_timer(self):
        return self.core.next_timer()

    def events(self):
        return self.core.events()

    def to_send(self):
        return [self._translate(item) for item in self.core.to_send()]

    def _translate(self, item):
        if isinstance(item, e.OpenLink):
            return OpenStream(item.link, self._places.get(item.node, "nowhere"), self._label)
        if isinstance(item, e.SendFrame):
            return Frame(item.link, item.data)
        return CloseStream(item.link, item.code)


class WonPlay:
    """`setting.places` nodes with two owners each; every owner talks to two others all the time."""

    def __init__(self, world, setting):
        self.world = world
        self.chance = world.randomness.stream("traffic")
        count = max(2, min(setting.places, 5))
        self.nodes = {f"node-{i}": f"https://node-{i}.example/won/resource" for i in range(count)}
        self.places = {uri: name for name, uri in self.nodes.items()}
        self.atoms = {
            f"owner-{i}-{j}": f"{uri}/atom/owner-{j}"
            for i, uri in enumerate(self.nodes.values())
            for j in range(OWNERS_PER_NODE)
        }
        for name, uri in self.nodes.items():
            world.add_place(name, self._make_node(uri), server=uri, observer=self._observe)
        for name, atom in self.atoms.items():
            world.add_place(name, self._make_owner(atom), server=atom, observer=self._observe)
        self.stored = set()
        self.partners = self._draw_partners()
        self._plan_traffic(setting.duration_us)

    def _key(self, uri):
        return SigningKey(self.world.randomness.derive_key(uri))

    def _make_node(self, uri):
        def factory(boot):
            node = Node(uri, self._key(uri), boot.random, settings=SETTINGS)
            node.restore(boot.journal.hops(), boot.now)
            return Adapter(node, self.places)

        return factory

    def _make_owner(self, atom):
        def factory(boot):
            owner = Owner(atom, self._key(atom), boot.random, settings=SETTINGS)
            owner.restore(boot.journal.hops(), boot.now)
            if not owner.is_created and not owner.unanswered:
                owner.create([f"{atom}#chat"], boot.now)
            owner.start(boot.now)
            return Adapter(owner, self.places)

        return factory

    def _draw_partners(self):
        names = list(self.atoms)
        pairs = []
        for i, name in enumerate(names):
            pairs.append((name, names[(i + 1) % len(names)]))
            other = self.chance.choice([n for n in names if n != name])
            pairs.append((name, other))
        return pairs

    def _plan_traffic(self, duration_us):
        moment = 0
        while moment < duration_us:
            moment += self.chance.randrange(20_000, 120_000)
            one, other = self.chance.choice(self.partners)
            if self.chance.random() < 0.5:
                one, other = other, one
            self.world.command(one, self._speech(one, other), after_us=moment)

    def _speech(self, one, other):
        socket, target = f"{self.atoms[one]}#chat", f"{self.atoms[other]}#chat"

        def speak(adapter, now):
            owner = adapter.core
            if self.atoms[other] not in self.stored:
                return  # whoever is not there yet cannot be known
            conversation = owner.conversations.by_sockets.get((socket, target))
            state = conversation.state if conversation else None
            kind = MessageType.CONNECTION if state is ConnectionState.CONNECTED else MessageType.CONNECT
            owner.speak(kind, socket, target, now, "words")

        return speak

    def _observe(self, place, event, now):
        # Told only after the commit: an atom that a node has in memory alone may still be lost.
        if isinstance(event, e.KeyWanted):
            self._fetch(place, event.uri)
        elif isinstance(event, e.AtomChanged | e.RegistrationConfirmed):
            self.stored.add(event.atom)

    def _fetch(self, place, uri):
        """A GET: there and back takes time, and fails if the node is down or cut off."""
        server = self.places[uri.partition("/atom/")[0]]

        def answer():
            node = self.world.places[server]
            data = None
            if node.is_up and not self.world.network.is_cut(place, server):
                path = "/" + uri.partition("://")[2].partition("/")[2]
                data = encode_resource(node.core.core, path, "", "application/trig")
            self.world.command(place, lambda adapter, now: adapter.core.receive_document(uri, data, now), 40_000)

        self.world.schedule(40_000, answer)

    # -- what the scenario asks

    def owners(self):
        return {name: self.world.places[name].core.core for name in self.atoms}

    def is_settled(self):
        if any(self.world.places[name].core.core.ledger.sent for name in self.nodes):
            return False
        for owner in self.owners().values():
            if owner.unanswered or not owner.is_created:
                return False
            node = self.world.places[self.places[owner.node]].core.core
            if owner.position != len(node.ledger.atoms[owner.atom].log):
                return False
        return True

    def findings(self, hops):
        found = check_journals(hops, [check_taken_once])
        copies = {name: self._messages(journal) for name, journal in hops.items()}
        for name, owner in self.owners().items():
            for uri, thread in owner.conversations.threads.items():
                found += self._check_thread(name, uri, thread, copies)
            found += self._check_logs(name, copies[name])
        for name, journal in hops.items():
            found += [
                Finding(rule="no_refusals", server=name, seq=hop.seq, detail=str(hop.reason))
                for hop in journal
                if hop.stage is Stage.REJECTED and hop.reason != "unknown_key"
            ]
        return found

    def _messages(self, journal):
        return {
            (message := decode_message(hop.raw)).uri: message
            for hop in journal
            if hop.raw is not None and hop.stage in (Stage.CREATED, Stage.ACCEPTED)
        }

    def _check_thread(self, name, uri, thread, copies):
        """m, s1 and s2 are the same at both owners and both nodes."""
        chain = thread.chain
        if chain.state is ChainState.ATOM:
            return []
        if chain.state is not ChainState.COMPLETE:
            return [Finding(rule="complete", server=name, seq=None, detail=f"{uri} is {chain.state}: {thread.detail}")]
        message = copies[name][uri]
        by_atom = {atom: place for place, atom in self.atoms.items()}
        holders = [by_atom[message.sender], by_atom[message.recipient]]
        holders += [self.places[copies[name][s].signer] for s in (chain.first, chain.second)]
        return [
            Finding(rule="same_copies", server=holder, seq=None, detail=f"{part} is missing or different")
            for holder in holders
            for part in (uri, chain.first, chain.second)
            if copies[holder].get(part) != copies[name][part]
        ]

    def _check_logs(self, name, messages):
        keys = {uri: self._key(uri).public for uri in [*self.nodes.values(), *self.atoms.values()]}
        raws = [message.raw for message in messages.values()]
        return [
            Finding(rule="integrity", server=name, seq=None, detail=f"{f.kind} {f.uri}: {f.detail}")
            for f in check_conversation(raws, keys)
        ]

    def facts(self):
        states = Counter(
            thread.chain.state.value
            for owner in self.owners().values()
            for thread in owner.conversations.threads.values()
        )
        return dict(states)


def build(world, setting):
    return WonPlay(world, setting)
