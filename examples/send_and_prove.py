"""Send a message, receive it, and prove its delivery.

python examples/send_and_prove.py
"""

import asyncio

import dovetail


async def main() -> None:
    with dovetail.local() as site:  # a broker on loopback: keys made, journal kept
        async with site.connect("pcp://ben/agent") as ben, site.connect("pcp://ann/agent") as ann:
            sent = await ann.send("pcp://ben/agent", {"door": "open"})
            message = await ben.receive(timeout=5)
            assert message.address == sent.address
            receipt = site.receipt(sent.address).save("door.receipt")
            print(*receipt.verify(trust=site.trust).claims, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
