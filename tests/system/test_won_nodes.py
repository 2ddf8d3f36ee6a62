"""Two nodes and two owners over TLS, as real processes: everything complete, even after kill -9 midway."""

from __future__ import annotations

import asyncio
import gc
import signal
import warnings

import pytest

from dovetail.runtime.clock import now_us
from dovetail.runtime.http import fetch
from dovetail.runtime.tls import client_context
from dovetail.runtime.won_client import OwnerClient, OwnerHome
from dovetail.won.access import sign_request
from dovetail.won.canonical import read_quads
from dovetail.won.chain import ChainState
from dovetail.won.integrity import check_conversation
from dovetail.won.keys import read_key_document
from dovetail.won.message import decode_message
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import MessageType
from system.won_processes import QUICK, Site, connect, conversation_of, create, say

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


async def talk_through_a_kill(site, rounds):
    a, b = site.node("a"), site.node("b")
    await asyncio.gather(a.start(), b.start())
    alice, bob = await create(site.home(a, "alice")), await create(site.home(b, "bob"))
    await connect(alice, bob)
    messages = []
    for number in range(rounds):
        messages.append((alice, await say(alice, MessageType.CONNECTION, bob.home.file.sockets[0], f"a{number}")))
        messages.append((bob, await say(bob, MessageType.CONNECTION, alice.home.file.sockets[0], f"b{number}")))
        await asyncio.sleep(0.01)
        if number == rounds // 3:
            b.kill()
        if number == 2 * rounds // 3:
            await b.start()
    for client, message in messages:
        assert await client.wait_settled(message.uri, 60) is ChainState.COMPLETE
    for client in (alice, bob):
        await client.wait_registered(60)
    for _ in range(3_000):
        if all(c.owner.conversations.state_of(m.uri) is ChainState.COMPLETE for c in (alice, bob) for _, m in messages):
            break
        await asyncio.sleep(0.05)
    await alice.__aexit__()
    await bob.__aexit__()
    assert (a.stop(), b.stop()) == (0, 0)
    return a, b, alice.home, bob.home, [message for _, message in messages]


def test_node_killed_in_the_middle_of_traffic_and_started_again_all_complete(tmp_path):
    a, b, alice, bob, messages = asyncio.run(talk_through_a_kill(Site(tmp_path), 60))
    copies = [conversation_of(path) for path in (a.journal, b.journal, alice.journal_path, bob.journal_path)]
    everything = {decode_message(raw).uri for raw in copies[0]}
    assert {message.uri for message in messages} <= everything
    assert len(copies[0]) == 3 * (len(messages) + 2)
    for copy in copies[1:]:
        assert set(copy) == set(copies[0])
    signers = {decode_message(raw).signer for raw in copies[0]}
    assert check_conversation(copies[0], alice.find_keys(signers)) == []
    assert check_conversation(copies[0], bob.find_keys(signers)) == []


async def converse(site):
    a, b = site.node("a"), site.node("b")
    await asyncio.gather(a.start(), b.start())
    alice, bob = await create(site.home(a, "alice")), await create(site.home(b, "bob"))
    await connect(alice, bob)
    return a, b, alice, bob


async def close_all(a, b, *clients):
    for client in clients:
        await client.__aexit__()
    assert (a.stop(), b.stop()) == (0, 0)


async def read_linked_data(site):
    a, b, alice, bob = await converse(site)
    context = client_context(authority=str(site.authority))
    node = await fetch(a.uri, context, "text/turtle")
    atom = await fetch(alice.owner.atom, context)

    async def read(uri, media_type="application/trig", client=alice):
        key = SigningKey(client.home.private_key.private_bytes_raw())
        headers = sign_request(uri, client.owner.atom, key, now_us())
        return await fetch(uri, context, media_type, headers=headers)

    container = await read(f"{alice.owner.atom}/c", "application/n-quads")
    connection = next(o[1:-1] for _, p, o, _ in read_quads(container) if p.endswith("#member>"))
    listing = read_quads(await read(f"{connection}/msg", "application/n-quads"))
    uris = [o[1:-1] for _, p, o, _ in listing if p.endswith("#member>")]
    messages = []
    for uri in uris:
        copies = [await read(f"{a.uri}/msg/{uri[4:]}", client=client) for client in (alice, bob)]
        assert copies[0] == copies[1], "both sides may read it"
        messages.append(decode_message(copies[0]))
    assert await read(f"{connection}/msg", client=bob) is not None, "the partner, whose key is that of another node"
    private = [f"{alice.owner.atom}/c", connection, f"{connection}/msg", f"{a.uri}/msg/{uris[0][4:]}"]
    assert [await fetch(uri, context) for uri in private] == [None] * 4, "nobody else"
    assert await read(f"{alice.owner.atom}/msg", client=bob) is None, "not even the partner"
    nothing = [
        await read(f"{a.uri}{path}") for path in ("/atom/nobody", "/msg/QmNothing", "/../x", "/atom/alice/msg?page=x")
    ]
    refused = await fetch(a.uri, context, "image/png")
    stranger = await fetch(a.uri, client_context())
    await close_all(a, b, alice, bob)
    return alice, node, atom, uris, messages, [*nothing, refused, stranger]


def test_linked_data_over_https(tmp_path):
    alice, node, atom, uris, messages, nothing = asyncio.run(read_linked_data(Site(tmp_path)))
    assert b"ed25519PublicKey" in node
    assert read_key_document(alice.owner.atom, atom).raw == alice.home.private_key.public_key().public_bytes_raw()
    assert [message.uri for message in messages] == uris
    assert len(uris) == 6
    assert nothing == [None] * len(nothing)


async def second_client(site):
    a, b, alice, bob = await converse(site)
    home = OwnerHome.create(site.directory / "alice2", alice.home.file, alice.home.private_key)
    second = OwnerClient(home, settings=QUICK)
    await second.__aenter__()
    assert await second.wait_registered(60)
    message = await say(alice, MessageType.CONNECTION, bob.home.file.sockets[0], "to both of me")
    await alice.wait_settled(message.uri, 60)
    for _ in range(3_000):
        if second.owner.conversations.state_of(message.uri) is ChainState.COMPLETE:
            break
        await asyncio.sleep(0.02)
    states = [client.owner.conversations.state_of(message.uri) for client in (alice, second)]
    await close_all(a, b, alice, bob, second)
    return states


def test_two_clients_of_one_atom_see_the_same(tmp_path):
    assert asyncio.run(second_client(Site(tmp_path))) == [ChainState.COMPLETE, ChainState.COMPLETE]


async def come_and_go(site, is_silent):
    node = site.node("a")
    await node.start()
    owner = await create(site.home(node, "alice"))
    if is_silent:
        node.process.send_signal(signal.SIGSTOP)
    await owner.__aexit__()
    node.process.send_signal(signal.SIGCONT)
    assert node.stop() == 0


@pytest.mark.parametrize("is_silent", [False, True])
def test_an_owner_that_leaves_has_closed_its_sockets(tmp_path, is_silent):
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(come_and_go(Site(tmp_path), is_silent))
        gc.collect()
    assert [str(each.message) for each in told] == []
