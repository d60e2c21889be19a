"""Two hundred clients that read and fifty that listen, as a separate process: ``python -m tests.bench.readers URL``.

It prints ``ready`` once all streams are open, continues until its standard input has the line of history with which the
streams end, and prints what it saw as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final

import httpx2

READERS: Final = 200
STREAMS: Final = 50
THINK_SECONDS: Final = 5.0
BREAK_SECONDS: Final = 1.0
PATHS: Final = (
    "/api/v1/workloads?limit=100",
    "/api/v1/workloads?limit=100&state=Pending",
    "/api/v1/clustermap",
    "/api/v1/nodes?limit=50",
    "/api/v1/domains",
    "/api/v1/decisions?limit=20",
    "/api/v1/clusterqueues",
)


class Clients:
    """Two hundred that read, fifty that listen."""

    def __init__(self, url: str) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx2.AsyncClient(base_url=url, limits=limits, timeout=60.0)
        self._over = asyncio.Event()
        self._end = 0
        self.answers: dict[str, list[float]] = {path: [] for path in PATHS}
        self.statuses: dict[str, int] = {}
        self.breaks = 0

    async def read(self, number: int) -> None:
        await asyncio.sleep(THINK_SECONDS * number / READERS)
        turn = number
        while not self._over.is_set():
            path = PATHS[turn % len(PATHS)]
            turn += 1
            began = time.perf_counter()
            answer = await self._client.get(path)
            self.answers[path].append(time.perf_counter() - began)
            status = str(answer.status_code)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            await asyncio.sleep(THINK_SECONDS)

    async def listen(self, number: int, opened: asyncio.Semaphore) -> list[int]:
        seen: list[int] = []
        position = 0
        breaks = number % 2 == 1
        first = True
        while not (self._over.is_set() and position >= self._end):
            until = time.monotonic() + BREAK_SECONDS if breaks else None
            headers = {"Last-Event-ID": str(position)}
            async with self._client.stream("GET", "/api/v1/events", headers=headers) as answer:
                async for line in answer.aiter_lines():
                    if first:
                        first = False
                        opened.release()
                    if line.startswith("id: "):
                        position = int(line[4:])
                    elif line == "event: step":
                        seen.append(position)
                    elif self._over.is_set() and position >= self._end:
                        break
                    elif line == "" and until is not None and time.monotonic() > until:
                        self.breaks += 1
                        break
        return seen

    async def run(self) -> dict[str, Any]:
        opened = asyncio.Semaphore(0)
        listening = [asyncio.create_task(self.listen(n, opened)) for n in range(STREAMS)]
        for _ in range(STREAMS):
            await opened.acquire()
        reading = [asyncio.create_task(self.read(n)) for n in range(READERS)]
        print("ready", flush=True)
        self._end = int(await asyncio.to_thread(sys.stdin.readline))
        self._over.set()
        await asyncio.gather(*reading)
        seen = await asyncio.wait_for(asyncio.gather(*listening), 60.0)
        await self._client.aclose()
        return {
            "answers": self.answers, "statuses": self.statuses, "seen": seen, "breaks": self.breaks,
        }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(asyncio.run(Clients(sys.argv[1]).run())))
