"""A node that cannot start leaves nothing open."""

import asyncio
import socket

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.model.errors import JournalError, ResourceBusy
from dovetail.runtime.won_server import NodeOptions, NodeServer
from system.up_site import free_port

pytestmark = pytest.mark.system


@pytest.mark.parametrize("is_metrics", [False, True], ids=["links", "metrics"])
def test_a_node_whose_port_is_taken_closes_its_journal_and_its_other_port(tmp_path, is_metrics):
    """The port is taken after the node was made, which checks its ports before it makes a journal."""

    async def run() -> None:
        ports = [free_port(socket.SOCK_STREAM) for _ in range(2)]
        port, metrics = reversed(ports) if is_metrics else ports
        server = NodeServer(
            NodeOptions(
                uri=f"http://127.0.0.1:{port}/won/resource",
                host="127.0.0.1",
                port=port,
                journal=tmp_path / "journal.db",
                metrics=("127.0.0.1", metrics),
            ),
            Ed25519PrivateKey.generate(),
        )
        with socket.create_server(("127.0.0.1", ports[0])):
            with pytest.raises(ResourceBusy, match=f"tcp port {ports[0]} of 127.0.0.1 is in use"):
                await server.__aenter__()
            with pytest.raises(JournalError, match="is closed"):
                server.journal.append([])
            socket.create_server(("127.0.0.1", ports[1])).close()

    asyncio.run(run())
