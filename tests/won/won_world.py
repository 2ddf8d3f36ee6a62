"""A tiny synchronous world: nodes and owners joined by ideal links, documents served immediately, hops recorded."""

from __future__ import annotations

import random

from dovetail.model.hop import Hop, Observation
from dovetail.model.wire import CloseLink, OpenLink, SendFrames
from dovetail.won.events import KeyWanted
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_message
from dovetail.won.node import Node
from dovetail.won.owner import Owner
from dovetail.won.resources import encode_resource
from dovetail.won.settings import WonSettings
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import CONNECTION_TYPES
from dovetail.won.vocabulary import MessageType as T
from won.won_samples import ALICE, ALICE_CHAT, BOB, NODE_A, NODE_B

START_US = 1_763_236_800_000_000


class Party:
    """A core with its hops and events."""

    def __init__(self, core):
        self.core = core
        self.observations: list[Observation] = []
        self.events: list[object] = []
        self.frames_in: list[bytes] = []
        self.peers: dict[str, tuple[Party, str]] = {}

    def hops(self):
        hops, kept = [], set()
        for seen in self.observations:
            for counterpart in seen.counterparts or (None,):
                raw = seen.raw if seen.message not in kept else None
                if raw is not None:
                    kept.add(seen.message)
                hops.append(
                    Hop(
                        server="x",
                        seq=len(hops),
                        at_us=seen.at_us,
                        fabric="won",
                        stage=seen.stage,
                        message=seen.message,
                        counterpart=counterpart,
                        reason=seen.reason,
                        raw=raw,
                    )
                )
        return hops

    def stages(self, message):
        return [(o.stage.value, *o.counterparts) for o in self.observations if o.message == message.address]

    def rejections(self):
        return [o.reason for o in self.observations if o.reason is not None]

    def told(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


class World:
    """Parties by URI; `run` pumps until no one has anything to send."""

    def __init__(self, settings: WonSettings | None = None):
        self.settings = settings or WonSettings()
        self.now = START_US
        self.random = random.Random(1)
        self.nodes: dict[str, Party] = {}
        self.owners: list[Party] = []
        self.unreachable: set[str] = set()
        self.dark: set[str] = set()
        self._accepted = 0

    def node(self, uri: str, seed: int) -> Party:
        party = Party(Node(uri, SigningKey(bytes([seed]) * 32), self.random, settings=self.settings))
        self.nodes[uri] = party
        return party

    def owner(self, atom: str, seed: int, **options) -> Party:
        party = Party(Owner(atom, SigningKey(bytes([seed]) * 32), self.random, settings=self.settings, **options))
        self.owners.append(party)
        return party

    def restart(self, party: Party) -> Party:
        """The same party rebuilt from its hops; its links are broken."""
        self.cut(party)
        old = party.core
        if isinstance(old, Node):
            party.core = Node(old.uri, old._responses._key, self.random, settings=self.settings)
        else:
            party.core = Owner(old.atom, old._key, self.random, settings=self.settings)
        party.core.restore(party.hops(), self.now)
        return party

    def cut(self, party: Party) -> None:
        for link, (other, other_link) in list(party.peers.items()):
            del party.peers[link]
            del other.peers[other_link]
            party.core.receive_closed(link, self.now)
            other.core.receive_closed(other_link, self.now)

    def run(self) -> None:
        busy = True
        while busy:
            busy = False
            for party in [*self.nodes.values(), *self.owners]:
                busy |= self.step(party)

    def step(self, party: Party) -> bool:
        events = party.core.events()
        for event in events:
            if isinstance(event, Observation):
                party.observations.append(event)
            else:
                party.events.append(event)
                if isinstance(event, KeyWanted):
                    self._serve(party, event.uri)
        outgoing = party.core.to_send()
        for item in outgoing:
            self._carry(party, item)
        return bool(events or outgoing)

    def _serve(self, party: Party, uri: str) -> None:
        node = self.nodes.get(uri.partition("/atom/")[0])
        data = None
        if node is not None and uri not in self.dark:
            path = "/" + uri.partition("://")[2].partition("/")[2]
            data = encode_resource(node.core, path, "", "application/trig")
        party.core.receive_document(uri, data, self.now)

    def _carry(self, party: Party, item) -> None:
        if isinstance(item, OpenLink):
            target = self.nodes.get(item.destination)
            if target is None or item.destination in self.unreachable:
                party.core.receive_closed(item.link, self.now)
                return
            self._accepted += 1
            name = f"in {self._accepted}"
            kind = LinkKind.OWNER if isinstance(party.core, Owner) else LinkKind.NODE
            party.peers[item.link] = (target, name)
            target.peers[name] = (party, item.link)
            target.core.receive_accepted(name, kind, self.now)
            party.core.receive_opened(item.link, self.now)
        elif isinstance(item, SendFrames) and item.links[0] in party.peers:
            other, link = party.peers[item.links[0]]
            other.frames_in.append(item.frames[0])
            other.core.receive_frame(item.frames[0], link, self.now)
        elif isinstance(item, CloseLink) and item.link in party.peers:
            other, link = party.peers.pop(item.link)
            del other.peers[link]
            other.core.receive_closed(link, self.now)

    def pass_time(self, seconds: float) -> None:
        """Fire timers up to then, in order."""
        end = self.now + int(seconds * 1_000_000)
        while True:
            self.run()
            due = [
                (when, i)
                for i, p in enumerate([*self.nodes.values(), *self.owners])
                if (when := p.core.next_timer()) is not None
            ]
            if not due or min(due)[0] > end:
                break
            when, index = min(due)
            self.now = max(self.now, when)
            [*self.nodes.values(), *self.owners][index].core.handle_timer(self.now)
        self.now = end
        self.run()


class Pair:
    """alice at node a and bob at node b."""

    def __init__(self, settings=None, same_node=False):
        self.world = World(settings)
        self.a = self.world.node(NODE_A, 1)
        self.b = self.a if same_node else self.world.node(NODE_B, 2)
        self.bob_uri = f"{NODE_A}/atom/bob" if same_node else BOB
        self.bob_chat = f"{self.bob_uri}#chat"
        self.alice, self.bob = self.world.owner(ALICE, 3), self.world.owner(self.bob_uri, 4)
        for owner, socket in ((self.alice, ALICE_CHAT), (self.bob, self.bob_chat)):
            owner.core.create([socket], self.world.now)
            owner.core.start(self.world.now)
        self.run()

    def run(self):
        self.world.run()

    def say(self, kind=T.CONNECTION, text="hello", run=True):
        message = self.alice.core.send_message(kind, ALICE_CHAT, self.bob_chat, self.world.now, text)
        if run:
            self.run()
        return message

    def reply(self, kind=T.CONNECTION, text="hello back", run=True):
        message = self.bob.core.send_message(kind, self.bob_chat, ALICE_CHAT, self.world.now, text)
        if run:
            self.run()
        return message

    def connect(self):
        self.say(T.CONNECT)
        self.reply(T.CONNECT)
        return self

    def state(self, owner, message):
        return owner.core.conversations.state_of(message.uri)

    def held(self, party):
        """URIs of all messages in a party's journal."""
        return {decode_message(o.raw).uri for o in party.observations if o.raw and o.reason is None}


def conversation_raws(party):
    """The raw messages of all connections in a party's journal."""
    kept = [o.raw for o in party.observations if o.raw and o.reason is None]
    return [raw for raw in kept if {(m := decode_message(raw)).type, m.responding_to_type} & CONNECTION_TYPES]


def record_conversation():
    """A complete conversation, recorded by all four parties."""
    pair = Pair().connect()
    for i in range(3):
        pair.say(text=f"question {i}")
        pair.reply(text=f"answer {i}")
    pair.say(T.CLOSE)
    return pair
