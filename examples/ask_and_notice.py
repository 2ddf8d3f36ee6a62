"""Ask an agent and get its answer; send to one that is not there, and notice.

python examples/ask_and_notice.py
"""

import asyncio

import dovetail


async def serve(agent: dovetail.PcpClient) -> None:
    async for question in agent:
        await question.reply({"free_gb": 7})


async def main() -> None:
    with dovetail.local() as site:
        async with site.connect("pcp://cem/agent") as agent, site.connect("pcp://boss/controller") as boss:
            worker = asyncio.create_task(serve(agent))
            print((await boss.request("pcp://cem/agent", {"ask": "disk"}, ttl=5)).data)
            try:
                (await boss.send("pcp://gone/agent", "hello?")).raise_for_outcome()
            except dovetail.NotDelivered as error:
                print(error.sent.outcome, error.sent.address)
            worker.cancel()


if __name__ == "__main__":
    asyncio.run(main())
