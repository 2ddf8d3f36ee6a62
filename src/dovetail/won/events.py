"""What happened in a won core, apart from the observations for the journal."""

from __future__ import annotations

import msgspec

from dovetail.model.hop import Observation
from dovetail.model.wire import LinkId
from dovetail.won.chain import ChainState


class KeyWanted(msgspec.Struct, frozen=True, gc=False):
    """The document of a node or atom is needed for its key; the shell answers with `receive_document`.

    `link` is the one whose frame waits for it: each link of a node asks for itself, and one that has ended needs no
    answer. An owner names none, as it has only one.
    """

    uri: str
    link: LinkId | None = None


class HopUnreadable(msgspec.Struct, frozen=True, gc=False):
    """A hop of the journal could not be used when the core was rebuilt; its content is missing."""

    seq: int
    detail: str


class ChainAdvanced(msgspec.Struct, frozen=True, gc=False):
    """A message of a conversation got further: stored by the own node (s1), by the other (s2), or failed and why."""

    uri: str
    state: ChainState
    detail: str | None = None


class MessageReceived(msgspec.Struct, frozen=True, gc=False):
    """An owner received a verified message from the other side."""

    uri: str
    sender: str
    text: str | None


class DestinationChanged(msgspec.Struct, frozen=True, gc=False):
    """A node became reachable or unreachable."""

    node: str
    is_reachable: bool


class RegistrationConfirmed(msgspec.Struct, frozen=True, gc=False):
    """An owner's client has every log entry that its node has for the atom."""

    atom: str
    position: int


Event = (
    Observation
    | KeyWanted
    | HopUnreadable
    | ChainAdvanced
    | MessageReceived
    | DestinationChanged
    | RegistrationConfirmed
)
