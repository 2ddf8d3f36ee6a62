"""Two atoms talk; then one word in a copy of their conversation is altered, and the check names the message.

python examples/won_check_log.py
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import dovetail


async def talk() -> dovetail.ConversationLog:
    """Let two atoms of one node connect and talk; returns the copy of the one that spoke."""
    with dovetail.local("won") as site:
        async with site.won("ann") as ann, site.won("ben") as ben:
            await ann.open(ben.sockets[0])
            asked = await ben.receive(timeout=20)
            await ben.open(asked.sender)
            sent = await ann.send(ben.sockets[0], "I owe you 5 euros")
            sent.raise_for_outcome()
            return await ann.log(ben.sockets[0])


def check(conversation: bytes) -> list[str]:
    """The messages whose address is not that of their content. Needs only the conversation itself."""
    command = [sys.executable, "-m", "dovetail", "won", "chains", "--json"]
    ran = subprocess.run(command, input=conversation, capture_output=True, check=False)
    messages = [json.loads(line) for line in ran.stdout.splitlines()]
    return [message["uri"] for message in messages if message["address"] == "broken"]


def main() -> None:
    """Talk, check, alter, check again."""
    log = asyncio.run(talk())
    print(f"{log.size} messages and responses, {len(log.findings)} findings, altered: {check(log.trig())}")
    altered = log.trig().replace(b"5 euros", b"9 euros")
    print(f"altered: {check(altered)}")


if __name__ == "__main__":
    main()
