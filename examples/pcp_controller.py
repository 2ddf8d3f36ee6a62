"""A controller: lists the agents, asks each one and prints the replies.

    dovetail pcp serve --insecure-plain --allow-all
    python examples/pcp_agent.py ws://127.0.0.1:8142/pcp pcp://agent1/agent
    python examples/pcp_controller.py ws://127.0.0.1:8142/pcp pcp://boss/controller

With TLS, give certificate, key and authority after them, and a wss: URL.
"""

from __future__ import annotations

import asyncio
import sys

import dovetail


async def run(url: str, uri: str, *files: str) -> None:
    """Ask all agents at once."""
    tls = dovetail.TLS(certificate=files[0], key=files[1], authority=files[2]) if files else None
    async with dovetail.connect(url, uri, tls=tls, wait=30) as client:
        agents = await client.inventory("pcp://*/agent")
        sent = await client.send("pcp://*/agent", {"from": uri}, type="http://example.com/hello")
        print(f"{len(agents)} agents are connected, {len(sent.targets)} were sent a hello")
        for agent in agents:
            try:
                reply = await client.request(agent, {"question": 42}, type="http://example.com/ping", ttl=5)
                print(f"{agent} answers {reply.data}")
            except dovetail.DovetailError as error:
                print(f"{agent} does not answer: {error}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 6):
        sys.exit(__doc__)
    asyncio.run(run(*sys.argv[1:]))
