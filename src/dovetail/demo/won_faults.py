"""Faults among nodes and owners."""

from __future__ import annotations

import asyncio

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.demo.faults import Fault, Kind, Ledger
from dovetail.demo.layout import Layout
from dovetail.demo.owners import Owners
from dovetail.demo.site import NodeProcess, Site
from dovetail.journal.reader import JournalReader
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Stage
from dovetail.model.wire import CLOSE_NORMAL
from dovetail.runtime.clock import now_us
from dovetail.runtime.tls import client_context
from dovetail.runtime.websocket import LinkHandler, dial
from dovetail.runtime.won_client import OwnerHome
from dovetail.runtime.won_links import LIMITS, link_url
from dovetail.won import compose as c
from dovetail.won.chain import ChainState
from dovetail.won.links import LinkKind
from dovetail.won.message import Message
from dovetail.won.signing import SigningKey
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import Direction, MessageType

_WAIT_S = 60.0
_DOWN_S = 1.5


class _Listener(LinkHandler[str]):
    """A connection on an owner's link that only waits for an answer."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    def frame(self, data: bytes, link: str, is_text: bool) -> None:  # noqa: ARG002
        """The node answered."""
        self.answered.set()


class WonFaults:
    """Injects faults among the nodes of a site."""

    def __init__(self, site: Site, owners: Owners, ledger: Ledger) -> None:
        self._site = site
        self._owners = owners
        self._ledger = ledger
        self._second_home: OwnerHome | None = None

    async def forge(self, node: NodeProcess) -> None:
        """A message in an owner's name, signed with another key."""
        victim, friend = self._owners.by_node[node.name][0], self._owners.by_node[node.name][1]
        message = c.compose(
            type=MessageType.CONNECTION,
            direction=Direction.OWNER,
            signer=victim.owner.atom,
            key=SigningKey(Ed25519PrivateKey.generate().private_bytes_raw()),
            timestamp_ms=now_us() // 1000,
            envelope=c.socket_pair(victim.home.file.sockets[0], friend.home.file.sockets[0]),
            content=c.text_content("send the deposit to my other account"),
        )
        listener = _Listener()
        url = link_url(node.uri, LinkKind.OWNER.value)
        link = await dial(listener, url, "forger", tls=client_context(authority=self._site.authority), limits=LIMITS)
        link.send(encode_bundle((message,)), is_text=True)
        async with asyncio.timeout(_WAIT_S):
            await listener.answered.wait()
        link.close(CLOSE_NORMAL)
        self._note(Kind.BAD_SIGNATURE, "a message in an owner's name, signed by another key", node, message)

    async def fork(self, node: NodeProcess) -> None:
        """An owner who states one thing about its atom to the node, and another in the journal it shows."""
        first_home = self._owners.home(node, "mallory")
        first = await self._owners.open(first_home, is_created=False)
        created = await first.say(lambda owner, now: owner.create(first_home.file.sockets, now))
        await first.wait_settled(created.uri, _WAIT_S)
        directory = first_home.directory.with_name("mallory-2")
        self._second_home = OwnerHome.create(directory, first_home.file, first_home.private_key)
        second = await self._owners.open(self._second_home, is_created=False)
        story = c.read_description(b'<> <http://dovetail.example/says> "I never sold this sofa." .', second.owner.atom)
        other = await second.say(lambda owner, now: owner.create(first_home.file.sockets, now, story))
        if await second.wait_settled(other.uri, _WAIT_S) is not ChainState.FAILED:
            raise DovetailError(f"{node.uri} took a second Create of {second.owner.atom}")
        self._note(Kind.OWNER_FORK, "an owner creates one atom twice and shows the second", node, created, other)

    async def crash(self, node: NodeProcess) -> None:
        """Kill a node in the middle of its conversations, and restart it."""
        node.kill()
        await asyncio.sleep(_DOWN_S)
        await node.restart()
        self._note(Kind.KILLED_NODE, f"node {node.name} killed with -9 in mid-conversation, then restarted", node)

    async def lose_response(self, sender: NodeProcess, receiver: NodeProcess) -> None:
        """Cut off a node so that it still receives: it accepts a message, answers, and the answer never arrives."""
        await self._owners.settle(receiver.name)
        speaker, hearer = self._owners.by_node[sender.name][0], self._owners.by_node[receiver.name][0]
        receiver.front.cut()
        message = await self._owners.say(speaker, hearer, "are you still there?")
        response = await self._find_response(receiver, message)
        self._note(Kind.LOST_RESPONSE, "a node's response s2 is lost on its way back", receiver, message, response)

    def show_journal(self, layout: Layout) -> None:
        """Move the journal of the owner who forked to the other journals."""
        if self._second_home is not None:
            self._second_home.journal_path.rename(layout.journals / "owner-mallory.journal")

    async def _find_response(self, node: NodeProcess, message: Message) -> Address:
        """The node's own response to a message, from its journal."""
        try:
            async with asyncio.timeout(_WAIT_S):
                while True:
                    with JournalReader.open(node.journal) as reader:
                        if reader.hops_of(message.address):
                            made = [hop for hop in reader.hops() if hop.stage is Stage.CREATED]
                            return made[-1].message
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise DovetailError(f"{message.uri} did not reach {node.uri} within {_WAIT_S:.0f} s") from None

    def _note(self, kind: Kind, what: str, node: NodeProcess, *messages: Message | Address) -> None:
        addresses = [each.address if isinstance(each, Message) else each for each in messages]
        self._ledger.note(
            Fault(
                kind=kind,
                fabric="won",
                what=what,
                at_us=now_us(),
                server=node.uri,
                messages=tuple(address.hex() for address in addresses),
            )
        )
