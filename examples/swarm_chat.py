"""Three peers in one process: what one publishes, the others receive, each message once.

python examples/swarm_chat.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import dovetail

LINES = ("good morning", "the bridge is open again", "thank you")


async def listen(name: str, peer: dovetail.SwarmPeer) -> None:
    """Print the first few messages that a peer receives."""
    heard = 0
    async for message in peer:
        print(f"{name} received {message.data!r}")
        heard += 1
        if heard == len(LINES):
            return


async def main() -> None:
    """Start three peers that find each other through the first, and let each of them say something."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        agreement = home / "swarm.toml"
        agreement.write_text('name = "chat"\nwork = 10_000\n')
        async with dovetail.SwarmPeer.join(agreement, home / "ann") as ann:
            door = ann.endpoints[:1]
            async with (
                dovetail.SwarmPeer.join(agreement, home / "ben", bootstrap=door) as ben,
                dovetail.SwarmPeer.join(agreement, home / "cem", bootstrap=door) as cem,
            ):
                peers = {"ann": ann, "ben": ben, "cem": cem}
                await asyncio.gather(*[peer.linked() for peer in peers.values()])
                listeners = [asyncio.create_task(listen(name, peer)) for name, peer in peers.items()]
                for peer, line in zip(peers.values(), LINES, strict=True):
                    await peer.publish(line)
                await asyncio.wait_for(asyncio.gather(*listeners), 30)


if __name__ == "__main__":
    asyncio.run(main())
