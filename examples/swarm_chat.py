"""Three peers in one process: what one publishes, the others receive, each message once.

python examples/swarm_chat.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from dovetail.runtime.swarm_node import Message, SwarmNode
from dovetail.swarm.settings import SwarmSettings

SETTINGS = SwarmSettings(name="chat", work=10_000)
LINES = ("good morning", "the bridge is open again", "thank you")


async def listen(name: str, node: SwarmNode) -> None:
    """Print the first few messages that a peer receives."""
    heard = 0
    async for item in node.subscribe():
        if isinstance(item, Message):
            print(f"{name} received {item.payload.decode()!r} with {len(item.references)} references")
            heard += 1
        if heard == len(LINES):
            return


async def main() -> None:
    """Start three peers that find each other through the first, and let each of them say something."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        async with SwarmNode(SETTINGS, home / "ann") as ann:
            door = ann.endpoints[0]
            async with (
                SwarmNode(SETTINGS, home / "ben", bootstrap=[door]) as ben,
                SwarmNode(SETTINGS, home / "cem", bootstrap=[door]) as cem,
            ):
                peers = {"ann": ann, "ben": ben, "cem": cem}
                await asyncio.gather(*[node.linked() for node in peers.values()])
                listeners = [asyncio.create_task(listen(name, node)) for name, node in peers.items()]
                await asyncio.sleep(0)
                for node, line in zip(peers.values(), LINES, strict=True):
                    await node.publish(line.encode(), ttl_epochs=60)
                await asyncio.wait_for(asyncio.gather(*listeners), 30)


if __name__ == "__main__":
    asyncio.run(main())
