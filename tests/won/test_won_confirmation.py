"""Confirmation lists: the worked examples through real nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.model.wire import SendFrames
from dovetail.won import compose as c
from dovetail.won.confirmation import AtomConfirmations, ConnectionConfirmations
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_bundle
from dovetail.won.trig import encode_bundle
from dovetail.won.vocabulary import Direction, MessageType
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, NODE_B
from won.won_world import World

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "won-confirmation.json").read_text())
SIDES = {"A": (NODE_A, ALICE, ALICE_CHAT, BOB_CHAT), "B": (NODE_B, BOB, BOB_CHAT, ALICE_CHAT)}


class Script:
    """Two real nodes whose frames to each other are held until the script delivers them."""

    def __init__(self):
        self.world = World()
        self.cores, self.out, self.names, self.previous = {}, {}, {}, {}
        for side, (node, atom, socket, _) in SIDES.items():
            party = self.world.node(node, 1 if side == "A" else 2)
            owner = self.world.owner(atom, 3 if side == "A" else 4)
            owner.core.create([socket], self.world.now)
            owner.core.start(self.world.now)
            self.cores[side] = party.core
        self.world.run()
        for side, other in (("A", "B"), ("B", "A")):
            self.cores[side].keys.add(SIDES[other][0], KEYS[SIDES[other][0]].public, self.world.now)
            self.cores[side].keys.add(SIDES[other][1], KEYS[SIDES[other][1]].public, self.world.now)
            self.cores[side].receive_accepted("held", LinkKind.NODE, self.world.now)
        self.messages = {}

    def drain(self, side):
        core = self.cores[side]
        core.events()
        return [item for item in core.to_send() if isinstance(item, SendFrames)]

    def note(self, side, name, frames):
        for item in frames:
            for message in decode_bundle(item.frames[0]).messages:
                if message.signer == SIDES[side][0] and message.responding_to == self.messages[name].uri:
                    self.names.setdefault(message.uri, f"s{name[1:]}{side}")
                    self.previous[message.uri] = message.previous
                    self.out[side, name] = message

    def send(self, side, name):
        _, atom, socket, target = SIDES[side]
        self.messages[name] = c.compose(
            type=MessageType.CONNECT,
            direction=Direction.OWNER,
            signer=atom,
            key=KEYS[atom],
            timestamp_ms=self.world.now // 1000,
            envelope=c.socket_pair(socket, target),
            content=c.text_content(name),
        )
        link = next(iter(self.cores[side].ledger.atoms[atom].links))
        self.cores[side].receive_frame(encode_bundle([self.messages[name]]), link, self.world.now)
        self.note(side, name, self.drain(side))

    def recv(self, side, name):
        other = "B" if side == "A" else "A"
        bundle = encode_bundle([self.messages[name], self.out[other, name]])
        self.cores[side].receive_frame(bundle, "held", self.world.now)
        self.note(side, name, self.drain(side))

    def back(self, side, name):
        other = "B" if side == "A" else "A"
        self.cores[side].receive_frame(encode_bundle([self.out[other, name]]), "held", self.world.now)
        self.drain(side)

    def confirmations(self, side):
        _, _, socket, target = SIDES[side]
        connection = self.cores[side].ledger.find_connection(socket, target)
        return sorted(self.names[uri] for uri in connection.confirmations.unconfirmed)


@pytest.mark.parametrize("name", VECTORS)
def test_worked_example_gives_exactly_these_sets(name):
    vector, script = VECTORS[name], Script()
    for step in vector["script"]:
        verb, side, message = step.split()
        getattr(script, verb)(side, message)
    found = {script.names[uri]: sorted(script.names[p] for p in uris) for uri, uris in script.previous.items()}
    assert found == vector["previousMessage"]
    assert script.confirmations("A") == vector["C_A"]
    assert script.confirmations("B") == vector["C_B"]


def test_atom_container_sequential():
    container = AtomConfirmations()
    for number, expected in (("s1", ()), ("s2", ("s1",)), ("s3", ("s2",))):
        assert container.unconfirmed == expected
        container.append(number, container.unconfirmed)


def test_atom_container_in_parallel():
    container = AtomConfirmations()
    container.append("s1", ())
    seen = container.unconfirmed
    container.append("s2", seen)
    container.append("s3", seen)
    assert container.unconfirmed == ("s2", "s3")


def long_list(*uris):
    """A side that has these responses of the other one, and confirmed none."""
    side = ConnectionConfirmations()
    for uri in uris:
        side.append_other(uri, ())
    return side


def test_list_as_long_as_the_limit_is_referenced_whole():
    assert long_list("a", "b", "c").references_of_first(3) == ("a", "b", "c")
    assert long_list("a", "b").references_of_second("c", (), 3) == ("a", "b", "c")


def test_first_response_beyond_the_limit_begins_with_what_no_second_commits_to_and_names_nothing_twice():
    side = long_list("a", "b", "c")
    side.append_own("s2", ("a", "b", "c"), is_second=True)
    side.append_other("d", ())
    assert side.references_of_first(3) == ("d", "a", "b")


def test_second_response_beyond_the_limit_commits_to_the_rest_by_the_last_second():
    side = long_list("a", "b", "c", "d")
    assert side.references_of_second("e", (), 3) == ("a", "b", "e")
    side.append_own("x", ("a", "b", "e"), is_second=True)
    side.append_other("e", ())
    assert side.references_of_second("f", (), 3) == ("x", "c", "f")
    side.append_own("y", ("x", "c", "f"), is_second=True)
    side.append_other("f", ())
    assert side.references_of_second("g", (), 3) == ("y", "d", "g")


def test_second_response_names_nothing_that_its_first_confirms():
    """What is confirmed counts neither for the length of the list nor for what is new to this side."""
    side = long_list("a", "b", "c", "d")
    side.append_own("x", ("a", "b", "c"), is_second=True)
    assert side.references_of_second("e", ("x",), 3) == ("d", "e")
    side.append_other("p", ())
    side.append_other("q", ())
    side.append_own("y", ("d",), is_second=False)
    assert side.references_of_second("f", ("y",), 4) == ("x", "p", "q", "f")


def test_second_response_that_leaves_out_the_last_second_commits_to_its_own_references_only():
    side = long_list("a", "b", "c")
    side.append_own("x", ("a", "b", "c"), is_second=True)
    side.append_own("y", ("a",), is_second=True)
    side.append_other("d", ())
    assert side.references_of_second("e", (), 4) == ("y", "b", "c", "e")
