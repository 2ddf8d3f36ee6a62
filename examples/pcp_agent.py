"""An agent: answers every ping with a pong until it is stopped.

    python examples/pcp_agent.py ws://127.0.0.1:8142/pcp pcp://agent1/agent

With TLS, give certificate, key and authority after them, and a wss: URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import dovetail


async def run(url: str, uri: str, *files: str) -> None:
    """Answer messages for as long as the process lives; the client reconnects by itself."""
    tls = dovetail.TLS(certificate=files[0], key=files[1], authority=files[2]) if files else None
    async with dovetail.connect(url, uri, tls=tls, wait=30) as client:
        print(f"{uri} is connected", flush=True)
        async for message in client:
            print(f"{message.sender} says {message.data}", flush=True)
            await message.reply({"heard": message.data}, type="http://example.com/pong")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 6):
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(*sys.argv[1:]))
