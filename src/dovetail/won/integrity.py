"""Checks whether a conversation is intact, from raw bytes alone.

Every message is content-addressed and signed, and nodes link each new SuccessResponse to earlier ones. So any change
shows: a changed message no longer matches its address; with a new address it is missing where others reference it;
without its author's key it cannot be signed again. References cannot protect the newest message, which nothing
references yet: a participant could change it and recompute its address. The journal's checkpoints, and another party's
copy, reveal that.

Checks per message: it is readable, its URI is its address, its signer may speak for its sender and signed it. Per
response: the message it responds to is present, its type is the one it names, its sockets are that message's. Per
reference: previousMessage points to a SuccessResponse of the same container that is present; no message reaches
itself. And no response is skipped: a node commits to the responses of the other node in order, so if it has committed
to a later one of the same role, the skipped one was absent when it should have been present.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping

import msgspec

from dovetail.model.address import address_of, won_uri
from dovetail.model.errors import RemoteProtocolError
from dovetail.model.hop import Reason
from dovetail.won import vocabulary as v
from dovetail.won.chain import Role, answer_key, is_answer, role_of
from dovetail.won.keys import check_claims
from dovetail.won.message import Message, decode_message
from dovetail.won.signing import PublicKey, expected_signer, verify_signature
from dovetail.won.vocabulary import MessageType


class FindingKind(enum.StrEnum):
    """What can be wrong with a message of a log."""

    UNREADABLE = "unreadable"
    ALTERED = "altered"
    FORGED = "forged"
    UNKNOWN_KEY = "unknown_key"
    MISSING = "missing"
    BAD_REFERENCE = "bad_reference"
    CONFLICT = "conflict"
    CYCLE = "cycle"
    SKIPPED = "skipped"


_UNTRUSTED = frozenset({FindingKind.ALTERED, FindingKind.FORGED})


class LogFinding(msgspec.Struct, frozen=True, order=True):
    """One fault: `uri` names the message that is altered, missing or forged; `seen_in` what shows it."""

    kind: FindingKind
    uri: str
    detail: str
    seen_in: str | None = None


def check_conversation(raws: Iterable[bytes], keys: Mapping[str, PublicKey]) -> list[LogFinding]:
    """All findings about the messages of one log (atom's or connection's, one party's copy), sorted; none if intact."""
    findings: set[LogFinding] = set()
    messages: dict[str, Message] = {}
    for raw in raws:
        try:
            message = decode_message(raw)
        except RemoteProtocolError as error:
            findings.add(LogFinding(FindingKind.UNREADABLE, _name_unreadable(raw), error.detail))
            continue
        wrong = set(check_message(message, keys))
        findings |= wrong
        if not any(finding.kind in _UNTRUSTED for finding in wrong):
            messages[message.uri] = message
    # Altered or forged messages are no evidence about others: neither their absence nor their claims accuse anyone.
    doubted = {finding.uri for finding in findings}
    firsts = {m.responding_to: m.uri for m in messages.values() if role_of(m) is Role.FIRST and m.is_response}
    for message in messages.values():
        if message.is_response:
            findings.update(f for f in _check_response(message, messages) if f.uri not in doubted)
            references = _check_references(message, messages, firsts.get(message.responding_to))
            findings.update(f for f in references if f.uri not in doubted)
    findings.update(_check_conflicts(messages.values()))
    findings.update(_find_cycles(messages))
    findings.update(_find_skipped(messages))
    return sorted(findings)


def check_message(message: Message, keys: Mapping[str, PublicKey]) -> Iterator[LogFinding]:
    """Faults of a message by itself: its address, its signer, its signature."""
    try:
        check_claims(message)
        signer = expected_signer(message)
    except RemoteProtocolError as error:
        kind = FindingKind.ALTERED if error.reason is Reason.WRONG_ADDRESS else FindingKind.FORGED
        yield LogFinding(kind, message.uri, error.detail)
        return
    key = keys.get(signer)
    if key is None:
        yield LogFinding(FindingKind.UNKNOWN_KEY, message.uri, f"no key of {signer} was given")
    elif not verify_signature(message, key):
        yield LogFinding(FindingKind.FORGED, message.uri, f"not signed with the key of {signer}")


def _check_response(response: Message, messages: Mapping[str, Message]) -> Iterator[LogFinding]:
    message = messages.get(response.responding_to or "")
    if message is None:
        yield LogFinding(
            FindingKind.MISSING, response.responding_to or "", f"{response.uri} responds to it", response.uri
        )
        return
    if not is_answer(response, message):
        yield LogFinding(FindingKind.BAD_REFERENCE, response.uri, f"its type or sockets are not those of {message.uri}")


def _check_references(response: Message, messages: Mapping[str, Message], first: str | None) -> Iterator[LogFinding]:
    container = _container(response, messages)
    for uri in response.previous:
        target = messages.get(uri)
        if target is None:
            yield LogFinding(FindingKind.MISSING, uri, f"{response.uri} references it", response.uri)
        elif target.type is not MessageType.SUCCESS:
            yield LogFinding(FindingKind.BAD_REFERENCE, response.uri, f"references {uri}, which is no SuccessResponse")
        elif container and (other := _container(target, messages)) and other != container:
            yield LogFinding(FindingKind.BAD_REFERENCE, response.uri, f"references {uri} of another container")
    if role_of(response) is Role.SECOND and first is not None and first not in response.previous:
        yield LogFinding(FindingKind.BAD_REFERENCE, response.uri, f"does not reference {first}")


def _container(response: Message, messages: Mapping[str, Message]) -> frozenset[str | None]:
    """What the responses of one container share: the two sockets, or the atom; empty if unknown."""
    if response.sender_socket is None:
        return frozenset({response.atom})
    message = messages.get(response.responding_to or "")
    return frozenset({message.sender_socket, message.recipient_socket}) if message else frozenset()


def _check_conflicts(messages: Iterable[Message]) -> Iterator[LogFinding]:
    """Check that each node answers a message once."""
    answers: dict[Hashable, Message] = {}
    for message in messages:
        if not message.is_response:
            continue
        before = answers.setdefault((message.signer, answer_key(message.responding_to, message)), message)
        if before is not message:
            for pair in ((before, message), (message, before)):
                yield LogFinding(
                    FindingKind.CONFLICT, pair[0].uri, f"{pair[1].uri} answers the same message differently"
                )


def _find_cycles(messages: Mapping[str, Message]) -> Iterator[LogFinding]:
    """Every message that reaches itself through its references; possible only if addresses are broken."""
    edges = {
        uri: [r for r in (*message.previous, message.responding_to) if r is not None and r in messages]
        for uri, message in messages.items()
    }
    for uri in cyclic_members(edges):
        yield LogFinding(FindingKind.CYCLE, uri, "references itself, directly or by others")


def cyclic_members(edges: Mapping[str, list[str]]) -> set[str]:
    """All nodes on a cycle of a graph (Tarjan's strongly connected components, without recursion)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    members = {node for node, targets in edges.items() if node in targets}
    for root in edges:
        if root in order:
            continue
        work = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            target = next((t for t in targets if t not in order or t in on_stack), None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = _pop_component(stack, on_stack, node)
                    members |= component if len(component) > 1 else set()
            elif target in order:
                low[node] = min(low[node], order[target])
            else:
                order[target] = low[target] = len(order)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(edges[target])))
    return members


def _pop_component(stack: list[str], on_stack: set[str], root: str) -> set[str]:
    component: set[str] = set()
    while root not in component:
        component.add(stack.pop())
    on_stack -= component
    return component


def _find_skipped(messages: Mapping[str, Message]) -> Iterator[LogFinding]:
    """Responses of one node that the other never committed to, although it committed to a later one of the same role.

    A message that the other node refused or never got is not part of the conversation there, and neither is its s1.
    """
    failed = {m.responding_to for m in messages.values() if m.type is MessageType.FAILURE}
    successes = [m for m in messages.values() if m.type is MessageType.SUCCESS and m.sender_socket is not None]
    sides: dict[tuple[frozenset[str | None], str | None], list[str]] = {}
    for message in successes:
        sides.setdefault((_container(message, messages), message.sender_socket), []).append(message.uri)
    committed = {side: _find_ancestors(uris, messages) for side, uris in sides.items()}
    newest: dict[Hashable, int] = {}
    left_out = []
    for message in successes:
        container = _container(message, messages)
        stream = (container, message.sender_socket, role_of(message))
        others = [committed.get((container, socket), ()) for socket in container - {message.sender_socket}]
        if any(message.uri in uris for uris in others):
            newest[stream] = max(newest.get(stream, 0), message.timestamp_ms)
        elif message.responding_to not in failed:
            left_out.append((message, stream))
    for message, stream in left_out:
        if message.timestamp_ms < newest.get(stream, 0):
            yield LogFinding(
                FindingKind.SKIPPED, message.uri, "the other node references a later response of this node, not this"
            )


def _find_ancestors(uris: Iterable[str], messages: Mapping[str, Message]) -> set[str]:
    """All responses that the given responses reference, directly or indirectly."""
    found: set[str] = set()
    open_ends = list(uris)
    while open_ends:
        message = messages.get(open_ends.pop())
        named = set(message.previous) - found if message else set()
        found |= named
        open_ends += named
    return found


def _name_unreadable(raw: bytes) -> str:
    """The URI that an unreadable message claims, if it can be found; else the address of its bytes."""
    _, mark, rest = raw.partition(f"<{v.MESSAGE_SCHEME}".encode())
    name = rest.partition(b">")[0].partition(b"#")[0] if mark else b""
    if 0 < len(name) <= 64 and name.isalnum():
        return v.MESSAGE_SCHEME + name.decode()
    return won_uri(address_of(raw))
