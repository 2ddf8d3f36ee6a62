"""A controller: lists the agents, asks each one and prints the replies.

    dovetail pcp serve --insecure-plain --allow-all
    python examples/pcp_agent.py ws://127.0.0.1:8142/pcp pcp://agent1/agent
    python examples/pcp_controller.py ws://127.0.0.1:8142/pcp pcp://boss/controller

With TLS, give certificate, key and authority after them, and a wss: URL.
"""

from __future__ import annotations

import asyncio
import sys

from dovetail.runtime.pcp_client import PcpClient, PcpRequestError
from dovetail.runtime.tls import client_context


async def run(url: str, uri: str, *files: str) -> None:
    """Ask all agents at once."""
    context = client_context(*files) if files else None
    async with PcpClient(url, uri, context=context) as client:
        agents = await client.inventory("pcp://*/agent")
        reached = await client.send_reported("http://example.com/hello", "pcp://*/agent", {"from": uri})
        print(f"{len(agents)} agents are connected, {len(reached)} were sent a hello")
        for agent in agents:
            try:
                reply = await client.request("http://example.com/ping", agent, {"question": 42}, ttl_ms=5_000)
                print(f"{agent} answers {reply.json()}")
            except PcpRequestError as error:
                print(f"{agent} does not answer: {error}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 6):
        sys.exit(__doc__)
    asyncio.run(run(*sys.argv[1:]))
