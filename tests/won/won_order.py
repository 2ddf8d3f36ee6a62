"""The order of a node's journal: each message of a connection is stored and answered before the next one begins."""

from __future__ import annotations

from dovetail.model.hop import Stage
from dovetail.won.chain import Role, role_of
from dovetail.won.confirmation import ConnectionConfirmations
from dovetail.won.message import decode_message


def read_order(hops, node):
    """Connection -> the messages that its own node stored there, in order, each with its expected values.

    An entry is (message, its response, the references that the response must have if everything before it was done).
    """
    taken = [decode_message(hop.raw) for hop in hops if hop.raw and hop.stage in (Stage.ACCEPTED, Stage.CREATED)]
    lists: dict[str, ConnectionConfirmations] = {}
    entries: dict[str, list[tuple[object, object, tuple[str, ...]]]] = {}
    by_sockets: dict[tuple[str, str], str] = {}
    messages, firsts = {}, {}
    for part in taken:
        if part.sender_socket is None or role_of(part) is Role.FAILURE:
            continue
        if not part.is_response:
            messages[part.uri] = part
            continue
        message = messages[part.responding_to]
        role, sockets = role_of(part), (message.sender_socket, message.recipient_socket)
        if role is Role.FIRST:
            firsts[message.uri] = part
        if part.signer == node:
            own = lists.setdefault(part.connection, ConnectionConfirmations())
            by_sockets[sockets if role is Role.FIRST else sockets[::-1]] = part.connection
            if role is Role.SECOND:
                own.append_other(firsts[message.uri].uri, firsts[message.uri].previous)
            expected = tuple(sorted(own.unconfirmed))
            own.append_own(part.uri, part.previous, is_second=role is Role.SECOND)
            entries.setdefault(part.connection, []).append((message, part, expected))
        if role is Role.SECOND and firsts[message.uri].signer == node:
            lists[by_sockets[sockets]].append_other(part.uri, part.previous)
    return entries


def assert_one_at_a_time(hops, node):
    """Between a message of a connection and its response nothing else of this connection is stored."""
    hops = list(hops)
    entries = read_order(hops, node)
    place = {}
    for number, hop in enumerate(hops):
        if hop.stage in (Stage.ACCEPTED, Stage.CREATED):
            place.setdefault(hop.message, number)
    for connection, stored in entries.items():
        end = -1
        for message, response, expected in stored:
            assert place[message.address] > end, f"{message.uri} began before its predecessor in {connection} was done"
            assert place[response.address] > place[message.address]
            assert response.previous == expected, f"{response.uri} does not see everything before it in {connection}"
            end = place[response.address]
    return entries
