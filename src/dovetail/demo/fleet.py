"""Agents and controllers of the broker, and their ordinary traffic."""

from __future__ import annotations

import asyncio
import contextlib
import random

from dovetail.demo.faults import Sent
from dovetail.demo.plan import Plan
from dovetail.demo.site import Site
from dovetail.pcp.client import ClientOptions
from dovetail.runtime.pcp_client import PcpClient

TYPES = "http://dovetail.example/"
RUN, RAN, NEWS, ROUND = (f"{TYPES}{name}" for name in ("run", "ran", "news", "round"))
EVERY_AGENT = "pcp://*/agent"
_TASKS = ("uptime", "disk", "restart nginx", "patch level", "certificates", "reboot pending?")
_READY_S = 30.0
_QUICK = ClientOptions(backoff_ms=50, max_backoff_ms=500)


class Fleet:
    """All ordinary clients of the broker."""

    def __init__(self, site: Site, plan: Plan, chance: random.Random, sent: Sent) -> None:
        self._site = site
        self._plan = plan
        self._chance = chance
        self._sent = sent
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.agents: list[PcpClient] = []
        self.controllers: list[PcpClient] = []
        self.messages = 0

    async def start(self) -> None:
        """Connect all clients."""
        names = [f"agent-{number:02}" for number in range(1, self._plan.agents + 1)]
        self.agents = [await self.connect(f"pcp://{name}/agent") for name in names]
        for number in range(1, self._plan.controllers + 1):
            # the last one uses version 2
            version = 2 if number == self._plan.controllers else 1
            self.controllers.append(await self.connect(f"pcp://controller-{number}/controller", version))
        for client in (*self.agents, *self.controllers):
            await client.wait_associated(_READY_S)
        self._tasks = [asyncio.create_task(self._work(agent)) for agent in self.agents]
        self._tasks += [asyncio.create_task(self._read(controller)) for controller in self.controllers]

    async def connect(self, uri: str, version: int = 1) -> PcpClient:
        """Connect one more client, with its own certificate."""
        name, kind = uri.removeprefix("pcp://").split("/")
        url = self._site.broker_url if version == 1 else f"{self._site.broker_url_v2}/{kind}"
        client = PcpClient(url, uri, version=version, context=self._site.client_context(name), options=_QUICK)
        return await self._stack.enter_async_context(client)

    async def stop(self) -> None:
        """Disconnect all clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def talk(self, until: float) -> None:
        """Ordinary traffic until this loop time; returns when all of it is answered."""
        share = len(self.controllers) / self._plan.requests_per_second
        await asyncio.gather(*(self._command(controller, until, share) for controller in self.controllers))

    async def _command(self, controller: PcpClient, until: float, pause: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while due < until:
            await self._say_something(controller)
            due += pause * self._chance.uniform(0.5, 1.5)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _say_something(self, controller: PcpClient) -> None:
        lot = self._chance.random()
        if lot < 0.03 and controller.uri != self.controllers[-1].uri:  # version 2 has no wildcards
            await self._announce(controller)
        elif lot < 0.05:
            await controller.inventory(EVERY_AGENT)
        elif lot < 0.25:
            await self._report(self._chance.choice(self.agents), controller)
        else:
            await self.ask(controller, self._chance.choice(self.agents).uri)

    async def ask(self, controller: PcpClient, agent: str) -> None:
        """Send one task to one agent, and wait for its answer."""
        reply = await controller.request(RUN, agent, {"task": self._chance.choice(_TASKS)})
        assert reply.in_reply_to is not None
        self._expect(reply.in_reply_to)
        self._expect(reply.id)

    async def _announce(self, controller: PcpClient) -> None:
        message_id = await controller.send(ROUND, EVERY_AGENT, {"round": self.messages})
        self._expect(message_id, len(self.agents))

    async def _report(self, agent: PcpClient, controller: PcpClient) -> None:
        load = round(self._chance.uniform(0, 4), 2)
        self._expect(await agent.send(NEWS, controller.uri, {"load": load, "free_mb": self._chance.randrange(4096)}))

    def _expect(self, message_id: str, recipients: int = 1) -> None:
        self._sent.pcp[message_id] = recipients
        self.messages += 1

    async def _work(self, agent: PcpClient) -> None:
        async for message in agent.messages():
            if message.message_type == RUN:
                await agent.reply(message, RAN, {"exit": 0, "took_ms": self._chance.randrange(1, 900)})

    async def _read(self, controller: PcpClient) -> None:
        async for _ in controller.messages():
            pass
