"""What the messages that wait in a broker really take, all of them and those of each sender, and who is over its share.

A message that waits for many recipients is one message: its bytes count once, and each recipient a little. Its decoded
form takes its data once more, and of each target a copy.
"""

from __future__ import annotations

from collections import OrderedDict

from dovetail.pcp.codec_v1 import Frame
from dovetail.pcp.message import Message
from dovetail.pcp.session import HELD_ENTRY_BYTES, Held

HELD_MESSAGE_BYTES = 700
_TARGET_BYTES = 64  # beyond its characters


def message_bytes(message: Message) -> int:
    """What a message takes in memory, whoever it waits for."""
    size = HELD_MESSAGE_BYTES + len(message.payload)
    if isinstance(message.origin, Frame):
        size += len(message.origin.data or b"")
        size += sum(map(len, message.origin.envelope.targets)) + _TARGET_BYTES * len(message.origin.envelope.targets)
    return size


class _Share:
    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[Held, None] = OrderedDict()
        self.bytes = 0


class HeldMessages:
    """Counts what waits. The broker's own messages are in the total and in no sender's share."""

    def __init__(self, sender_messages: int, sender_bytes: int) -> None:
        self._sender_messages = sender_messages
        self._sender_bytes = sender_bytes
        self._holders: dict[Message, int] = {}
        self._senders: dict[str, _Share] = {}
        self.count = 0
        self.bytes = 0

    def cost(self, message: Message) -> int:
        """How much more is taken if this message waits for one recipient more."""
        return HELD_ENTRY_BYTES + (0 if message in self._holders else message_bytes(message))

    def add(self, held: Held) -> None:
        """A message waits for one recipient more."""
        message = held.message
        assert message is not None
        cost = self.cost(message)
        self._holders[message] = self._holders.get(message, 0) + 1
        self.count += 1
        self.bytes += cost
        if not message.is_own:
            share = self._senders.get(message.sender)
            if share is None:
                share = self._senders[message.sender] = _Share()
            share.entries[held] = None
            share.bytes += cost

    def remove(self, held: Held) -> None:
        """It waits no longer."""
        message = held.message
        assert message is not None
        self._holders[message] -= 1
        if not self._holders[message]:
            del self._holders[message]
        cost = self.cost(message)
        self.count -= 1
        self.bytes -= cost
        if not message.is_own:
            share = self._senders[message.sender]
            del share.entries[held]
            share.bytes -= cost
            if not share.entries:
                del self._senders[message.sender]

    def find_excess(self, sender: str) -> Held | None:
        """What has waited longest of a sender that is over its share, None if it is not; one message may be large."""
        share = self._senders.get(sender)
        if share is None or len(share.entries) == 1:
            return None
        if len(share.entries) > self._sender_messages or share.bytes > self._sender_bytes:
            return next(iter(share.entries))
        return None

    def largest(self, count: int) -> list[tuple[str, int, int]]:
        """The senders that most is held of: who, how many messages, how many bytes."""
        shares = sorted(self._senders.items(), key=lambda item: (-item[1].bytes, item[0]))
        return [(sender, len(share.entries), share.bytes) for sender, share in shares[:count]]
