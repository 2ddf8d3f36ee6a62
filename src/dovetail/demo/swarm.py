"""A swarm of peers behind a relay that drops datagrams."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from dovetail.demo.faults import Sent
from dovetail.demo.layout import Layout
from dovetail.demo.plan import LOSS, Plan
from dovetail.demo.relays import LossyRelay
from dovetail.journal.journal import JournalOptions
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError
from dovetail.runtime.swarm_node import JOURNAL_FILE, SwarmNode
from dovetail.runtime.swarm_settings import load_swarm_settings

TTL_EPOCHS = 60
WORK = 300
"""Expected hashes per message: easy, so that the demo stays fast."""
LINKED_S = 60.0
CONVERGED_S = 90.0
_AGREEMENT = f'name = "harbour"\nwork = {WORK}\nmax_ttl_epochs = 100\n'
_BOARD = ("berth 4 is free", "fog until ten", "crane 2 is down", "pilot boat left", "tide turns at 14:10", "all clear")
_PUBLISHERS = 4


class Swarm:
    """All peers, each with its door at the relay."""

    def __init__(self, layout: Layout, plan: Plan, chance: random.Random, sent: Sent) -> None:
        layout.swarm.write_text(_AGREEMENT)
        self._layout = layout
        self._plan = plan
        self._chance = chance
        self._sent = sent
        self.settings = load_swarm_settings(layout.swarm)
        self.relay = LossyRelay(LOSS, random.Random(chance.getrandbits(64)))  # noqa: S311 - which datagrams are lost
        self.peers: list[SwarmNode] = []
        self.expected: set[Address] = set()

    @property
    def messages(self) -> int:
        """How many messages were published, by anyone."""
        return len(self.expected)

    async def start(self) -> None:
        """Start all peers except the late one, and wait until they are linked."""
        for _ in range(self._plan.peers - 1):
            await self.join()
        await self._wait(lambda: all(p.status().forward and p.status().backward for p in self.peers), LINKED_S)
        # each publisher's first message also warms up its proof-of-work search
        await asyncio.gather(*(self._publish(peer) for peer in self.peers[:_PUBLISHERS]))

    async def join(self) -> SwarmNode:
        """Start one more peer, which knows two others."""
        number = self.relay.add_door()
        others = self._chance.sample(range(number), min(2, number))
        node = SwarmNode(
            self.settings,
            self._directory(number),
            bootstrap=[self.relay.endpoint(other) for other in others],
            journal_options=JournalOptions(durability="relaxed"),
            threads=1,
        )
        await node.__aenter__()
        self.relay.place(number, node.endpoints[0])
        self.peers.append(node)
        return node

    async def talk(self, until: float) -> None:
        """Publish until this loop time."""
        pause = _PUBLISHERS / self._plan.posts_per_second
        await asyncio.gather(*(self._post(peer, until, pause) for peer in self.peers[:_PUBLISHERS]))

    async def converge(self) -> None:
        """Wait until every peer holds every message."""
        await self._wait(lambda: all(peer.peer.addresses() >= self.expected for peer in self.peers), CONVERGED_S)

    async def stop(self) -> None:
        """Leave the swarm, and move the journals to the other journals."""
        await self.leave()
        for number in range(len(self.peers)):
            (self._directory(number) / JOURNAL_FILE).rename(self._layout.journals / f"peer-{number + 1:02}.journal")

    async def leave(self) -> None:
        """Close all peers and the relay."""
        await asyncio.gather(*(peer.close() for peer in self.peers))
        self.relay.close()

    async def _post(self, peer: SwarmNode, until: float, pause: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await self._publish(peer)
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.5))

    async def _publish(self, peer: SwarmNode) -> None:
        text = f"{self._chance.choice(_BOARD)} ({len(self.expected)})"
        address = await peer.publish(text.encode(), TTL_EPOCHS)
        self.expected.add(address)
        self._sent.swarm.append(address.hex())

    async def _wait(self, is_true: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not is_true():  # noqa: ASYNC110 - peers do not signal when they are equal
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise DovetailError(f"the swarm did not reach this state within {seconds:.0f} s") from None

    def _directory(self, number: int) -> Path:
        return self._layout.site / "peers" / f"{number + 1:02}"
