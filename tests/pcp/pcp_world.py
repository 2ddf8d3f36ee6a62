"""A broker with clients, driven as by a shell: feed, drain events, drain what is to be sent."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from dovetail.model.address import address_of
from dovetail.model.hop import Hop, Observation, Reason, Stage
from dovetail.model.wire import CloseLink, SendFrames
from dovetail.pcp.broker import Broker
from dovetail.pcp.events import Event
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings
from pcp.pcp_frames import BROKER, NOW, frame_v1, frame_v2, read_v1

ASSOCIATE = "http://puppetlabs.com/associate_request"
INVENTORY = "http://puppetlabs.com/inventory_request"


def frame_bytes(payload: bytes) -> int:
    """The size of a payload on the wire."""
    return len(payload) + (2 if len(payload) < 126 else 4 if len(payload) < 65_536 else 10)


class World:
    """Connections are numbered in opening order; `received` holds what each was sent, in order."""

    def __init__(self, *, logs_messages: bool = False, **settings: object) -> None:
        settings.setdefault("rules", ALLOW_ALL)
        self.now = NOW
        self._ids = 0
        self.broker = Broker(msgspec.convert(settings, PcpSettings), self.new_id, logs_messages=logs_messages)
        self.events: list[Event] = []
        self.closed: list[CloseLink] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self.received: dict[str, list[bytes]] = defaultdict(list)
        self._connections = 0
        self._buffers: dict[str, list[bytes]] = defaultdict(list)
        self._room: dict[str, int] = {}

    def new_id(self) -> str:
        self._ids += 1
        return str(uuid.UUID(int=self._ids))

    def drain(self) -> None:
        """As a shell without a gate does: send, then take the events; connections closed from here are closed."""
        closes = []
        for item in self.broker.to_send():
            if isinstance(item, SendFrames):
                for link in item.links:
                    self._write(link, item.frames)
            else:
                closes.append(item)
        self.events += self.take_events()
        self.closed += closes
        for item in closes:
            self.close(item.link)
        assert not self.broker.to_send()
        assert not self.broker.events()

    def take_events(self) -> list[Event]:
        """Drain the events; what the broker counts is what it observes."""
        events = self.broker.events()
        for event in events:
            if isinstance(event, Observation):
                reason = "" if event.reason is None else event.reason.value
                self._counts[event.stage.value, reason] += len(event.counterparts) or 1
        counts = {key: count for key, count in self.broker.counts().items() if count}
        assert counts == self._counts
        return events

    def _write(self, connection: str, payloads: Sequence[bytes]) -> None:
        """Give the client what its kernel has room for; the rest stays in the transport."""
        buffer = self._buffers[connection]
        for payload in payloads:
            if buffer or self._room.get(connection, 1 << 60) < frame_bytes(payload):
                buffer.append(payload)
            else:
                self.received[connection].append(payload)
                if connection in self._room:
                    self._room[connection] -= frame_bytes(payload)
        if buffer:
            self.broker.receive_paused(connection, self._unsent(connection), self.now)

    def _unsent(self, connection: str) -> int:
        """The kernel may have accepted part of the first frame in the buffer."""
        buffer = self._buffers[connection]
        return sum(map(frame_bytes, buffer)) - self._room.get(connection, 0) if buffer else 0

    def fill(self, connection: str, room: int = 0) -> None:
        """The client stops reading: its kernel accepts this many more bytes."""
        self._room[connection] = room

    def open(self, name: str, path: str = "/pcp") -> str:
        self._connections += 1
        connection = str(self._connections)
        self.broker.receive_opened(connection, name, path, self.now)
        self.drain()
        return connection

    def send(self, connection: str, frame: bytes, is_text: bool = False) -> bytes:
        self.broker.receive_frame(frame, connection, self.now, is_text)
        self.drain()
        return frame

    def associate(self, name: str, client_type: str = "agent") -> str:
        """A v1 client, associated, with nothing received yet."""
        connection = self.open(name)
        self.send(connection, self.associate_request(f"pcp://{name}/{client_type}"))
        data = self.replies(connection)[-1][1]
        assert data["success"] is True
        self.received[connection].clear()
        return connection

    def associate_request(self, sender: str, **changes: object) -> bytes:
        fields = {"message_type": ASSOCIATE, "targets": [BROKER], "sender": sender, "id": self.new_id(), **changes}
        return frame_v1(**fields)

    def connect_v2(self, name: str, client_type: str = "agent") -> str:
        return self.open(name, f"/pcp2/{client_type}")

    def message(self, sender: str, *targets: str, data: bytes | None = b"{}", **changes: object) -> bytes:
        changes.setdefault("id", self.new_id())
        return frame_v1(data, sender=sender, targets=list(targets), **changes)

    def message_v2(self, target: str | None, **changes: object) -> bytes:
        changes.setdefault("id", self.new_id())
        return frame_v2(target=target, **changes)

    def close(self, connection: str) -> None:
        self.broker.receive_closed(connection, self.now, self._unsent(connection))
        self._buffers.pop(connection, None)
        self.drain()

    def pause(self, connection: str) -> None:
        self.broker.receive_paused(connection, 0, self.now)
        self.drain()

    def resume(self, connection: str) -> None:
        self._room.pop(connection, None)
        self.received[connection] += self._buffers.pop(connection, [])
        self.broker.receive_resumed(connection, self.now)
        self.broker.handle_timer(self.now)
        self.drain()

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, calling the timer whenever it is due."""
        end = self.now + milliseconds * 1000
        for _ in range(10_000):
            due = self.broker.next_timer()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.broker.handle_timer(self.now)
            self.drain()
        self.now = end

    def journal(self) -> list[Hop]:
        """All observations as a journal would store them."""
        seen = [(one, whom) for one in self.observations() for whom in (one.counterparts or (None,))]
        return [
            Hop(
                server="pcp://broker/server",
                seq=seq,
                at_us=one.at_us,
                fabric="pcp",
                stage=one.stage,
                message=one.message,
                counterpart=counterpart,
                reason=one.reason,
                raw=one.raw,
            )
            for seq, (one, counterpart) in enumerate(seen)
        ]

    def restart(self) -> None:
        """The broker is killed and restarted; it knows what its journal holds, and no one is connected."""
        self._buffers.clear()
        self._counts.clear()
        self.broker = Broker(self.broker.settings, self.new_id)
        self.broker.restore(self.journal(), self.now)
        self.drain()

    def replies(self, connection: str) -> list[tuple[dict[str, object], object]]:
        """Envelope and JSON data of each message a v1 client got."""
        read = [read_v1(message) for message in self.received[connection]]
        return [(envelope, json.loads(data) if data else None) for envelope, data, _ in read]

    def replies_v2(self, connection: str) -> list[dict[str, object]]:
        return [json.loads(message) for message in self.received[connection]]

    def observations(self, frame: bytes | None = None) -> list[Observation]:
        """All observations, or those of one message by its wire bytes."""
        found = [event for event in self.events if isinstance(event, Observation)]
        return found if frame is None else [seen for seen in found if seen.message == address_of(frame)]

    def hops(self, frame: bytes) -> list[tuple[Stage, str | None, Reason | None]]:
        """Stage, counterpart and reason of each hop of one message."""
        return [
            (seen.stage, counterpart, seen.reason)
            for seen in self.observations(frame)
            for counterpart in (seen.counterparts or (None,))
        ]

    def closes(self) -> list[tuple[str, int]]:
        """Connection and code of each close that was decided."""
        return [(close.link, close.code) for close in self.closed]

    def assert_rejected(self, frame: bytes, reason: Reason) -> None:
        hops = self.hops(frame)
        assert [(stage, why) for stage, _, why in hops] == [(Stage.REJECTED, reason)], hops

    def inventory(self) -> set[str]:
        return set(self.broker.registry.by_uri)
