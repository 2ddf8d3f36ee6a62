"""The half minute in which everything happens: servers, clients, traffic, and the scheduled faults."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from dovetail.demo.faults import Ledger
from dovetail.demo.fleet import Fleet
from dovetail.demo.layout import Layout
from dovetail.demo.owners import Owners
from dovetail.demo.pcp_faults import PcpFaults
from dovetail.demo.plan import LOSS_TIMEOUT_S, Plan
from dovetail.demo.screen import Screen
from dovetail.demo.site import Site
from dovetail.demo.swarm import Swarm
from dovetail.demo.swarm_faults import SwarmFaults
from dovetail.demo.won_faults import WonFaults
from dovetail.runtime.clock import now_us

_STATUS_S = 0.5
_CUT_OFF = "south"
"""The node whose conversations end early: its answers are lost."""
log = logging.getLogger("dovetail.demo")


class World:
    """One run. After `run` all servers are stopped and all journals closed."""

    def __init__(self, layout: Layout, plan: Plan, seed: int, screen: Screen) -> None:
        chance = random.Random(seed)  # noqa: S311 - decides who talks to whom, not a secret
        self.ledger = Ledger()
        self._layout = layout
        self._plan = plan
        self._screen = screen
        self._site = Site(layout)
        sent = self.ledger.sent
        self._fleet = Fleet(self._site, plan, random.Random(chance.getrandbits(64)), sent)  # noqa: S311
        self._owners = Owners(self._site, plan, random.Random(chance.getrandbits(64)), sent)  # noqa: S311
        self._swarm = Swarm(layout, plan, random.Random(chance.getrandbits(64)), sent)  # noqa: S311
        self._pcp_faults = PcpFaults(self._site, self._fleet, self.ledger)
        self._won_faults = WonFaults(self._site, self._owners, self.ledger)
        self._swarm_faults = SwarmFaults(self._swarm, self.ledger)
        self._told = 0
        self._is_stopped = False
        self.ended_us = 0

    @property
    def peers(self) -> list[str]:
        """URIs of the swarm's peers, the late one last."""
        return [node.peer.uri for node in self._swarm.peers]

    @property
    def nodes(self) -> list[str]:
        """URIs of the won nodes."""
        return [node.uri for node in self._site.nodes.values()]

    async def run(self) -> None:
        """Run everything up to the closed journals; no process outlives it, whatever happens."""
        asyncio.get_running_loop().set_exception_handler(_hear_loop_error)
        try:
            self._screen.phase("start: a broker with TLS, three nodes, a swarm behind a lossy relay")
            await self._start()
            self._screen.phase("traffic and faults")
            await self._live()
            self._screen.phase("settle: every chain complete, every peer equal, all journals closed")
            await self._settle()
            await self._stop()
        finally:
            self._site.kill()
            await self._abandon()

    async def _start(self) -> None:
        await self._site.start()
        await asyncio.gather(self._fleet.start(), self._owners.start(), self._swarm.start())
        plan = self._plan
        owners = plan.owners_per_node * len(self._site.nodes)
        self._screen.status(
            f"{plan.agents} agents, {plan.controllers} controllers, {owners} owners, {len(self.peers)} peers"
        )

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        until = began + self._plan.seconds
        south_ends = began + 0.6 * self._plan.seconds
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fleet.talk(until))
                group.create_task(self._owners.talk(until, {_CUT_OFF: south_ends}))
                group.create_task(self._swarm.talk(until))
                for share, fault in self._schedule():
                    group.create_task(self._inject(began + share * self._plan.seconds, fault))
        finally:
            watching.cancel()

    def _schedule(self) -> list[tuple[float, Callable[[], Awaitable[None] | None]]]:
        """Each fault with its time, as a fraction of the whole."""
        pcp, won, swarm = self._pcp_faults, self._won_faults, self._swarm_faults
        north, east, south = self._site.nodes.values()
        return [
            (0.05, pcp.lose_agent),
            (0.10, pcp.misuse),
            (0.15, lambda: won.forge(north)),
            (0.20, pcp.overstep),
            (0.25, lambda: won.crash(east)),
            (0.30, pcp.call_nobody),
            (0.35, swarm.cheat),
            (0.40, lambda: won.fork(north)),
            (0.45, pcp.overwhelm),
            (0.50, swarm.arrive_late),
            (0.55, swarm.turn_back),
            (0.60, swarm.refer_to_nothing),
            (0.80, lambda: won.lose_response(north, south)),
        ]

    async def _inject(self, at: float, fault: Callable[[], Awaitable[None] | None]) -> None:
        await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
        doing = fault()
        if doing is not None:
            await doing
        for noted in self.ledger.faults[self._told :]:
            self._screen.note(f"injected: {noted.what}")
        self._told = len(self.ledger.faults)

    async def _watch(self) -> None:
        while True:
            relay = self._swarm.relay
            lost = relay.dropped / max(1, relay.passed + relay.dropped)
            self._screen.status(
                f"{self._fleet.messages} pcp, {self._owners.messages} won, {self._swarm.messages} swarm messages; "
                f"{lost:.0%} of {relay.passed + relay.dropped} datagrams lost"
            )
            await asyncio.sleep(_STATUS_S)

    async def _settle(self) -> None:
        await self._owners.settle()
        await self._swarm.converge()
        waited_s = (now_us() - self._last_loss_us()) / 1e6
        # what is in transit counts as lost only where a journal goes on for LOSS_TIMEOUT_S without it
        await asyncio.sleep(max(0.0, LOSS_TIMEOUT_S + 0.5 - waited_s))
        await self._owners.speak_last({_CUT_OFF})
        self.ended_us = now_us()

    def _last_loss_us(self) -> int:
        return max((fault.at_us for fault in self.ledger.faults), default=0)

    async def _stop(self) -> None:
        await self._fleet.stop()
        await self._owners.stop()
        await self._swarm.stop()
        await self._site.stop()
        self._won_faults.show_journal(self._layout)
        self._is_stopped = True

    async def _abandon(self) -> None:
        """After a failure: close what is open, since journal threads would outlive us."""
        if not self._is_stopped:
            closing = (self._fleet.stop(), self._owners.stop(), self._swarm.leave())
            await asyncio.gather(*closing, return_exceptions=True)


def _hear_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Broken connections are expected here; anything else is a bug."""
    error = context.get("exception")
    kind = error if isinstance(error, type) else type(error)  # TLS passes the class if it has no details
    level = logging.DEBUG if issubclass(kind, OSError) else logging.ERROR
    log.log(level, "%s: %r", context.get("message"), error)
