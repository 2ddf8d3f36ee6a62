"""What became of a message for one recipient: the closed list of outcomes, and which of them mean arrival."""

from __future__ import annotations

import enum
from typing import Final


class Outcome(enum.StrEnum):
    """In the order in which they are shown; `sentence` says what each one means."""

    sentence: str

    def __new__(cls, text: str, sentence: str) -> Outcome:
        member = str.__new__(cls, text)
        member._value_ = text
        member.sentence = sentence
        return member

    DELIVERED = "delivered", "it arrived: an answer of the recipient, or the recipient's own journal, proves it"
    HANDED_OVER = (
        "handed_over",
        "it was handed to the recipient's connection, or its node keeps it for him; nothing proves that he read it",
    )
    ECHOED = "echoed", "only the sender's side has it: nothing says that the recipient's node took it"
    IN_FLIGHT = "in_flight", "it is still under way: the next hop has not been seen yet"
    UNREPORTED = (
        "unreported",
        "its lifetime is over, and the journal of the server that owes the outcome does not reach that far yet",
    )
    EXPIRED = "expired", "its lifetime was over before it could be handed over"
    UNDELIVERABLE = "undeliverable", "nobody was there to take it; a client by that name had to be connected"
    UNAUTHORIZED = "unauthorized", "no rule allows it for every target, so nobody got it"
    REJECTED = "rejected", "the server refused it; the reason says why"
    LOST = "lost", "the next server had to take it in, and its journal does not know it"
    NO_OUTCOME = (
        "no_outcome",
        "its lifetime is over, and the server that accepted it never said what became of it for this recipient",
    )


ARRIVED: Final = frozenset({Outcome.DELIVERED, Outcome.HANDED_OVER})
PENDING: Final = frozenset({Outcome.ECHOED, Outcome.IN_FLIGHT, Outcome.UNREPORTED})


def count_arrived(counts: dict[str, int]) -> int:
    """How many deliveries arrived, of those counted by outcome."""
    return sum(count for outcome, count in counts.items() if outcome in ARRIVED)


def meaning_of(outcome: str) -> str:
    """What an outcome of a table means, also one of a later version."""
    known = {each.value: each.sentence for each in Outcome}
    return known.get(outcome, "an outcome that this version does not know")
