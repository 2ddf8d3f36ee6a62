"""The claim of a receipt in plain words, and what it does not prove.

The claim is stored in the file and recomputed by the verifier, so its wording is part of the format and fixed per
version. Text from peers is escaped and in double quotes, so that it cannot pass for part of a sentence. The limits are
stated by the verifier and may be reworded at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii

from dovetail.fabrics import fabric_named
from dovetail.model.errors import ReceiptError
from dovetail.model.hop import Hop, Relation, Stage
from dovetail.model.times import time_text
from dovetail.receipt.consistency import View
from dovetail.receipt.format import Wording
from dovetail.tlog.checkpoint import Checkpoint
from dovetail.tlog.note import Cosignature

_DEEDS: Mapping[Stage, tuple[str, str]] = {
    Stage.CREATED: ("made {}", "for"),
    Stage.ACCEPTED: ("accepted {}", "from"),
    Stage.REJECTED: ("refused {}", "from"),
    Stage.DELIVERED: ("handed {} over", "to the connection of"),
    Stage.ECHOED: ("echoed {}", "to"),
    Stage.FORWARDED: ("forwarded {}", "to"),
    Stage.UNDELIVERABLE: ("could not deliver {}", "to"),
    Stage.EXPIRED: ("let {} expire before delivery", "to"),
    Stage.REDELIVERED: ("handed {} over again", "to the connection of"),
    Stage.PULLED: ("asked for {}", "from"),
    Stage.SERVED: ("served {}", "to"),
    Stage.PURGED: ("purged the bytes of {}", "of"),
    Stage.ROUTED: ("found {} to be", "for"),
    Stage.NOTED: ("noted {}", "with"),
}

_OLDER_DEEDS: Mapping[Stage, tuple[str, str]] = {
    Stage.DELIVERED: ("delivered {}", "to"),
    Stage.REDELIVERED: ("delivered {} again", "to"),
}

_RELATIONS: Mapping[Relation, tuple[str, str]] = {
    Relation.RESPONDING_TO: ("response", "responds to the message"),
    Relation.PREVIOUS: ("successor", "names the message as its predecessor"),
    Relation.REFERS: ("reference", "refers to the message"),
    Relation.IN_REPLY_TO: ("reply", "replies to the message"),
}


def quote(text: str) -> str:
    """Quote a peer's text for use in a sentence: a JSON string in ASCII."""
    return encode_basestring_ascii(text)


def name_messages(relations: Iterable[Relation | None]) -> list[str]:
    """The names that a receipt's sentences use for its messages."""
    names = []
    counts: dict[Relation, int] = {}
    for relation in relations:
        if relation is None:
            names.append("the message")
        else:
            counts[relation] = counts.get(relation, 0) + 1
            names.append(f"{_RELATIONS[relation][0]} {counts[relation]}")
    return names


def describe_message(name: str, text: str, relation: Relation | None, length: int | None) -> str:
    """Identify the message; `text` is its address as shown to people."""
    sentence = f"{name} is {text}"
    if relation is not None:
        sentence += f", which {_RELATIONS[relation][1]}"
    return f"{sentence}; its bytes are left out" if length is None else f"{sentence}; its {length} bytes are here"


def describe_hop(name: str, hop: Hop, wording: Wording = Wording.HANDED_OVER) -> str:
    """What one server did with it, and when."""
    older = _OLDER_DEEDS if wording is Wording.DELIVERED else {}
    deed, preposition = older.get(hop.stage, _DEEDS[hop.stage])
    sentence = f"{hop.server} {deed.format(name)}"
    if hop.counterpart is not None:
        sentence += f" {preposition} {quote(hop.counterpart)}"
    sentence += f" at {time_text(hop.at_us)}"
    return sentence if hop.reason is None else f"{sentence}, because: {hop.reason}"


def describe_commitment(view: View) -> str:
    """Say who commits to it."""
    checkpoint = view.checkpoint
    sentence = f"{checkpoint.origin} commits to this: its signed journal of {checkpoint.size} hops contains it"
    if view.grown_from is not None:
        sentence += f", and begins with its journal of {view.grown_from.size} hops"
    return sentence


def describe_cosignature(checkpoint: Checkpoint, cosignature: Cosignature) -> str:
    """What a witness adds. Not part of a file's claim: its weight depends on whom the reader trusts."""
    at = time_text(cosignature.at_s * 1_000_000)
    return (
        f"{cosignature.witness.name} saw that signed journal of {checkpoint.origin} at {at}, "
        "and that it had only grown since it last looked"
    )


def check_claim(stated: Sequence[str], proven: Sequence[str]) -> None:
    """Check that a receipt states exactly what follows from its proofs."""
    if stated != proven:
        raise ReceiptError("claim: the text in the file is not what its proofs show")


def state_limits(fabric: str, hops: Sequence[Hop], *, is_redacted: bool, unwitnessed: Iterable[str]) -> list[str]:
    """What a valid receipt with these hops does not prove."""
    limits = ["that nothing else happened to it: a receipt shows what was seen, not all that was seen"]
    if is_redacted:
        limits.append("what it says: its bytes are left out, only their address is here")
    stages = {hop.stage for hop in hops}
    open_ends = (fabric_named(fabric).not_proven(stage) for stage in Stage if stage in stages)
    limits += dict.fromkeys(text for text in open_ends if text is not None)
    limits.append("that the times are right: they are those of each server's own clock")
    limits += [
        f"that {server} shows everybody the same journal: no trusted witness cosigned it" for server in unwitnessed
    ]
    return limits
