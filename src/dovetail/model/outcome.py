"""The outcome of a message for one recipient: the closed list, and which mean that it arrived, failed or is pending."""

from __future__ import annotations

import enum
from typing import Final


class Outcome(enum.StrEnum):
    """In display order; `sentence` says what each one means."""

    sentence: str

    def __new__(cls, text: str, sentence: str) -> Outcome:
        member = str.__new__(cls, text)
        member._value_ = text
        member.sentence = sentence
        return member

    DELIVERED = "delivered", "it arrived: a reply, or the recipient's own journal, proves it"
    HANDED_OVER = (
        "handed_over",
        "it was written to the recipient's connection, or stored by its node; nothing proves that it was read",
    )
    ECHOED = "echoed", "only the sender's side has it: nothing shows that the recipient's node accepted it"
    IN_FLIGHT = "in_flight", "it is in flight: the next hop has not been seen yet"
    UNREPORTED = (
        "unreported",
        "it has expired, but the journal of the server that must record the outcome does not extend that far yet",
    )
    EXPIRED = "expired", "it expired before it could be delivered"
    UNDELIVERABLE = "undeliverable", "it could not be delivered; the reason says why"
    UNAUTHORIZED = "unauthorized", "no rule allows it for all targets, so nobody received it"
    REJECTED = "rejected", "the server rejected it; the reason says why"
    LOST = "lost", "the next server should have accepted it, but its journal does not contain it"
    NO_OUTCOME = (
        "no_outcome",
        "it has expired, and the server that must record an outcome for this recipient never did",
    )


ARRIVED: Final = frozenset({Outcome.DELIVERED, Outcome.HANDED_OVER})
PENDING: Final = frozenset({Outcome.ECHOED, Outcome.IN_FLIGHT, Outcome.UNREPORTED})
FAILED: Final = frozenset(Outcome) - ARRIVED - PENDING
"""Each has a check of its own, named after it; a pending delivery that is overdue is a finding, but has not failed."""


def count_arrived(counts: dict[str, int]) -> int:
    """Count the deliveries that arrived, given counts by outcome."""
    return sum(count for outcome, count in counts.items() if outcome in ARRIVED)


def meaning_of(outcome: str) -> str:
    """What an outcome in a table means, including one of a later version."""
    known = {each.value: each.sentence for each in Outcome}
    return known.get(outcome, "an outcome that this version does not know")
