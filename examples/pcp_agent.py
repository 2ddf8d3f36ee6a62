"""An agent: answers every ping with a pong until it is stopped.

    python examples/pcp_agent.py ws://127.0.0.1:8142/pcp pcp://agent1/agent

With TLS, give certificate, key and authority after them, and a wss: URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from dovetail.runtime.pcp_client import PcpClient
from dovetail.runtime.tls import client_context


async def run(url: str, uri: str, *files: str) -> None:
    """Answer messages for as long as the process lives; the client reconnects by itself."""
    context = client_context(*files) if files else None
    async with PcpClient(url, uri, context=context) as client:
        await client.wait_associated()
        print(f"{uri} is associated", flush=True)
        async for message in client.messages():
            print(f"{message.sender} says {message.json()}", flush=True)
            await client.reply(message, "http://example.com/pong", {"heard": message.json()})


if __name__ == "__main__":
    if len(sys.argv) not in (3, 6):
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(*sys.argv[1:]))
