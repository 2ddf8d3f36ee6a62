"""A won conversation between real nodes, interleaved with other traffic, as two journals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dovetail.journal.source import JournalSource
from dovetail.model.address import Address
from dovetail.receipt.build import BuildOptions, pin_sources, record_journal
from dovetail.receipt.build_conversation import build_conversation
from dovetail.receipt.consistency import View
from dovetail.receipt.conversation import state_conversation
from dovetail.receipt.format import Conversation, encode_receipt, record_message
from dovetail.receipt.proof import ProvenMessage
from dovetail.tlog.keys import Verifier
from dovetail.won.fabric import FABRIC
from dovetail.won.message import Message
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import MessageType
from receipt import receipt_samples as samples
from won.won_samples import ALICE_CHAT, NODE_A, NODE_B
from won.won_world import Pair

CAROL_CHAT = f"{NODE_B}/atom/carol#chat"
# a real node signs messages and checkpoints with one key; here the journals have separate keys
NODE_KEYS = [Verifier(name, SigningKey(bytes([seed]) * 32).public.raw) for name, seed in ((NODE_A, 1), (NODE_B, 2))]
TRUSTED = [*samples.verifiers(NODE_A, NODE_B), *NODE_KEYS]


@dataclass(frozen=True)
class Spoken:
    """The messages in order, and the journals of both nodes."""

    said: tuple[Message, ...]
    elsewhere: Message
    journals: tuple[Path, Path]

    def build(self, address: Address | None = None, *, only: int | None = None, **options) -> bytes:
        """The statement, from both journals or from one."""
        paths = self.journals if only is None else (self.journals[only],)
        sources = [JournalSource.open(path) for path in paths]
        try:
            return build_conversation(sources, address or self.said[0].address, NODE_KEYS, BuildOptions(**options))
        finally:
            for source in sources:
                source.__exit__(None, None, None)


def speak(folder: Path, *, rounds: int = 3) -> Spoken:
    """alice and bob talk; alice also talks to carol, whose node is bob's."""
    pair = Pair()
    carol = pair.world.owner(CAROL_CHAT.partition("#")[0], 5)
    carol.core.create([CAROL_CHAT], pair.world.now)
    carol.core.start(pair.world.now)
    pair.run()
    said = [pair.say(MessageType.CONNECT), pair.reply(MessageType.CONNECT)]
    pair.alice.core.send_message(MessageType.CONNECT, ALICE_CHAT, CAROL_CHAT, pair.world.now, "carol?")
    pair.run()
    carol.core.send_message(MessageType.CONNECT, CAROL_CHAT, ALICE_CHAT, pair.world.now, "yes")
    pair.run()
    for number in range(rounds):
        pair.world.now += samples.SECOND
        said.append(pair.say(text=f"question {number}"))
        elsewhere = pair.alice.core.send_message(
            MessageType.CONNECTION, ALICE_CHAT, CAROL_CHAT, pair.world.now, f"to carol {number}"
        )
        pair.run()
        said += [pair.reply(text=f"answer {number}"), pair.reply(text=f"and more {number}")]
    folder.mkdir(parents=True, exist_ok=True)
    journals = (
        samples.write(folder / "a.journal", NODE_A, pair.a.observations),
        samples.write(folder / "b.journal", NODE_B, pair.b.observations),
    )
    return Spoken(tuple(said), elsewhere, journals)


def forge(spoken: Spoken, messages: list[Message]) -> bytes:
    """A statement with just these messages, all proofs and text valid: what a liar with journals can produce."""
    messages = sorted(messages, key=lambda message: message.address)
    proven = [ProvenMessage(address=m.address, name="", raw=m.raw) for m in messages]
    sources = [JournalSource.open(path) for path in spoken.journals]
    try:
        journals, stated = [], []
        for holder in pin_sources(sources, BuildOptions()):
            kept = [hops[0] for m in messages if (hops := holder.signed_hops(m.address))]
            kept.sort(key=lambda each: each.hop.seq)
            journals.append(record_journal(holder, kept, proven, BuildOptions()))
            stated.append((View(holder.signed.checkpoint), len(kept)))
    finally:
        for source in sources:
            source.__exit__(None, None, None)
    pairs = {frozenset((m.sender_socket, m.recipient_socket)) for m in messages if not m.is_response}
    first, second = sorted(min(pairs, key=sorted))
    return encode_receipt(
        Conversation(
            claim=state_conversation((first, second), [FABRIC.read(message.raw) for message in messages], stated),
            messages=[record_message(m.address, m.raw, None) for m in messages],
            journals=journals,
        )
    )
