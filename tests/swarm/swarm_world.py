"""A swarm in the simulated world: peers, traffic, and the results."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable

from dovetail.model.address import Address
from dovetail.model.wire import Datagrams
from dovetail.sim import SECOND_US, Boot, Link, ProcessOptions, World
from dovetail.swarm.events import MessageAccepted
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import Endpoint
from dovetail.swarm.pow import HashlibSearch, solve
from dovetail.swarm.settings import PeerSettings, SwarmSettings

LATENCY_US = (20_000, 150_000)
SETTINGS = SwarmSettings(name="sim", work=2, max_ttl_epochs=1440)
SEARCH = HashlibSearch()


def publish(peer: Peer, payload: bytes, now: int, ttl_epochs: int = 60) -> Address:
    """Compose, solve and publish in one turn."""
    message = peer.compose(payload, ttl_epochs, now)
    solved = solve(message, peer.rules.pow_target, random.Random(now).getrandbits(64), SEARCH, run=64)
    assert solved is not None
    return peer.publish_solved(solved, now)


class UnluckyPeer(Peer):
    """A peer that loses some of its datagrams on purpose."""

    is_lost: Callable[[Endpoint, bytes], bool]

    def to_send(self) -> list[Datagrams]:
        return [
            Datagrams(each.endpoint, [data for data in each.datagrams if not self.is_lost(each.endpoint, data)])
            for each in super().to_send()
        ]


class SwarmWorld:
    """Peers by name in one world; `arrivals[address][name]` is when a peer first had a message."""

    def __init__(
        self,
        seed: int,
        peers: int,
        *,
        loss: float = 0.0,
        settings: SwarmSettings = SETTINGS,
        peer_settings: PeerSettings | None = None,
        skews_us: list[int] | None = None,
        bootstrap: list[str] | None = None,
    ) -> None:
        self.settings = settings
        self.peer_settings = peer_settings
        self.bootstrap = bootstrap
        self.world = World(seed, link=Link(latency_us=LATENCY_US, loss=loss))
        self.chance = self.world.randomness.stream("traffic")
        self.names: list[str] = []
        self.arrivals: dict[Address, dict[str, int]] = defaultdict(dict)
        self.published: dict[Address, int] = {}
        self.events: list[tuple[str, object]] = []
        self.is_lost: Callable[[str, str, bytes], bool] = lambda source, destination, data: False
        """What is lost in addition to random loss."""
        for number in range(peers):
            self.join(skew_us=skews_us[number] if skews_us else 0)

    def join(self, name: str | None = None, skew_us: int = 0) -> str:
        """Add a peer that knows three random others, or those that all peers know."""
        name = name or f"peer-{len(self.names)}"
        others = sample(self.chance, self.names, 3) if self.bootstrap is None else self.bootstrap
        self.names.append(name)

        def factory(boot: Boot) -> Peer:
            address = hashlib.sha256(f"{self.world.seed} {boot.name}".encode()).digest()[:20]
            peer = UnluckyPeer(
                self.settings, address, boot.random, boot.now, settings=self.peer_settings, bootstrap=others
            )
            peer.is_lost = lambda endpoint, data: self.is_lost(name, endpoint, data)
            peer.restore(boot.journal.hops(), boot.now)
            return peer

        server = f"swarm://{self.settings.name}/{name}"
        options = ProcessOptions(observer=self._observe, commit_us=(0, 0))
        self.world.add_process(name, factory, server=server, options=options, skew_us=skew_us)
        return name

    def _observe(self, place: str, event: object, now: int) -> None:
        if isinstance(event, MessageAccepted):
            self.arrivals[event.address].setdefault(place, self.world.now)
        else:
            self.events.append((place, event))

    def peer(self, name: str) -> Peer:
        core = self.world.processes[name].core
        assert isinstance(core, Peer)
        return core

    @property
    def peers(self) -> list[Peer]:
        return [self.peer(name) for name in self.names if self.world.processes[name].is_up]

    def run(self, seconds: float) -> None:
        self.world.run(int(seconds * SECOND_US))

    def publish(self, name: str | None = None, size: int = 200, ttl_epochs: int = 60) -> bytes:
        """A given or random peer publishes a random payload now."""
        name = name or self.names[int(self.chance.random() * len(self.names))]
        payload = self.chance.getrandbits(8 * size).to_bytes(size)

        def act(peer: Peer, now: int) -> None:
            address = publish(peer, payload, now, ttl_epochs)
            if ttl_epochs:
                self.published[address] = self.world.now

        self.world.command(name, act)
        return payload

    def traffic(self, seconds: int, per_second: float = 1.0, size: int = 200) -> None:
        """Messages at even intervals from random peers; ends with the last one."""
        for _ in range(int(seconds * per_second)):
            self.run(1 / per_second)
            self.publish(size=size)
        self.run(0.001)

    def is_converged(self) -> bool:
        """True if every peer that is up has every published, unexpired message."""
        wanted = {
            address for address in self.published if any(peer._dag.get(address) is not None for peer in self.peers)
        }
        return all(wanted <= peer.addresses() for peer in self.peers) and bool(wanted)

    def seconds_to_converge(self, at_most: float, step: float = 0.1) -> float:
        """How long it takes from now until all peers have all messages; `at_most` or more means it did not happen."""
        waited = 0.0
        while waited < at_most and not self.is_converged():
            self.run(step)
            waited += step
        return waited

    def share_within(self, seconds: float) -> float:
        """The share of (message, peer) pairs delivered within this many seconds of publishing."""
        limit = seconds * SECOND_US
        pairs = [
            self.arrivals[address].get(name, 1 << 62) - at <= limit
            for address, at in self.published.items()
            for name in self.names
        ]
        return sum(pairs) / len(pairs)

    def bytes_by_purpose(self) -> dict[str, int]:
        """What all peers sent."""
        total: dict[str, int] = defaultdict(int)
        for peer in self.peers:
            for purpose, count in peer.status().sent_bytes.items():
                total[purpose] += count
        return dict(total)

    def ideal_bytes(self) -> int:
        """What would be sent if each peer got each message exactly once, with its swarm header."""
        everything = self.peers[0]._dag
        sizes = [len(entry.raw) + 8 for entry in map(everything.get, self.published) if entry is not None]
        return sum(sizes) * (len(self.names) - 1)


def sample(chance: random.Random, names: list[str], count: int) -> list[str]:
    pool = list(names)
    return [pool.pop(int(chance.random() * len(pool))) for _ in range(min(count, len(pool)))]
