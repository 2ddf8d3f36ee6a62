"""A swarm in the simulated world: every peer ends with every message that any peer has, each accepted once.

`places` is the number of peers; each knows three others from the start, and they publish messages in turn. About a
quarter of them have only UEP-12 (`seed_peer`). A message lost before it was journaled was not promised to anyone. Some
messages live for one epoch, or are only pushed: a peer that misses them goes without, but nobody takes one twice or
keeps it, and a peer whose own message nobody else is known to have says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dovetail.model.address import Address
from dovetail.model.hop import Hop, Stage
from dovetail.sim.core import Boot, CoreFactory
from dovetail.sim.invariants import Finding, Owed, check_journals, check_one_outcome, check_taken_once
from dovetail.sim.lying_peer import LyingPeer
from dovetail.sim.process import ProcessOptions
from dovetail.sim.randomness import draw_between
from dovetail.sim.scenario import Setting, name_places
from dovetail.sim.seed_peer import SeedPeer
from dovetail.sim.world import World
from dovetail.swarm.content import expiration_ms
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import PEER_ADDRESS_BYTES, Endpoint, PeerAddress
from dovetail.swarm.pow import HashlibSearch, solve
from dovetail.swarm.settings import PeerSettings, SwarmSettings
from dovetail.swarm.status import PeerStatus

SETTINGS = SwarmSettings(name="sim", work=2, max_ttl_epochs=1440, epoch_ms=15_000, slot_slack=3)
"""Faults move clocks by up to 20 s, so two peers may be 40 s or more apart: with less slack they would ignore each
other (UEP-10), and messages of one would never reach the other."""
TTL_EPOCHS = 240
SHORT_SHARE = 0.2
KNOWN_AT_FIRST = 3
LIARS = 2
"""Number of lying peers in a hostile setting; every peer knows them from the start."""
SEED_PEER_SHARE = 0.25
PAUSE_US = (100_000, 500_000)
"""How long until the next message is published."""
PAYLOAD_BYTES = 40
SETTLED_MS = 1_000
HOSTILE = {"max_wanted": (64, 128), "max_held_messages": (300, 600)}
"""Limits of peers in a hostile setting, drawn from these ranges."""
_SEARCH = HashlibSearch()


class _Short(NamedTuple):
    """A message that expires before the world ends: its maker, and in which of its lives it was made."""

    maker: str
    life: int
    expires_ms: int
    is_pushed_only: bool


class SwarmScenario:
    """Peers and what they publish."""

    def __init__(self, world: World, setting: Setting) -> None:
        self.world = world
        self.names = name_places("peer", max(2, setting.places))
        self.published: set[Address] = set()
        """Messages that outlive the world."""
        self.short: dict[Address, _Short] = {}
        """Those that do not."""
        self._ages = world.randomness.stream("lifetimes")
        self._chance = world.randomness.stream("traffic")
        limits = world.randomness.stream("limits")
        small = {name: draw_between(limits, *bounds) for name, bounds in HOSTILE.items()} if setting.is_hostile else {}
        self.settings = msgspec.structs.replace(PeerSettings(), **small)
        self.liars = name_places("liar", LIARS) if setting.is_hostile else []
        for number, name in enumerate(self.names):
            bootstrap = self._draw_names(self.names[:number]) + self.liars
            is_seed_peer = self._chance.random() < SEED_PEER_SHARE
            factory = self._make_seed_peer(bootstrap) if is_seed_peer else self._make_peer(bootstrap)
            options = ProcessOptions(durability=setting.draw_durability(world.randomness))
            world.add_process(name, factory, server=f"swarm://{SETTINGS.name}/{name}", options=options)
        until_us = world.now + setting.duration_us
        for name in self.liars:
            world.add_process(name, self._make_liar(until_us), server=f"swarm://{SETTINGS.name}/{name}")
        self._plan_traffic(setting.duration_us)

    def _draw_names(self, names: Sequence[str]) -> list[str]:
        return sorted(names, key=lambda _: self._chance.random())[:KNOWN_AT_FIRST]

    def _make_peer(self, bootstrap: list[str]) -> CoreFactory:
        def factory(boot: Boot) -> Peer:
            address = PeerAddress(self.world.randomness.derive_key(boot.name)[:PEER_ADDRESS_BYTES])
            known = map(Endpoint, bootstrap)
            peer = Peer(SETTINGS, address, boot.random, boot.now, settings=self.settings, bootstrap=known)
            peer.restore(boot.journal.hops(), boot.now)
            return peer

        return factory

    def _make_seed_peer(self, neighbours: list[str]) -> CoreFactory:
        def factory(boot: Boot) -> SeedPeer:
            peer = SeedPeer(SETTINGS, neighbours, boot.random, boot.now)
            peer.restore(boot.journal.hops(), boot.now)
            return peer

        return factory

    def _make_liar(self, until_us: int) -> CoreFactory:
        return lambda boot: LyingPeer(SETTINGS, self.names, boot.random, boot.now, until_us=until_us)

    def _plan_traffic(self, duration_us: int) -> None:
        moment = 0
        while moment < duration_us:
            moment += draw_between(self._chance, *PAUSE_US)
            name = self.names[draw_between(self._chance, 0, len(self.names) - 1)]
            payload = bytes(draw_between(self._chance, 0, 255) for _ in range(PAYLOAD_BYTES))
            is_short = self._ages.random() < SHORT_SHARE
            ttl_epochs = draw_between(self._ages, 0, 1) if is_short else TTL_EPOCHS
            self.world.command(name, self._make_publishing(name, payload, ttl_epochs), after_us=moment)

    def _make_publishing(self, name: str, payload: bytes, ttl_epochs: int) -> Callable[[Peer | SeedPeer, int], None]:
        """An action that composes, solves and publishes in one turn."""
        start = draw_between(self._chance, 0, 2**53)

        def act(peer: Peer | SeedPeer, now: int) -> None:
            message = peer.compose(payload, ttl_epochs, now)
            solved = solve(message, peer.rules.pow_target, start, _SEARCH, run=64)
            assert solved is not None, "without a bound the search ends with a solution"
            address = peer.publish_solved(solved, now)
            if ttl_epochs == TTL_EPOCHS:
                self.published.add(address)
            else:
                expires_ms = expiration_ms(now // 1000, ttl_epochs, SETTINGS.epoch_ms)
                self.short[address] = _Short(name, self.world.processes[name].life, expires_ms, not ttl_epochs)

        return act

    def peers(self) -> dict[str, Peer | SeedPeer]:
        """The cores that are up."""
        cores = {name: self.world.processes[name].core for name in self.names}
        return {name: core for name, core in cores.items() if isinstance(core, Peer | SeedPeer)}

    # -- results

    def is_settled(self) -> bool:
        """True if all peers have the same messages, and what lives for a short time is over by every clock."""
        now_ms = min(self.world.processes[name].now for name in self.names) // 1000
        if any(now_ms <= short.expires_ms + SETTLED_MS for short in self.short.values()):
            return False
        held = [peer.addresses() & self.published for peer in self.peers().values()]
        return all(addresses == held[0] for addresses in held[1:])

    def findings(self, hops: Mapping[str, Sequence[Hop]]) -> list[Finding]:
        """Messages that a peer accepted twice, or lacks while another has or had them, in its journal or in memory."""
        found = check_journals(hops, [check_taken_once])
        peers = self.peers()
        for name, peer in peers.items():
            if isinstance(peer, Peer) and (detail := self._find_excess(peer.status())):
                found.append(Finding(rule="memory", server=name, seq=None, detail=detail))
        taken: Counter[Owed] = Counter(
            (hop.message.hex(), name)
            for name in peers
            for hop in hops[name]
            if hop.message in self.published and hop.stage in (Stage.CREATED, Stage.ACCEPTED)
        )
        found += check_one_outcome({(message, name): name for message, _ in taken for name in peers}, taken)
        everything = self.published & {address for peer in peers.values() for address in peer.addresses()}
        for name, peer in peers.items():
            found += [
                Finding(rule="converged", server=name, seq=None, detail=f"{address.hex()} is missing")
                for address in sorted(everything - peer.addresses())
            ]
        return found + self._check_short(hops, peers)

    def _check_short(self, hops: Mapping[str, Sequence[Hop]], peers: Mapping[str, Peer | SeedPeer]) -> list[Finding]:
        """Check that nobody keeps what has expired, and that a maker knows if nobody else has it."""
        found = [
            Finding(rule="expired", server=name, seq=None, detail=f"{address.hex()} is still held")
            for name, peer in peers.items()
            if isinstance(peer, Peer)
            for address in sorted(peer.addresses() & self.short.keys())
        ]
        stages = {(hop.message, name, hop.stage) for name in peers for hop in hops[name]}
        for address, short in self.short.items():
            maker = short.maker
            if short.is_pushed_only or self.liars or isinstance(peers[maker], SeedPeer):
                continue  # a liar may have it, and lists it
            is_kept = (address, maker, Stage.CREATED) in stages and self.world.processes[maker].life == short.life
            is_taken = any(
                (address, name, Stage.ACCEPTED) in stages or address in self.world.processes[name].disk.lost
                for name in peers
            )
            if is_kept and not is_taken and (address, maker, Stage.EXPIRED) not in stages:
                detail = f"{address.hex()} expired, and its maker does not say that nobody has it"
                found.append(Finding(rule="told", server=maker, seq=None, detail=detail))
        return found

    def _find_excess(self, status: PeerStatus) -> str | None:
        if status.missing > self.settings.max_wanted:
            return f"{status.missing} messages are wanted"
        if status.messages > self.settings.max_held_messages:
            return f"{status.messages} messages are held"
        return None

    def facts(self) -> dict[str, int]:
        """Numbers of messages published and held by all peers, and of peers with only UEP-12."""
        peers = self.peers().values()
        held = [peer.addresses() & self.published for peer in peers]
        return {
            "published": len(self.published),
            "held by all": len(set.intersection(*map(set, held))),
            "seed peers": sum(1 for peer in peers if isinstance(peer, SeedPeer)),
        }
