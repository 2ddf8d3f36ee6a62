"""Keys, atoms and messages that the won tests share."""

from __future__ import annotations

from dovetail.won import compose as c
from dovetail.won.message import Message
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import Direction, MessageType

NODE_A = "https://a.example/won/resource"
NODE_B = "https://b.example/won/resource"
ALICE = f"{NODE_A}/atom/alice"
BOB = f"{NODE_B}/atom/bob"
ALICE_CHAT, BOB_CHAT = f"{ALICE}#chat", f"{BOB}#chat"
KEYS = {
    name: SigningKey(bytes([number]) * 32)
    for number, name in enumerate((NODE_A, NODE_B, ALICE, BOB, "mallory"), start=1)
}
NOW_MS = 1_763_236_800_000


def build(kind: MessageType = MessageType.CONNECTION, **changes) -> Message:
    """A message of alice; connection-specific ones go to bob."""
    signer = changes.pop("signer", ALICE)
    if kind in (MessageType.CREATE, MessageType.REPLACE):
        envelope = [(c.v.P_ATOM, f"<{ALICE}>")]
        content = c.atom_content(ALICE, [ALICE_CHAT], KEYS[ALICE].public)
    elif kind in c.v.ATOM_TYPES:
        envelope, content = [(c.v.P_ATOM, f"<{ALICE}>")], []
    else:
        envelope, content = c.socket_pair(ALICE_CHAT, BOB_CHAT), c.text_content(changes.pop("text", "hello"))
    arguments = {
        "type": kind,
        "direction": Direction.OWNER,
        "signer": signer,
        "key": changes.pop("key", KEYS[ALICE]),
        "timestamp_ms": NOW_MS,
        "envelope": envelope,
        "content": content,
    }
    return c.compose(**(arguments | changes))


def success(message: Message, **changes) -> Message:
    """s1 of alice's node to a message of alice."""
    arguments = {
        "success": True,
        "signer": NODE_A,
        "key": KEYS[NODE_A],
        "timestamp_ms": NOW_MS + 1,
        "connection": f"{ALICE}/c/one",
        "sender_socket": ALICE_CHAT,
        "recipient_socket": ALICE_CHAT,
    }
    return c.respond(message, **(arguments | changes))
