"""Record a conversation of two atoms at two nodes, alter one word in one copy, and let the check name the message.

Everything happens in memory: the cores are pure, so this needs no socket, clock or file. Run it:

    python examples/won_check_log.py
"""

from __future__ import annotations

import random

from dovetail.model.hop import Observation
from dovetail.model.wire import OpenLink, SendFrames
from dovetail.won.events import KeyWanted
from dovetail.won.integrity import check_conversation
from dovetail.won.links import LinkKind
from dovetail.won.message import decode_message
from dovetail.won.node import Node
from dovetail.won.owner import Owner
from dovetail.won.resources import encode_resource
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import MessageType

NOW = 1_800_000_000_000_000
chance = random.Random(1)
nodes = {f"https://{name}.example/won/resource": SigningKey(name.encode() * 32) for name in "ab"}
node_cores = {uri: Node(uri, key, chance) for uri, key in nodes.items()}
atoms = {f"{uri}/atom/someone": SigningKey(uri[8].upper().encode() * 32) for uri in nodes}
owners = [Owner(atom, key, chance) for atom, key in atoms.items()]
cores: dict[str, Node | Owner] = {**node_cores, **{owner.atom: owner for owner in owners}}
keys = {uri: key.public for uri, key in (nodes | atoms).items()}
peers: dict[tuple[str, str], tuple[str, str]] = {}
journals: dict[str, list[bytes]] = {name: [] for name in cores}


def run() -> None:
    """Carry frames between the four until nobody has anything to say."""
    is_busy = True
    while is_busy:
        is_busy = False
        for name, core in cores.items():
            for event in core.events():
                if isinstance(event, Observation) and event.raw is not None:
                    journals[name].append(event.raw)
                elif isinstance(event, KeyWanted):
                    node = node_cores[event.uri.partition("/atom/")[0]]
                    path = "/" + event.uri.partition("://")[2].partition("/")[2]
                    core.receive_document(event.uri, encode_resource(node, path, "", "application/trig"), NOW)
                    is_busy = True
            for item in core.to_send():
                is_busy = True
                if isinstance(item, OpenLink):
                    there = f"from {name} {len(peers)}"
                    peers[name, item.link] = (item.destination, there)
                    peers[item.destination, there] = (name, item.link)
                    kind = LinkKind.OWNER if isinstance(core, Owner) else LinkKind.NODE
                    node_cores[item.destination].receive_accepted(there, kind, NOW)
                    core.receive_opened(item.link, NOW)
                elif isinstance(item, SendFrames):
                    target, link = peers[name, item.links[0]]
                    cores[target].receive_frame(item.frames[0], link, NOW)


def main() -> None:
    """Talk, check, alter, check again."""
    for owner in owners:
        owner.create([f"{owner.atom}#chat"], NOW)
        owner.start(NOW)
    run()
    one, other = owners
    for sender, receiver in ((one, other), (other, one)):
        sender.send_message(MessageType.CONNECT, f"{sender.atom}#chat", f"{receiver.atom}#chat", NOW)
        run()
    one.send_message(MessageType.CONNECTION, f"{one.atom}#chat", f"{other.atom}#chat", NOW, "I owe you 5 euros")
    run()
    log = [raw for raw in journals[other.atom] if decode_message(raw).sender_socket is not None]
    print(f"{len(log)} messages, {len(check_conversation(log, keys))} findings")
    altered = [raw.replace(b"5 euros", b"9 euros") for raw in log]
    for finding in check_conversation(altered, keys):
        print(f"{finding.kind.value}: {finding.uri}")


if __name__ == "__main__":
    main()
