"""Owners on three nodes who talk to each other across nodes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection
from dataclasses import dataclass

from dovetail.demo.faults import Sent
from dovetail.demo.plan import Plan
from dovetail.demo.site import NODES, NodeProcess, Site
from dovetail.model.errors import DovetailError
from dovetail.runtime.won_client import AtomFile, OwnerClient, OwnerHome
from dovetail.won.chain import ChainState
from dovetail.won.message import Message
from dovetail.won.settings import WonSettings
from dovetail.won.vocabulary import MessageType

SETTLE_S = 60.0
_QUICK = WonSettings(retry_ms=100, max_retry_ms=1_000)
_NAMES = ("ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hana", "ivo")
_LINES = (
    "is the sofa still there?",
    "yes, come by after six",
    "can you hold it until Friday?",
    "for you, yes",
    "what about the lamp?",
    "gone, sorry",
    "see you then",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Two connected owners, and the nodes that carry their messages."""

    one: OwnerClient
    other: OwnerClient
    nodes: frozenset[str]


class Owners:
    """All owners and their conversations."""

    def __init__(self, site: Site, plan: Plan, chance: random.Random, sent: Sent) -> None:
        self._site = site
        self._plan = plan
        self._chance = chance
        self._sent = sent
        self._stack = contextlib.AsyncExitStack()
        self.by_node: dict[str, list[OwnerClient]] = {}
        self.conversations: list[Conversation] = []
        self.messages = 0
        self._said: list[tuple[OwnerClient, str, frozenset[str]]] = []

    async def start(self) -> None:
        """Create the atoms and connect the owners of each pair of nodes."""
        names = iter(_NAMES)
        for node in self._site.nodes.values():
            self.by_node[node.name] = [await self._create(node, next(names)) for _ in range(self._plan.owners_per_node)]
        pairs = [(NODES[0], NODES[1]), (NODES[1], NODES[2]), (NODES[2], NODES[0])]
        await asyncio.gather(
            *(
                self._connect(one, other, frozenset(pair))
                for pair in pairs
                for one, other in zip(*(self.by_node[name] for name in pair), strict=True)
            )
        )

    def home(self, node: NodeProcess, name: str) -> OwnerHome:
        """Create a new owner's directory."""
        atom = f"{node.uri}/atom/{name}"
        file = AtomFile(atom, (f"{atom}#chat",), self._site.authority)
        return OwnerHome.create(self._site.layout.site / "owners" / name, file)

    async def open(self, home: OwnerHome, *, is_created: bool) -> OwnerClient:
        """Open a running client."""
        return await self._stack.enter_async_context(OwnerClient(home, is_created=is_created, settings=_QUICK))

    async def stop(self) -> None:
        """Close all clients."""
        await self._stack.aclose()

    async def talk(self, until: float, over: dict[str, float]) -> None:
        """Talk until this loop time; conversations over a node in `over` end at its time."""
        pause = len(self.conversations) / self._plan.words_per_second
        await asyncio.gather(*(self._converse(each, until, over, pause) for each in self.conversations))

    async def speak_last(self, over: Collection[str]) -> None:
        """One message in every conversation that is not over a node in `over`, so that the nodes' journals go on."""
        for talk in self.conversations:
            if not talk.nodes.intersection(over):
                self._note(talk.one, await self.say(talk.one, talk.other, _LINES[-1]), talk.nodes)
        await self.settle()

    async def say(self, speaker: OwnerClient, hearer: OwnerClient, text: str) -> Message:
        """Send one message of a conversation; returns while it is in transit."""
        own, target = speaker.home.file.sockets[0], hearer.home.file.sockets[0]
        return await speaker.say(lambda owner, now: owner.send_message(MessageType.CONNECTION, own, target, now, text))

    async def settle(self, node: str | None = None) -> None:
        """Wait until every chain, or every chain over one node, is complete; DovetailError names one that is not."""
        for client, uri, nodes in tuple(self._said):
            if node is None or node in nodes:
                state = await client.wait_settled(uri, SETTLE_S)
                if state is not ChainState.COMPLETE:
                    raise DovetailError(f"{uri} is {state}, expected {ChainState.COMPLETE}")

    async def _create(self, node: NodeProcess, name: str) -> OwnerClient:
        client = await self.open(self.home(node, name), is_created=False)
        message = await client.say(lambda owner, now: owner.create(client.home.file.sockets, now))
        if await client.wait_settled(message.uri, SETTLE_S) is not ChainState.ATOM:
            raise DovetailError(f"{client.owner.atom} was not created within {SETTLE_S:.0f} s")
        return client

    async def _connect(self, one: OwnerClient, other: OwnerClient, nodes: frozenset[str]) -> None:
        for speaker, hearer in ((one, other), (other, one)):
            own, target = speaker.home.file.sockets[0], hearer.home.file.sockets[0]
            message = await speaker.say(
                lambda owner, now, own=own, target=target: owner.send_message(MessageType.CONNECT, own, target, now)  # type: ignore[misc]
            )
            self._note(speaker, message, nodes)
            await speaker.wait_settled(message.uri, SETTLE_S)
        self.conversations.append(Conversation(one, other, nodes))

    async def _converse(self, talk: Conversation, until: float, over: dict[str, float], pause: float) -> None:
        loop = asyncio.get_running_loop()
        end = min([until, *(over[name] for name in talk.nodes if name in over)])
        speaker, hearer = talk.one, talk.other
        while loop.time() < end:
            self._note(speaker, await self.say(speaker, hearer, self._chance.choice(_LINES)), talk.nodes)
            speaker, hearer = hearer, speaker
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.5))

    def _note(self, client: OwnerClient, message: Message, nodes: frozenset[str]) -> None:
        self._sent.won.append(message.address.hex())
        self._said.append((client, message.uri, nodes))
        self.messages += 1
