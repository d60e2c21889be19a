"""An event loop that does nothing, as a separate process: what its lag is, the machine's other work costs everything.

``python -m tests.bench.bystander URL`` prints ``ready``, measures until its standard input ends, and prints the lags as JSON, in
seconds. The address is ignored: it asks nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Final

EVERY_SECONDS: Final = 0.01


async def lag(into: list[float], worked: list[float] | None = None) -> None:
    """The lag of the event loop, measured repeatedly.

    ``worked``: CPU time of the loop's thread in the meantime, which is the same on a machine that is busy with other things.
    """
    while True:
        began, busy = time.perf_counter(), time.thread_time()
        await asyncio.sleep(EVERY_SECONDS)
        into.append(time.perf_counter() - began - EVERY_SECONDS)
        if worked is not None:
            worked.append(time.thread_time() - busy)


async def main() -> None:
    lags: list[float] = []
    sampler = asyncio.create_task(lag(lags))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    sampler.cancel()
    print(json.dumps(lags))


if __name__ == "__main__":
    asyncio.run(main())
