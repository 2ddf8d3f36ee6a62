"""A client that reconnects under one URI whenever it is evicted: `python -m system.pcp_twin PORT URI SECONDS PAUSE_S`.

Prints the close code of each of its connections, as one JSON list.
"""

import asyncio
import json
import sys
import time

from system.pcp_raw import Closed, RawClient, Refused


async def be_evicted(port: int, uri: str, seconds: float, pause_s: float) -> list[int]:
    codes: list[int] = []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            client = await RawClient.associate(port, uri)
            codes.append(await client.closed_with(left))
        except Closed as closed:
            codes.append(closed.code)
        except Refused as refused:
            codes.append(refused.status)
        except TimeoutError:
            break  # still connected at the end
        await asyncio.sleep(pause_s)
    await RawClient.close_all()
    return codes


if __name__ == "__main__":
    port, uri, seconds, pause_s = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(be_evicted(int(port), uri, float(seconds), float(pause_s)))))
