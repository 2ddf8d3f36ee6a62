"""The actual memory use of messages that wait in a broker, in total and by sender, and who is over its share.

A sender is a name in certificates: clients of all types that one certificate claims have one share. A message that
waits for many recipients is one message: its bytes count once, plus a little per recipient. Its decoded form holds a
second copy of its data, and a copy of each target.
"""

from __future__ import annotations

from collections import OrderedDict

from dovetail.pcp.codec_v1 import Frame
from dovetail.pcp.message import Message
from dovetail.pcp.session import HELD_ENTRY_BYTES, Held

HELD_MESSAGE_BYTES = 700
_TARGET_BYTES = 64  # beyond its characters


def message_bytes(message: Message) -> int:
    """The memory use of a message, regardless of recipients."""
    size = HELD_MESSAGE_BYTES + len(message.payload)
    if isinstance(message.origin, Frame):
        size += len(message.origin.data or b"")
        size += sum(map(len, message.origin.envelope.targets)) + _TARGET_BYTES * len(message.origin.envelope.targets)
    return size


def _name_of(uri: str) -> str:
    """The URI of a client without its type."""
    return uri.rpartition("/")[0]


class _Share:
    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[Held, None] = OrderedDict()
        self.bytes = 0


class HeldMessages:
    """Counts waiting messages. The broker's own messages are in the total and in no sender's share."""

    def __init__(self, sender_messages: int, sender_bytes: int) -> None:
        self._sender_messages = sender_messages
        self._sender_bytes = sender_bytes
        self._holders: dict[Message, int] = {}
        self._senders: dict[str, _Share] = {}
        self.count = 0
        self.bytes = 0

    def cost(self, message: Message) -> int:
        """How much more memory is used if this message waits for one more recipient."""
        return HELD_ENTRY_BYTES + (0 if message in self._holders else message_bytes(message))

    def add(self, held: Held) -> None:
        """Count a message that waits for one more recipient."""
        message = held.message
        assert message is not None
        cost = self.cost(message)
        self._holders[message] = self._holders.get(message, 0) + 1
        self.count += 1
        self.bytes += cost
        if not message.is_own:
            name = _name_of(message.sender)
            share = self._senders.get(name)
            if share is None:
                share = self._senders[name] = _Share()
            share.entries[held] = None
            share.bytes += cost

    def remove(self, held: Held) -> None:
        """Stop counting it."""
        message = held.message
        assert message is not None
        self._holders[message] -= 1
        if not self._holders[message]:
            del self._holders[message]
        cost = self.cost(message)
        self.count -= 1
        self.bytes -= cost
        if not message.is_own:
            name = _name_of(message.sender)
            share = self._senders[name]
            del share.entries[held]
            share.bytes -= cost
            if not share.entries:
                del self._senders[name]

    def find_excess(self, sender: str) -> Held | None:
        """The longest waiting message of a sender, named by a client's URI, if it is over its share, else None.

        A single message may be large.
        """
        share = self._senders.get(_name_of(sender))
        if share is None or len(share.entries) == 1:
            return None
        if len(share.entries) > self._sender_messages or share.bytes > self._sender_bytes:
            return next(iter(share.entries))
        return None

    def largest(self, count: int) -> list[tuple[str, int, int]]:
        """The senders with the most held bytes: sender, number of messages, bytes."""
        shares = sorted(self._senders.items(), key=lambda item: (-item[1].bytes, item[0]))
        return [(sender, len(share.entries), share.bytes) for sender, share in shares[:count]]
