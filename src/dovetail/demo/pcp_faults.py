"""Faults at the broker: each does one thing wrong and records how to recognise it."""

from __future__ import annotations

import asyncio
import uuid

from dovetail.demo.faults import Fault, Kind, Ledger
from dovetail.demo.faulty_client import FaultyClient
from dovetail.demo.fleet import NEWS, RUN, TYPES, Fleet
from dovetail.demo.site import BROKER, Site
from dovetail.model.errors import DovetailError
from dovetail.runtime.clock import now_us

BULK = f"{TYPES}bulk"
_BULK_CHARS = 60_000
_MAX_BULK_ROUNDS = 200
_BULK_PER_ROUND = 4
_GONE_S = 60.0
_LIFE_US = 60_000_000


class PcpFaults:
    """Injects faults at one broker."""

    def __init__(self, site: Site, fleet: Fleet, ledger: Ledger) -> None:
        self._site = site
        self._fleet = fleet
        self._ledger = ledger

    async def misuse(self) -> None:
        """Expired, malformed, one id for two contents, a cycle of replies: bytes that no honest client sends."""
        faulty = await FaultyClient.connect(self._site, "pcp://stranger/controller")
        await faulty.associate(now_us())
        target = self._fleet.agents[0].uri
        late = faulty.send(faulty.encode(RUN, target, now_us() - 5_000_000, b'{"task": "too late"}'))
        await faulty.wait_answer()
        self._note(
            Kind.EXPIRED, "a message whose lifetime was over 5 s before it was sent", messages=(late,), recipient=target
        )
        garbage = faulty.send(b"\x01\x7f" + b"not an envelope")
        await faulty.wait_answer()
        self._note(Kind.MALFORMED, "bytes that are no message", messages=(garbage,))
        number, until = str(uuid.uuid4()), now_us() + _LIFE_US
        both = tuple(
            faulty.send(faulty.encode(NEWS, target, until, content, number))
            for content in (b'{"balance": 100}', b'{"balance": 900}')
        )
        self._note(Kind.SHARED_ID, "two messages with one id and different contents", messages=both, recipient=target)
        one, other = str(uuid.uuid4()), str(uuid.uuid4())
        circle = tuple(
            faulty.send(faulty.encode(NEWS, target, until, b'{"see": "my other message"}', mine, answers))
            for mine, answers in ((one, other), (other, one))
        )
        self._note(Kind.CYCLE, "two messages that answer each other", messages=circle, recipient=target)
        await asyncio.sleep(0.2)
        faulty.close()

    async def overstep(self) -> None:
        """An agent sends a command to another one, which no rule allows."""
        one, other = self._fleet.agents[0], self._fleet.agents[1]
        number = await one.send(RUN, other.uri, {"task": "shut down"})
        self._note(Kind.UNAUTHORIZED, "an agent commands another agent", ids=(number,), recipient=other.uri)

    async def call_nobody(self) -> None:
        """A wildcard that matches no client."""
        pattern = "pcp://*/submarine"
        number = await self._fleet.controllers[0].send(RUN, pattern, {"task": "surface"})
        self._note(Kind.NOBODY, f"a message to {pattern}, which matches nobody", ids=(number,), recipient=pattern)

    async def overwhelm(self) -> None:
        """A client stops reading while a controller sends it a lot."""
        slow = await FaultyClient.connect(self._site, "pcp://sluggard/watcher", version=2)
        controller = self._fleet.controllers[-1]
        await self._wait_for(slow.uri, is_there=True)
        slow.stop_reading()
        ids: list[str] = []
        for _ in range(_MAX_BULK_ROUNDS):
            ids += [await controller.send(BULK, slow.uri, "x" * _BULK_CHARS) for _ in range(_BULK_PER_ROUND)]
            await controller.flush()
            if not await controller.inventory(slow.uri):
                break
        else:
            raise DovetailError(f"{slow.uri} was never too slow for the broker")
        slow.close()
        self._note(
            Kind.SLOW_CONSUMER, "a client that stops reading while it is sent much", ids=tuple(ids), recipient=slow.uri
        )

    async def lose_agent(self) -> None:
        """An agent in its own process, killed without warning; then it is sent more."""
        uri = "pcp://drone/drone"
        process = self._site.listener(uri)
        await process.start(says_ready=False)
        await self._wait_for(uri, is_there=True)
        controller = self._fleet.controllers[0]
        self._ledger.sent.pcp[await controller.send(RUN, uri, {"task": "take off"})] = 1
        await asyncio.sleep(0.3)
        process.kill()
        await self._wait_for(uri, is_there=False)
        ids = [await controller.send(RUN, uri, {"task": task}) for task in ("report", "return", "land")]
        self._note(Kind.DEAD_AGENT, "an agent killed with -9, and three messages for it", ids=tuple(ids), recipient=uri)

    async def _wait_for(self, uri: str, *, is_there: bool) -> None:
        controller = self._fleet.controllers[0]
        try:
            async with asyncio.timeout(_GONE_S):
                while bool(await controller.inventory(uri)) is not is_there:  # noqa: ASYNC110 - polls the broker
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise DovetailError(f"{uri} is {'not ' if is_there else ''}connected after {_GONE_S:.0f} s") from None

    def _note(
        self,
        kind: Kind,
        what: str,
        *,
        messages: tuple[str, ...] = (),
        ids: tuple[str, ...] = (),
        recipient: str | None = None,
    ) -> None:
        self._ledger.note(
            Fault(
                kind=kind,
                fabric="pcp",
                what=what,
                at_us=now_us(),
                server=BROKER,
                messages=messages,
                ids=ids,
                recipient=recipient,
            )
        )
