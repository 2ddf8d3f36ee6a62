"""Whoever gives up a connection, or leaves in the middle of one, leaves no socket behind."""

import asyncio
import gc
import ssl
import warnings

import picows
import pytest

from dovetail.keys import CertificateKind, Names, create_authority
from dovetail.runtime import dialling
from dovetail.runtime.dialling import dial


@pytest.fixture
def contexts(tmp_path):
    """TLS for a server and for its client."""
    authority = create_authority(tmp_path / "keys", "test CA")
    key, certificate = authority.issue("localhost", CertificateKind.SERVER, Names(dns=("localhost",)))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=tmp_path / "keys" / "ca.pem")


async def listen_silently(context):
    """A server that never answers: not at all, or with TLS and nothing behind it."""
    ended = asyncio.Event()

    async def keep_silent(reader, writer):
        while await reader.read(1000):
            pass
        writer.close()
        ended.set()

    return await asyncio.start_server(keep_silent, "localhost", 0, ssl=context), ended


async def give_up(server_context, client_context, scheme):
    server, ended = await listen_silently(server_context)
    port = server.sockets[0].getsockname()[1]
    options = {"ssl_context": client_context} if scheme == "wss" else {}
    listener, url = picows.WSListener(), f"{scheme}://localhost:{port}/"
    dialled = asyncio.ensure_future(dial(listener, url, websocket_handshake_timeout=60, **options))
    await asyncio.sleep(0.2)
    assert not dialled.done()
    dialled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialled
    await asyncio.wait_for(ended.wait(), 5)
    server.close()
    await server.wait_closed()


@pytest.mark.exhaustive
@pytest.mark.parametrize("silence", ["plain", "before TLS", "after TLS"])
def test_giving_up_ends_the_socket(contexts, silence):
    server_context, client_context = contexts
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(
            give_up(
                server_context if silence == "after TLS" else None,
                client_context,
                "ws" if silence == "plain" else "wss",
            )
        )
        gc.collect()
    assert [str(each.message) for each in told] == []


def test_giving_up_before_there_is_a_socket_ends_the_search(monkeypatch):
    async def search():
        searching = asyncio.Event()

        async def never(*_):
            searching.set()
            await asyncio.sleep(60)

        monkeypatch.setattr(dialling, "_connect_socket", never)
        dialled = asyncio.ensure_future(dial(picows.WSListener(), "ws://localhost:1/"))
        await searching.wait()
        dialled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialled
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(search()) == set()


def test_a_port_that_nobody_listens_on_is_refused():
    async def refused():
        server, _ = await listen_silently(None)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(OSError, match="Connect"):
            await dial(picows.WSListener(), f"ws://localhost:{port}/")

    asyncio.run(refused())
