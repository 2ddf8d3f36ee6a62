"""Server processes: ready, killed, stopped, and the reason why one does not start."""

import asyncio

import pytest

from dovetail.demo.processes import ServerProcess
from dovetail.model.errors import DovetailError

pytestmark = pytest.mark.system
SERVE = ["pcp", "serve", "--insecure-plain", "--allow-all", "--port", "0", "--json"]


def test_a_server_is_ready_can_be_killed_started_again_and_stopped(tmp_path):
    async def scenario():
        server = ServerProcess("the broker", SERVE, tmp_path / "log")
        first = await server.start()
        assert first["server"] == "pcp://broker/server"
        server.kill()
        assert not server.is_running
        server.kill()
        second = await server.start()
        assert second["url"].startswith("ws://127.0.0.1:")
        await server.stop()
        assert not server.is_running
        await server.stop()

    asyncio.run(scenario())


def test_a_server_that_does_not_start_says_why(tmp_path):
    server = ServerProcess("the broker", ["pcp", "serve", "--config", "/does/not/exist"], tmp_path / "log")
    with pytest.raises(DovetailError, match=r"the broker did not start: .*cannot be read"):
        asyncio.run(server.start())
    assert not server.is_running
